"""Calls: questions that a cell's code asks the host while it runs, and their answers.

Any number can be open at once, from coroutines of any event loop and from any thread. Nobody reads for the others
all the time: whoever waits reads. An event loop with open calls watches the socket; of the threads that wait one
leads, which is to say that it reads, and the rest sleep until their answer is there or there is nobody who leads.

What always holds: a frame is read or sent whole, whatever strikes meanwhile; the numbers of calls only grow; what
still waits at the end of its cell fails then; a forked child does not call.
"""

import select
from _collections import deque
from _json import make_scanner
from _thread import RLock, allocate_lock, get_ident
from posix import O_CLOEXEC, O_NONBLOCK, close, getpid, pipe2, read, write

from kernel_channel import ANSWER, move_high
from kernel_imports import import_own

MOST_OPEN = 256  # at once; the rest wait their turn here, where they cost the host nothing
CALL_LIMIT = 8 << 20
DEPTH_LIMIT = 100  # of arguments; the host reads a little more


class Plain:
    """How JSON is read: as `json` does unless told otherwise."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float


scan = make_scanner(Plain)  # the heart of `json`, without what takes long to import


def parse(text):
    """A message of the host's, which has no space around it. ValueError if it is no JSON."""
    try:
        value, end = scan(text, 0)
    except StopIteration:
        end = -1
    if end != len(text):
        raise ValueError("this is not JSON")
    return value


class MCPError(Exception):
    """A call failed.

    `kind` says how: "tool" (the tool itself reported an error), "refused", "not_found", "invalid", "limit",
    "upstream" (the server's protocol error, with `code`), "timeout", "lost", "cancelled" or "internal".
    `may_have_run` is true where the tool may have done its work all the same. `data` has what else was said."""

    __module__ = "mcp.runtime"

    def __init__(self, message, *, kind="internal", server=None, tool=None, code=None, data=None, may_have_run=False):
        super().__init__(message)
        self.kind, self.server, self.tool = kind, server, tool
        self.code, self.data, self.may_have_run = code, data, may_have_run


class Request:
    """One call. Its `outcome` is the body of the answer, or the MCPError that there is instead."""

    def __init__(self, method, params, loop=None):
        self.method, self.params = method, encode_params(method, params)
        self.thread, self.loop = get_ident(), loop
        self.number = self.cell_id = self.outcome = None
        self.is_over = False
        if loop is None:
            self.lock = allocate_lock()
            self.lock.acquire()
        else:
            self.future = loop.create_future()

    def finish(self, outcome):
        self.is_over, self.outcome = True, outcome
        self.wake()

    def wake(self):
        """Has its owner look again. One at a time does this."""
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
            pass  # its loop is closed, and nobody waits there any more

    def resolve(self):
        if not self.future.done():
            self.future.set_result(None)


