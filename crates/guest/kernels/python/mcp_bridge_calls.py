"""Calls of a cell's code to the host, and their responses.

Any number of calls can be open at the same time, from coroutines of any event loop and from any thread. No thread reads
the socket permanently: callers that wait read it. An event loop with open calls watches the socket. Of the blocked
threads one is the reader, and the others sleep until their response is there or there is no reader.

Invariants: a frame is read or sent completely, even if an interrupt arrives meanwhile; the numbers of calls only grow;
calls that are open at the end of their cell fail then; a forked child makes no calls.
"""

import select
from _collections import deque
from _json import make_scanner
from _thread import RLock, allocate_lock, get_ident
from posix import O_CLOEXEC, O_NONBLOCK, close, getpid, pipe2, read, write

from kernel_channel import RESPONSE_BIT, move_high
from kernel_imports import import_stdlib

MAX_OPEN_CALLS = 256  # more calls wait in a queue here, where they cost the host nothing
MAX_CALL_BYTES = 8 << 20
MAX_DEPTH = 100  # of arguments; a little less than the host accepts


class ScannerOptions:
    """Options for `make_scanner`: the defaults of `json`."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float


scan = make_scanner(ScannerOptions)  # the C part of `json`; the rest takes long to import


def parse_json(text):
    """Parses a message of the host, which has no white space around it. Raises ValueError if it is not JSON."""
    try:
        value, end = scan(text, 0)
    except StopIteration:
        end = -1
    if end != len(text):
        raise ValueError("not JSON")
    return value


class MCPError(Exception):
    """A call failed.

    `kind` says how: "tool" (the tool itself reported an error), "refused", "not_found", "invalid", "limit",
    "upstream" (the server's protocol error, with `code`), "timeout", "lost", "cancelled" or "internal".
    `may_have_run` is true if the tool may have done its work all the same. `data` has further details."""

    __module__ = "mcp.runtime"

    def __init__(self, message, *, kind="internal", server=None, tool=None, code=None, data=None, may_have_run=False):
        super().__init__(message)
        self.kind, self.server, self.tool = kind, server, tool
        self.code, self.data, self.may_have_run = code, data, may_have_run


class Request:
    """One call. Its `outcome` is the body of the response, or an MCPError."""

    def __init__(self, method, params, loop=None):
        self.method, self.params = method, encode_params(method, params)
        self.thread, self.loop = get_ident(), loop
        self.number = self.cell_id = self.outcome = None
        self.is_done = False
        if loop is None:
            self.lock = allocate_lock()
            self.lock.acquire()
        else:
            self.future = loop.create_future()

    def finish(self, outcome):
        self.is_done, self.outcome = True, outcome
        self.wake()

    def wake(self):
        """Wakes the caller. Only one thread at a time calls this."""
        if self.loop is None:
            if self.lock.locked():
                self.lock.release()
            return
        try:
            if self.thread == get_ident():
                self.resolve()
            else:
                self.loop.call_soon_threadsafe(self.resolve)
        except RuntimeError:
            pass  # the loop is closed, so nothing waits there

    def resolve(self):
        if not self.future.done():
            self.future.set_result(None)


class Calls:
    def __init__(self, kernel):
        self.kernel = kernel
        self.mutex = RLock()  # held only for moments, with interrupts deferred
        self.last_number = 0
        self.open = {}  # number: request
        self.queue = deque()
        self.reader = None  # the thread that reads, while threads are blocked
        self.loops = {}  # event loop: number of its open calls
        self.fd = kernel.channel.fd
        self.poller = select.poll()
        self.poller.register(self.fd, select.POLLIN)
        self.wakeup_pipe = None  # wakes the reader at the end of the cell

    def call(self, method, **params):
        """Returns the result of a call. Blocks this thread."""
        self.refuse_child()
        request = Request(method, params)
        try:
            self.submit(request)
            while not request.is_done:
                self.read_or_sleep(request)
        finally:
            self.abandon(request)
        return decode_response(request)

    async def call_async(self, method, **params):
        """Returns the result of a call. Other tasks run meanwhile."""
        self.refuse_child()
        loop = import_stdlib("asyncio").get_running_loop()
        request = Request(method, params, loop)
        self.watch(loop)
        try:
            self.submit(request)
            await request.future
        finally:
            self.unwatch(loop)
            self.abandon(request)
        return decode_response(request)

    def is_child(self):
        return getpid() != self.kernel.pid

    def refuse_child(self):
        if self.is_child():
            message = "a forked process cannot make calls; hint: make them in the cell or in a thread"
            raise MCPError(message, kind="refused")

    def end_cell(self):
        """Fails the calls that are still open."""
        with DeferredInterrupts(self.kernel), self.mutex:
            self.release_reader()
            for request in [*self.queue, *self.open.values()]:
                was_sent = request.number is not None
                state = "got a response; it may have run" if was_sent else "was sent; it has not run"
                message = f"the cell ended before its call {request.method} {state}"
                hint = "hint: await calls in the cell that makes them"
                if not request.is_done:
                    request.finish(MCPError(f"{message}; {hint}", kind="cancelled", may_have_run=was_sent))
            self.queue.clear()
            self.open.clear()

    def release_reader(self):
        """Ends the wait of a thread that reads: the next frame is for the kernel."""
        if self.reader not in (None, get_ident()):
            try:
                write(self.wakeup_pipe[1], b".")
            except OSError:
                pass  # closed by the guest; the thread wakes up with the next frame
        self.reader = None

    def submit(self, request):
        with DeferredInterrupts(self.kernel), self.mutex:
            request.cell_id = self.kernel.cell_id
            if request.cell_id is None:
                raise MCPError("no cell is running; hint: make calls only while a cell runs", kind="refused")
            self.queue.append(request)
            self.send_queued()

    def send_queued(self):
        while self.queue and len(self.open) < MAX_OPEN_CALLS:
            request = self.queue.popleft()
            if request.is_done:
                continue
            self.last_number += 1
            request.number = self.last_number
            self.open[request.number] = request
            head = f'"type":"call","id":{request.cell_id},"call":{request.number},"method":"{request.method}"'
            self.send_frame(f'{{{head},"params":'.encode() + request.params + b"}")
            request.params = None

    def send_frame(self, body):
        self.kernel.channel.send(len(body).to_bytes(4, "big") + body)

    def abandon(self, request):
        """Cancels a call at the host unless it is done: nothing waits for its response any more."""
        if request.is_done or self.is_child():
            return
        with DeferredInterrupts(self.kernel), self.mutex:
            if request.is_done:
                return
            request.is_done = True
            if self.open.pop(request.number, None) is not None:
                self.send_frame(f'{{"type":"cancel","id":{request.cell_id},"call":{request.number}}}'.encode())
                self.send_queued()

    def watch(self, loop):
        self.loops[loop] = self.loops.get(loop, 0) + 1
        if self.loops[loop] == 1:
            loop.add_reader(self.fd, self.read_frames)

    def unwatch(self, loop):
        self.loops[loop] -= 1
        if not self.loops[loop]:
            del self.loops[loop]
            if not loop.is_closed() and not self.is_child():
                loop.remove_reader(self.fd)

    def read_or_sleep(self, request):
        """Reads frames if this thread is the reader, or sleeps until it is woken."""
        try:
            if self.become_reader(request):
                self.wait_for_frames()
                self.read_frames()
            else:
                request.lock.acquire()
        finally:
            self.resign_as_reader()

    def wait_for_frames(self):
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        if get_ident() == self.kernel.thread:
            poller.poll()  # the cell does not end meanwhile
            return
        poller.register(self.wakeup_pipe[0], select.POLLIN)
        if self.wakeup_pipe[0] in dict(poller.poll()):
            try:
                read(self.wakeup_pipe[0], 1)
            except OSError:
                pass  # a reader of an earlier cell, woken late, has read it

    def become_reader(self, request):
        with DeferredInterrupts(self.kernel), self.mutex:
            if self.reader is None and not request.is_done:
                if self.wakeup_pipe is None and request.thread != self.kernel.thread:
                    self.wakeup_pipe = self.make_wakeup_pipe()
                self.reader = request.thread
            return self.reader == request.thread and not request.is_done

    def make_wakeup_pipe(self):
        ends = pipe2(O_CLOEXEC | O_NONBLOCK)
        moved = [move_high(fd) for fd in ends]
        for fd in ends:
            close(fd)
        return moved

    def resign_as_reader(self):
        """Wakes another blocked thread to read if there is no reader when this one has finished."""
        with DeferredInterrupts(self.kernel), self.mutex:
            if self.reader == get_ident():
                self.reader = None
            if self.reader is None:
                waiting = (request for request in self.open.values() if request.loop is None)
                successor = next((request for request in waiting if request.thread != get_ident()), None)
                if successor is not None:
                    successor.wake()

    def read_frames(self):
        """Reads the frames that have arrived, each completely, and hands out responses.

        If a thread is the reader, only it reads: it would block forever if another had read its response."""
        with DeferredInterrupts(self.kernel), self.mutex:
            channel = self.kernel.channel
            if self.kernel.cell_id is None or self.reader not in (None, get_ident()):
                return  # between cells, only the kernel reads
            while channel.received or self.poller.poll(0):
                try:
                    number, body = channel.receive()
                except ValueError:
                    continue  # over the limit
                if number < RESPONSE_BIT:
                    channel.early_frames.append((number, body))
                    continue
                request = self.open.pop(number - RESPONSE_BIT, None)
                if request is not None:
                    request.finish(body)
                    self.send_queued()


class DeferredInterrupts:
    """Defers interrupts, which are raised only in the main thread."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __enter__(self):
        kernel = self.kernel
        self.is_outermost = get_ident() == kernel.thread and not kernel.defers_interrupt
        if self.is_outermost:
            kernel.defers_interrupt = True

    def __exit__(self, *_):
        kernel = self.kernel
        if self.is_outermost:
            kernel.defers_interrupt = False
            if kernel.has_deferred_interrupt:
                kernel.has_deferred_interrupt = False
                raise KeyboardInterrupt


def encode_params(method, params):
    """Encodes params as JSON. Raises MCPError for params that the host could not parse: it would not even respond."""
    try:
        body = import_stdlib("json").dumps(params, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as refusal:
        raise MCPError(f"{method}: arguments cannot be sent as JSON: {refusal}", kind="invalid") from None
    if len(body) > MAX_CALL_BYTES - 1024:  # more than the rest of the frame needs
        raise MCPError(f"{method}: {len(body)} bytes exceed the limit of {MAX_CALL_BYTES} per call", kind="limit")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and is_deep(params):
        raise MCPError(f"{method}: nesting exceeds the limit of {MAX_DEPTH} levels", kind="invalid")
    return body


def is_deep(value):
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
        level = {id(part): part for part in parts if isinstance(part, (dict, list, tuple))}.values()
    return bool(level)


def decode_response(request):
    """Returns the result in the response; raises MCPError for an error."""
    outcome, request.outcome = request.outcome, None
    if isinstance(outcome, MCPError):
        raise outcome
    try:
        outcome = outcome.decode()  # frees the bytes, which may be many
        response = parse_json(outcome)
    except (ValueError, RecursionError) as failure:
        raise MCPError(f"the host's response cannot be parsed: {failure}") from None
    error = response.get("error")
    if error is None:
        return response.get("result")
    kind = error.get("kind", "internal")
    may_have_run = bool(error.get("may_have_run", kind in ("timeout", "lost")))
    raise MCPError(
        error.get("message") or f"the call failed: {kind}",
        kind=kind,
        code=error.get("code"),
        data=error.get("data"),
        may_have_run=may_have_run,
    )
