"""The Python kernel of a sandbox session: runs cells of code one after another in one namespace.

    python3 -I kernel.py FD          or, in a warm fork:  prepare([...]) … fork … serve(fd)

FD is a Unix stream socket to the host and carries frames: a length (4 bytes, big-endian), then JSON.

    host → kernel   {"type": "execute", "id": 7, "code": "…"}; end of file ends the kernel
    kernel → host   {"type": "ready", "language": "python", "version": "3.11.2"}, once
                    {"type": "display", "id": 7, "items": [{"mime": …, "data": …}]}, as rich output arises
                    {"type": "done", "id": 7, "status": "ok|error|interrupted|exited", "result": …, "error": …}
                    {"type": "rejected", "id": null, "message": "…"}, for a frame that is no request

What always holds: control data goes to FD only and output to descriptors 1 and 2 only; everything
printed through Python is flushed before `done`; a forked child never speaks on FD.

What it does not do: protect itself from the code that it runs. Guest code shares this process and can
break it, which ends this kernel and nothing else. The host trusts no frame and the sandbox is the wall.

Top-level `await` runs on one event loop that lives as long as the kernel, but turns only while a cell
awaits: background tasks rest in between. SIGINT raises KeyboardInterrupt in the cell that runs (in an
`await` it cancels the cell's task, as asyncio.run does) and is ignored between cells.

Only what every cell needs is imported here; the modules in LAZY are imported when first needed.
"""

import _ast
import builtins
import fcntl
import io
import json
import os
import signal
import sys
from _thread import allocate_lock, get_ident

FRAME_LIMIT = 16 << 20
ITEM_LIMIT = 8 << 20
ITEMS_PER_CELL = 32
RESULT_LIMIT = 64 << 10  # characters, as is the next
TRACEBACK_LIMIT = 32 << 10
NAME_LIMIT = 256

LAZY = ("asyncio", "base64", "linecache", "reprlib", "traceback")
NO_INPUT = "input() is not available in this sandbox: pass values in the code"
CO_COROUTINE = 0x80  # inspect.CO_COROUTINE
KERNEL_FILE = (lambda: None).__code__.co_filename

# NaN is no JSON, and a host's parser would refuse the whole frame.
encode_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


# The channel to the host


def move_high(fd):
    """Duplicates `fd` to a number that guest code does not hit by accident, closed on exec."""
    for floor in (900, 200, 60):  # RLIMIT_NOFILE may be low
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)
        except OSError:
            continue
    return os.dup(fd)


class Channel:
    """Frames to and from the host. The process ends when the socket does."""

    def __init__(self, fd):
        self.fd = move_high(fd)
        os.close(fd)
        self.lock = allocate_lock()
        os.register_at_fork(after_in_child=self.disown)

    def disown(self):
        """In a forked child: lets go of the socket, so that the host sees the kernel's own end."""
        try:
            os.close(self.fd)
        except OSError:
            pass
        self.fd = -1

    def read(self, size):
        parts = []
        while size:
            try:
                part = os.read(self.fd, min(size, 1 << 20))
            except OSError:
                os._exit(1)
            if not part:
                os._exit(0)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def receive(self):
        """The next request; ValueError if the frame is none, with the stream still in step."""
        size = int.from_bytes(self.read(4), "big")
        if size > FRAME_LIMIT:
            for offset in range(0, size, 1 << 20):
                self.read(min(1 << 20, size - offset))
            raise ValueError(f"a frame of {size} bytes exceeds {FRAME_LIMIT}")
        request = json.loads(self.read(size).decode())
        if not isinstance(request, dict) or request.get("type") != "execute":
            raise ValueError("not an execute request")
        if not isinstance(request.get("code"), str) or "id" not in request:
            raise ValueError("an execute request needs an id and code")
        return request

    def write(self, message):
        frame = memoryview(message)
        with self.lock:
            try:
                while frame:
                    frame = frame[os.write(self.fd, frame) :]
            except OSError:
                os._exit(1)