class Calls:
    def __init__(self, kernel):
        self.kernel = kernel
        self.mutex = RLock()  # held for moments only, with interrupts put off
        self.last = 0
        self.open = {}  # number: request
        self.queue = deque()
        self.leader = None  # the thread that reads, while threads wait
        self.watched = {}  # loop: how many of its calls are open
        self.fd = kernel.channel.fd
        self.poller = select.poll()
        self.poller.register(self.fd, select.POLLIN)
        self.alarm = None  # a pipe that ends a leader's wait at the end of the cell

    def ask(self, method, **params):
        """The result of a call. Blocks this thread."""
        self.refuse_child()
        request = Request(method, params)
        try:
            self.begin(request)
            while not request.is_over:
                self.await_turn(request)
        finally:
            self.abandon(request)
        return decode_answer(request)

    async def ask_async(self, method, **params):
        """The result of a call. Others go on meanwhile."""
        self.refuse_child()
        loop = import_own("asyncio").get_running_loop()
        request = Request(method, params, loop)
        self.watch(loop)
        try:
            self.begin(request)
            await request.future
        finally:
            self.unwatch(loop)
            self.abandon(request)
        return decode_answer(request)

    def is_child(self):
        return getpid() != self.kernel.pid

    def refuse_child(self):
        if self.is_child():
            raise MCPError("a forked process cannot make calls: make them in the cell, or in a thread", kind="refused")

    def end_cell(self):
        """Fails what the cell left open."""
        with Undisturbed(self.kernel), self.mutex:
            self.dismiss_leader()
            for request in [*self.queue, *self.open.values()]:
                was_sent = request.number is not None
                what = "was answered; it may have run" if was_sent else "began"
                ended = MCPError(
                    f"the cell ended before its call {request.method} {what}: await calls in the cell that makes them",
                    kind="cancelled",
                    may_have_run=was_sent,
                )
                if not request.is_over:
                    request.finish(ended)
            self.queue.clear()
            self.open.clear()

    def dismiss_leader(self):
        """Ends the wait of a thread that leads: the next frame is not for it."""
        if self.leader not in (None, get_ident()):
            try:
                write(self.alarm[1], b".")
            except OSError:
                pass  # closed by the guest; the thread learns of it with the next frame
        self.leader = None

    def begin(self, request):
        with Undisturbed(self.kernel), self.mutex:
            request.cell_id = self.kernel.cell_id
            if request.cell_id is None:
                raise MCPError("no cell is running: calls can be made only while one does", kind="refused")
            self.queue.append(request)
            self.send_queued()

    def send_queued(self):
        while self.queue and len(self.open) < MOST_OPEN:
            request = self.queue.popleft()
            if request.is_over:
                continue
            self.last += 1
            request.number = self.last
            self.open[self.last] = request
            head = f'{{"type":"call","id":{request.cell_id},"call":{self.last},"method":"{request.method}","params":'
            self.send_frame(head.encode() + request.params + b"}")
            request.params = None

    def send_frame(self, body):
        self.kernel.channel.send(len(body).to_bytes(4, "big") + body)

    def abandon(self, request):
        """Nobody waits for it any more: says so to the host, unless it is over."""
        if request.is_over or self.is_child():
            return
        with Undisturbed(self.kernel), self.mutex:
            if request.is_over:
                return
            request.is_over = True
            if self.open.pop(request.number, None) is not None:
                self.send_frame(f'{{"type":"cancel","id":{request.cell_id},"call":{request.number}}}'.encode())
                self.send_queued()

    def watch(self, loop):
        self.watched[loop] = self.watched.get(loop, 0) + 1
        if self.watched[loop] == 1:
            loop.add_reader(self.fd, self.take_in)

    def unwatch(self, loop):
        self.watched[loop] -= 1
        if not self.watched[loop]:
            del self.watched[loop]
            if not loop.is_closed() and not self.is_child():
                loop.remove_reader(self.fd)

    def await_turn(self, request):
        """Leads until something has come, or sleeps until woken."""
        try:
            if self.leads(request):
                self.await_frames()
                self.take_in()
            else:
                request.lock.acquire()
        finally:
            self.resign()

    def await_frames(self):
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        if get_ident() == self.kernel.thread:
            poller.poll()  # the cell does not end meanwhile
            return
        poller.register(self.alarm[0], select.POLLIN)
        if self.alarm[0] in dict(poller.poll()):
            try:
                read(self.alarm[0], 1)
            except OSError:
                pass  # one that was woken late has taken it

    def leads(self, request):
        with Undisturbed(self.kernel), self.mutex:
            if self.leader is None and not request.is_over:
                if self.alarm is None and request.thread != self.kernel.thread:
                    self.alarm = self.make_alarm()
                self.leader = request.thread
            return self.leader == request.thread and not request.is_over

    def make_alarm(self):
        ends = pipe2(O_CLOEXEC | O_NONBLOCK)
        alarm = [move_high(fd) for fd in ends]
        for fd in ends:
            close(fd)
        return alarm

    def resign(self):
        """Whoever has waited and goes sees to it that one of those who still wait leads."""
        with Undisturbed(self.kernel), self.mutex:
            if self.leader == get_ident():
                self.leader = None
            if self.leader is None:
                waiting = (request for request in self.open.values() if request.loop is None)
                heir = next((request for request in waiting if request.thread != get_ident()), None)
                if heir is not None:
                    heir.wake()

    def take_in(self):
        """Reads the frames that have come, each whole, and hands out answers.

        Where a thread leads, it alone does: it could wait for good for what another has read."""
        with Undisturbed(self.kernel), self.mutex:
            channel = self.kernel.channel
            if self.kernel.cell_id is None or self.leader not in (None, get_ident()):
                return  # what comes between cells is the kernel's to read
            while channel.received or self.poller.poll(0):
                try:
                    number, body = channel.receive()
                except ValueError:
                    continue  # larger than the host may send
                if number < ANSWER:
                    channel.early.append((number, body))
                    continue
                request = self.open.pop(number - ANSWER, None)
                if request is not None:
                    request.finish(body)
                    self.send_queued()


class Undisturbed:
    """Puts off interrupts, which strike the main thread only."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __enter__(self):
        kernel = self.kernel
        self.is_outermost = get_ident() == kernel.thread and not kernel.sending
        if self.is_outermost:
            kernel.sending = True

    def __exit__(self, *_):
        kernel = self.kernel
        if self.is_outermost:
            kernel.sending = False
            if kernel.put_off:
                kernel.put_off = False
                raise KeyboardInterrupt


def encode_params(method, params):
    """What the host would not understand is refused here: it could not even say so."""
    try:
        body = import_own("json").dumps(params, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as refusal:
        raise MCPError(f"{method}: this cannot be sent as JSON: {refusal}", kind="invalid") from None
    if len(body) > CALL_LIMIT - 1024:  # which is more than the rest of the frame
        raise MCPError(f"{method}: {len(body)} bytes are more than the {CALL_LIMIT} of a call", kind="limit")
    if body.count(b"[") + body.count(b"{") > DEPTH_LIMIT and is_deep(params):
        raise MCPError(f"{method}: this is nested more than {DEPTH_LIMIT} deep", kind="invalid")
    return body


def is_deep(value):
    level = [value]
    for _ in range(DEPTH_LIMIT):
        parts = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
        level = {id(part): part for part in parts if isinstance(part, (dict, list, tuple))}.values()
    return bool(level)


def decode_answer(request):
    """The result that the answer carries; raises MCPError for an error."""
    outcome, request.outcome = request.outcome, None
    if isinstance(outcome, MCPError):
        raise outcome
    try:
        outcome = outcome.decode()  # of which one at a time is enough: it may be large
        answer = parse(outcome)
    except (ValueError, RecursionError) as failure:
        raise MCPError(f"the host's answer cannot be read: {failure}") from None
    error = answer.get("error")
    if error is None:
        return answer.get("result")
    kind = error.get("kind", "internal")
    may_have_run = bool(error.get("may_have_run", kind in ("timeout", "lost")))
    raise MCPError(
        error.get("message") or f"the call failed: {kind}",
        kind=kind,
        code=error.get("code"),
        data=error.get("data"),
        may_have_run=may_have_run,
    )