def encode_frame(message):
    body = encode_json(message).encode("ascii")
    if len(body) > FRAME_LIMIT:
        raise ValueError(f"{len(body)} bytes when encoded, more than {FRAME_LIMIT}")
    return len(body).to_bytes(4, "big") + body


# Descriptors 0, 1 and 2


class NoInput(io.TextIOBase):
    """sys.stdin: nobody is there to type, and an empty answer would only puzzle."""

    def read(self, *_):
        raise RuntimeError(NO_INPUT)

    readline = readlines = __next__ = read
    buffer = property(read)

    def fileno(self):
        return 0

    def close(self):
        """Stays open: `exit()` closes stdin, and the kernel lives on."""


def identify(fd):
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Stdio:
    """The standard descriptors and the text streams over them, made whole again before each cell."""

    def __init__(self):
        self.spares = [(fd, move_high(fd), identify(fd)) for fd in (0, 1, 2)]
        self.streams = {}
        sys.stdin = sys.__stdin__ = NoInput()
        builtins.input = NoInput.read

    def restore(self):
        for fd, spare, identity in self.spares:
            if identify(fd) != identity:
                os.dup2(spare, fd)
            os.set_blocking(fd, True)  # a child such as node may have left the shared pipe otherwise
        for fd, name in ((1, "stdout"), (2, "stderr")):
            if not self.is_intact(name):
                # By line, as on a terminal: in order with what subprocesses print, and not lost in a kill.
                stream = open(fd, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
                self.streams[name] = stream
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)

    def is_intact(self, name):
        stream = self.streams.get(name)
        try:
            return stream is not None and getattr(sys, name, None) is stream and not stream.closed
        except ValueError:  # detached from its buffer
            return False

    def flush(self):
        for stream in (*self.streams.values(), sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                continue  # closed, or the guest's own object
        if "ctypes" in sys.modules:
            try:
                sys.modules["ctypes"].pythonapi.fflush(None)
            except Exception:
                pass


# What a person reads: results and errors


def trim(text, limit):
    if len(text) <= limit:
        return text
    kept = (limit - 64) // 2
    return f"{text[:kept]}\n… {len(text) - 2 * kept} characters left out …\n{text[-kept:]}"


def render(make, what, limit):
    """The text that `make` gives, bounded; guest code runs in it, so a failure is text as well."""
    try:
        return trim(make(), limit)
    except Exception as failure:
        import traceback

        reason = "".join(traceback.format_exception_only(type(failure), failure)).strip()
        return trim(f"<{what} failed: {reason}>", limit)


def is_heavy(value, budget=RESULT_LIMIT):
    """Whether plain containers hold more than fits a result: then rendering them whole is a waste."""
    pending = [value]
    while pending and budget > 0:
        item = pending.pop()
        kind = type(item)
        budget -= 1
        if kind in (str, bytes, bytearray):
            budget -= len(item)
        elif kind in (list, tuple, set, frozenset, dict):
            budget -= 2 * len(item)
            if budget > 0:
                pending.extend(item)
                pending.extend(item.values() if kind is dict else ())
    return budget <= 0


def make_repr(value):
    if not is_heavy(value):
        return repr(value)
    import reprlib

    short = reprlib.Repr()
    short.maxlevel = 3
    short.maxlist = short.maxtuple = short.maxset = short.maxfrozenset = short.maxdict = 100
    short.maxstring = short.maxother = RESULT_LIMIT // 2
    return short.repr(value)


def user_frames(stack):
    """A traceback without the kernel's frames, nor the event loop's between them and the cell."""
    if stack and stack[0].filename == KERNEL_FILE:
        cell = (n for n, frame in enumerate(stack) if frame.filename.startswith("<cell "))
        stack = stack[next(cell, 0) :]
    return [frame for frame in stack if frame.filename != KERNEL_FILE]


def format_traceback(exc):
    import linecache
    import traceback

    if isinstance(exc, SyntaxError) and exc.text is None and exc.filename and exc.lineno:
        exc.text = linecache.getline(exc.filename, exc.lineno) or None  # as when the parser finds it
    report = traceback.TracebackException(type(exc), exc, exc.__traceback__)
    pending = [report]
    while pending:
        part = pending.pop()
        if part is not None:
            part.stack[:] = user_frames(part.stack)
            pending += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    if not report.stack and report.__cause__ is report.__context__ is None:
        return "".join(report.format_exception_only())
    return "".join(report.format())


def describe(exc):
    """The status and the error that a cell ended with."""
    name = render(lambda: f"{type(exc).__name__}", "__name__", NAME_LIMIT)
    if isinstance(exc, SystemExit):
        message = render(lambda: str(0 if exc.code is None else exc.code), "str()", TRACEBACK_LIMIT)
        return "exited", {"name": name, "message": message, "traceback": ""}
    message = render(lambda: str(exc), "str()", TRACEBACK_LIMIT)
    trace = render(lambda: format_traceback(exc), "traceback", TRACEBACK_LIMIT)
    status = "interrupted" if isinstance(exc, KeyboardInterrupt) else "error"
    return status, {"name": name, "message": message, "traceback": trace}


# Rich output

RICH_METHODS = (
    ("", "_repr_mimebundle_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("image/svg+xml", "_repr_svg_"),
    ("text/html", "_repr_html_"),
    ("application/json", "_repr_json_"),
)


def note(text):
    print(f"display: {text}", file=sys.stderr)


def is_figure(value):
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, getattr(figures, "Figure", ()))


def draw_figure(figure):
    """PNG bytes; the figure is closed, so that it is sent once and not drawn on by the next cell."""
    try:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()
    finally:
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close(figure)


def rich_forms(value):
    """The rich representations of `value` by mime type: one image, the best that it offers."""
    if is_figure(value):
        return {"image/png": draw_figure(value)}
    forms = {}
    for mime, method_name in RICH_METHODS:
        # On the type: a class is not its instance, and some instances answer to every name.
        method = getattr(type(value), method_name, None)
        has_image = any(form.startswith("image/") for form in forms)
        if method is None or mime in forms or (has_image and mime.startswith("image/")):
            continue
        try:
            data = method(value)
        except Exception as failure:
            note(f"{method_name} of {type(value).__name__} failed: {type(failure).__name__}: {failure}")
            continue
        data = data[0] if isinstance(data, tuple) else data  # with metadata
        if data is not None:
            forms.update({mime: data} if mime else data)
    return forms


def encode_item(mime, data):
    """text/* stays text, JSON stays JSON, all else becomes base64; ValueError if it cannot be sent."""
    if mime == "application/json" or mime.endswith("+json"):
        size = len(encode_json(data))
    elif mime.startswith("text/"):
        size = len(data)
    elif isinstance(data, str) and mime.startswith(("image/", "audio/", "video/")) and "xml" not in mime:
        size = len(data) * 3 // 4  # base64 already, by Jupyter's convention
    else:
        import base64

        data = data.encode() if isinstance(data, str) else bytes(data)
        size = len(data)
        data = base64.b64encode(data).decode() if size <= ITEM_LIMIT else ""
    if size > ITEM_LIMIT:
        raise ValueError(f"{size} bytes, more than {ITEM_LIMIT}")
    return {"mime": mime, "data": data}


class PyplotHook:
    """Lets `plt.show()` send the figures as soon as matplotlib is there, without importing it."""

    def __init__(self, show):
        self.show = show

    def install(self):
        if "matplotlib.pyplot" in sys.modules:
            self.patch(sys.modules["matplotlib.pyplot"])
        else:
            sys.meta_path.insert(0, self)

    def patch(self, pyplot):
        pyplot.show = lambda *_, **__: self.show()

    def find_spec(self, name, path=None, target=None):
        if name != "matplotlib.pyplot":
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), self.patch(module))
        return spec


# The kernel


class Kernel:
    """One namespace, one event loop, one cell at a time."""

    def __init__(self, fd):
        self.pid = os.getpid()
        self.thread = get_ident()
        self.channel = Channel(fd)
        self.stdio = Stdio()
        self.stdio.restore()
        self.cells = 0
        self.cell_id = None
        self.items = 0
        self.loop = None
        self.task = None  # the cell's, while it awaits
        self.is_cancelled = False
        # SIGINT: acted on while armed, put off while a frame is being written.
        self.armed = self.writing = self.put_off = False
        signal.signal(signal.SIGINT, self.on_interrupt)
        main = type(sys)("__main__")
        main.__builtins__ = builtins
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        builtins.display = self.display
        PyplotHook(self.show_figures).install()

    def run(self):
        version = "%d.%d.%d" % sys.version_info[:3]
        self.send({"type": "ready", "language": "python", "version": version})
        import linecache  # while the host makes up its mind

        self.linecache = linecache
        while True:
            try:
                request = self.channel.receive()
            except ValueError as refusal:
                self.send({"type": "rejected", "id": None, "message": str(refusal)})
                continue
            self.send(self.execute(request["id"], request["code"]))

    def execute(self, cell_id, code):
        """The `done` message for one cell."""
        self.stdio.restore()
        signal.signal(signal.SIGINT, self.on_interrupt)  # the last cell may have set its own
        self.cells += 1
        self.cell_id, self.items = cell_id, 0
        try:
            self.armed = True
            status, result, error = self.attempt(code)
            self.armed = False
        except KeyboardInterrupt:  # a second one, while the first was being described
            self.armed = False
            status, result = "interrupted", None
            error = {"name": "KeyboardInterrupt", "message": "", "traceback": "KeyboardInterrupt\n"}
        if os.getpid() != self.pid:
            self.end_child(status, error)
        self.cell_id = None
        return {"type": "done", "id": cell_id, "status": status, "result": result, "error": error}

    def attempt(self, code):
        status, result, error = "ok", None, None
        try:
            value = self.evaluate(code)
            if value is not None:
                self.namespace["_"] = value
                result = render(lambda: make_repr(value), "repr()", RESULT_LIMIT)
                self.show(rich_forms(value))
        except BaseException as exc:
            status, error = describe(exc)
        if status in ("ok", "error"):
            self.show_figures()
        if self.items > ITEMS_PER_CELL:
            note(f"{self.items - ITEMS_PER_CELL} items dropped: a cell shows at most {ITEMS_PER_CELL}")
        self.stdio.flush()
        return status, result, error

    def evaluate(self, code):
        """Runs a cell and returns the value of its last expression."""
        name = f"<cell {self.cells}>"
        self.linecache.cache[name] = (len(code), None, [f"{line}\n" for line in code.split("\n")], name)
        flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(code, name, "exec", flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
        last = None
        if tree.body and isinstance(tree.body[-1], _ast.Expr):
            last = _ast.Expression(tree.body.pop().value)
            last = compile(last, name, "eval", flags, dont_inherit=True)
        if tree.body:
            self.run_code(compile(tree, name, "exec", flags, dont_inherit=True))
        return None if last is None else self.run_code(last)

    def run_code(self, code):
        value = eval(code, self.namespace)
        return self.run_coroutine(value) if code.co_flags & CO_COROUTINE else value

    def run_coroutine(self, coroutine):
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        self.is_cancelled = False
        task = self.task = self.loop.create_task(coroutine)
        try:
            while True:
                try:
                    return self.loop.run_until_complete(task)
                except KeyboardInterrupt:
                    if task.done():
                        raise
                    self.cancel_task()  # it struck another task; let the cell's own clean up
                except asyncio.CancelledError as cancelled:
                    if not self.is_cancelled:
                        raise
                    raise KeyboardInterrupt().with_traceback(cancelled.__traceback__) from None
        finally:
            self.task = None
            if task.done() and not task.cancelled():
                task.exception()  # retrieved, or asyncio complains of it later

    def cancel_task(self):
        self.is_cancelled = True
        self.loop.call_soon_threadsafe(self.task.cancel)

    def on_interrupt(self, _signum, frame):
        if not self.armed:
            return
        if self.writing:
            self.put_off = True
        elif self.task is not None and self.is_loop_idle(frame):
            self.cancel_task()
        else:
            raise KeyboardInterrupt

    def is_loop_idle(self, frame):
        """Whether the event loop's own code was struck: an exception there would lose callbacks."""
        module = frame.f_globals.get("__name__", "")
        in_loop = module == "selectors" or module.startswith("asyncio.")
        return in_loop and sys.modules["asyncio"].current_task(self.loop) is None

    def send(self, message):
        """Sends one frame whole: an interrupt that arrives meanwhile strikes afterwards."""
        frame = encode_frame(message)
        if get_ident() != self.thread:
            self.channel.write(frame)
            return
        self.writing = True
        self.channel.write(frame)
        self.writing = False
        if self.put_off:
            self.put_off = False
            raise KeyboardInterrupt

    def end_child(self, status, error):
        """Ends a forked child that ran out of its cell, as a script that ran out of its lines would."""
        if status != "ok":
            print(error["traceback"] or error["message"], end="", file=sys.stderr)
        self.stdio.flush()
        code = error["message"] if status == "exited" else ""
        os._exit(int(code) & 0xFF if code.isdigit() else int(status != "ok"))

    def display(self, *values):
        """Shows values as images, HTML, JSON or text, whichever they offer."""
        for value in values:
            forms = rich_forms(value)
            if not any(mime.startswith("image/") for mime in forms):
                forms.setdefault("text/plain", render(lambda: make_repr(value), "repr()", RESULT_LIMIT))
            self.show(forms)

    def show(self, forms):
        """Sends the forms of one value, within the cell's bounds."""
        if not forms or os.getpid() != self.pid:
            return
        if self.cell_id is None:
            note("no cell is running")
            return
        items = []
        for mime, data in forms.items():
            self.items += 1
            try:
                if self.items <= ITEMS_PER_CELL:
                    items.append(encode_item(mime, data))
            except Exception as refusal:
                note(f"{mime} dropped: {refusal}")
        try:
            if items:
                self.send({"type": "display", "id": self.cell_id, "items": items})
        except (TypeError, ValueError) as refusal:
            note(f"{', '.join(forms)} dropped: {refusal}")

    def show_figures(self):
        """Sends and closes the figures that pyplot holds."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        try:
            for number in pyplot.get_fignums() if pyplot else ():
                self.show(rich_forms(pyplot.figure(number)))
        except Exception as failure:
            note(f"figure dropped: {type(failure).__name__}: {failure}")


# Starting


def reseed():
    """Makes siblings of one zygote unlike each other: they were forked with the same state."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    if "uuid" in modules:
        for name in ("_node", "_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7"):
            setattr(modules["uuid"], name, None)
    if "ssl" in modules:
        modules["ssl"].RAND_add(os.urandom(32), 32.0)
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def prepare(preload):
    """Imports modules ahead of the fork and returns the names of those that could not be imported."""
    import gc

    os.environ.setdefault("MPLBACKEND", "Agg")
    missing = []
    for name in (*LAZY, *preload):
        try:
            __import__(name)
        except Exception:
            missing.append(name)
    gc.collect()
    gc.freeze()  # or each child's collector would touch, and so copy, every page
    return missing


def serve(fd):
    """Serves the host on `fd` until it hangs up. Never returns."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    reseed()
    sys.argv = [""]
    sys.path.insert(0, "")  # modules in the workspace, as at any prompt
    Kernel(fd).run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
