"""The Python kernel of a sandbox session: runs cells of code one after another in one namespace.

    python3 -I kernel.py FD          or, in a warm fork:  prepare([...]) … fork … serve(fd)

FD is a Unix stream socket to the host and carries frames: a length (4 bytes, big-endian), then as many bytes.

    host → kernel   a number (8 bytes, big-endian), then
                    the code of the cell of that number, where its two highest bits are 0
                    with bit 63: the answer to the call of the rest of that number, JSON
                    with bit 62: the preface of the cells that follow, JSON: what they may call
                    end of file ends the kernel
    kernel → host   JSON:
                    {"type": "ready", "language": "python", "version": "3.11.2"}, once
                    {"type": "display", "id": 7, "items": [{"mime": …, "data": …}]}, as rich output arises
                    {"type": "done", "id": 7, "status": "ok", "result": "42", "error": null}, once a cell,
                    or "error", "interrupted", "exited" with {"name": …, "message": …, "traceback": …}
                    {"type": "rejected", "id": null, "message": "…"}, for a frame that is no request
                    {"type": "call", "id": 7, "call": 3, "method": …, "params": …} and, if its answer is not
                    waited for any more, {"type": "cancel", "id": 7, "call": 3}

What always holds: control data goes to FD only and output to descriptors 1 and 2 only; everything
printed through Python is flushed before `done`; a forked child never speaks on FD.

What it does not do: protect itself from the code that it runs. Guest code shares this process and can
break it, which ends this kernel and nothing else. The host trusts no frame; the sandbox is the wall.

Top-level `await` runs on one event loop that lives as long as the kernel but turns only while a cell
awaits: background tasks rest in between. SIGINT raises KeyboardInterrupt in the cell that runs (in an
`await` it cancels the cell's task, as asyncio.run does) and is ignored between cells.

What a cell's values and errors look like is in kernel_output.py, which lies beside this file. Calls, and all
that cells can reach with them, are in mcp_bridge.py and its parts, which are loaded when a preface comes or a cell
imports `mcp`; only they read from the host while a cell runs.

A session may wait for this program to start, so it is made of what every interpreter has in it: `posix`
and `_signal` rather than `os` and `signal`, and no `json`, each of which takes longer to import than all
of this. What is needed seldom is imported when it is needed. With `-S`, `site` is run when a cell could
miss it, or else behind the first one.
"""

import _signal
import builtins
import fcntl
import io
import posix
import sys
from _thread import RLock, _count, allocate_lock, get_ident

FRAME_LIMIT = 16 << 20
ANSWER_LIMIT = 72 << 20
CHUNK = 1 << 20
PAGE = 1 << 12
ID_SIZE = 8
PREFACE = 1 << 62
ANSWER = 1 << 63
LOOP_PACKAGES = ("asyncio", "selectors", "_weakrefset")
BRIDGE_PARTS = (  # each needs those before it at most
    "mcp_bridge_calls",
    "mcp_bridge_results",
    "mcp_bridge_functions",
    "mcp_bridge_servers",
    "mcp_bridge_source",
    "mcp_bridge_saved",
    "mcp_bridge_runtime",
    "mcp_bridge",
)
KEPT_CELLS = 1000  # whose source a traceback can show
CO_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the import
PLAIN = 0x43  # those of a function that is nothing else: CO_OPTIMIZED, CO_NEWLOCALS, CO_NOFREE
TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, likewise
MARKS = frozenset(";#'\"\\()[]{}")  # of which a line that is plainly an assignment has none
NO_INPUT = "input() is not available in this sandbox: pass values in the code"

# Without one of these in it a cell has only the builtins that are there without `site`, and cannot tell.
SIGNS_OF_SITE = (
    *("import", "exec", "eval", "compile", "__", "getattr"),  # ways to the path and to modules
    *("exit", "quit", "copyright", "credits", "license", "help"),  # builtins that it makes
)


def move_high(fd):
    """Duplicates `fd` to a number that guest code does not hit by accident, closed on exec."""
    for floor in (900, 200, 60):  # RLIMIT_NOFILE may be low
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)
        except OSError:
            continue
    return posix.dup(fd)


class Channel:
    """Frames to and from the host. The process ends when the socket does."""

    move_high = staticmethod(move_high)

    def __init__(self, fd):
        self.fd = move_high(fd)
        posix.close(fd)
        self.lock = allocate_lock()
        self.received = b""
        self.early = []  # frames that came while a cell ran, and are not for it
        self.wait = None  # not known yet
        posix.register_at_fork(after_in_child=self.disown)

    def disown(self):
        """In a forked child: lets go of the socket, so that the host sees the kernel's own end."""
        try:
            posix.close(self.fd)
        except OSError:
            pass
        self.fd, self.wait = -1, False

    def rest_well(self):
        """Waits by `poll` from now on. A `read` that waits is also woken when the host takes what was sent to it,
        for nothing, and it is the host that is held up by waking it."""
        try:
            select = import_own("select")
            watch = select.poll()
            watch.register(self.fd, select.POLLIN)
        except Exception:
            self.wait = False  # there is none, or not as it was
        else:
            self.wait = watch.poll

    def read(self, size):
        """Exactly as many bytes; what comes with them is kept."""
        parts, missing = [self.received], size - len(self.received)
        while missing > 0:
            part = self.read_some(min(max(missing, PAGE), CHUNK))
            parts.append(part)
            missing -= len(part)
        received = b"".join(parts)
        self.received = received[size:]
        return received[:size]

    def read_some(self, most):
        try:
            if self.wait:
                self.wait()
            part = posix.read(self.fd, most)
        except OSError:
            posix._exit(1)
        if not part:
            posix._exit(0)
        return part

    def receive(self):
        """The number of a frame and the rest of it; ValueError if it is none, with the stream in step."""
        if not self.received:
            self.received = self.read_some(PAGE)
        frame, size = self.received, int.from_bytes(self.received[:4], "big")
        if len(frame) == size + 4 and size >= ID_SIZE:  # as mostly: one, and whole
            self.received = b""
            return int.from_bytes(frame[4:12], "big"), frame[12:]
        size = int.from_bytes(self.read(4), "big")
        if size > FRAME_LIMIT:
            return self.receive_large(size)
        frame = self.read(size)
        if size < ID_SIZE:
            raise ValueError("a request needs the number of its cell")
        return int.from_bytes(frame[:ID_SIZE], "big"), frame[ID_SIZE:]

    def receive_large(self, size):
        number = int.from_bytes(self.read(ID_SIZE), "big")
        rest = size - ID_SIZE
        if number & ANSWER and size <= ANSWER_LIMIT:
            return number, self.read(rest)
        for offset in range(0, rest, CHUNK):
            self.read(min(CHUNK, rest - offset))
        raise ValueError(f"a frame of {size} bytes exceeds {ANSWER_LIMIT if number & ANSWER else FRAME_LIMIT}")

    def send(self, frame):
        with self.lock:
            try:
                sent = posix.write(self.fd, frame)
                while sent < len(frame):  # which is rare
                    sent += posix.write(self.fd, memoryview(frame)[sent:])
            except OSError:
                posix._exit(1)


def encode(value):
    """JSON, by hand as long as nothing in it must be escaped: what a cell mostly says needs no `json`."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is str and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if kind is int:
        return str(value)
    if kind is dict:
        return "{" + ",".join([f"{encode(key)}:{encode(item)}" for key, item in value.items()]) + "}"
    return import_own("json").dumps(value, separators=(",", ":"))


def encode_done(cell_id, status, result, error):
    """The same of what somebody waits for, in one go."""
    head = f'"type":"done","id":{cell_id},"status":"{status}"'
    return f'{{{head},"result":{encode(result)},"error":{encode(error)}}}'


def encode_frame(message):
    body = (message if type(message) is str else encode(message)).encode("ascii")
    if len(body) > FRAME_LIMIT:
        raise ValueError(f"{len(body)} bytes when encoded, more than {FRAME_LIMIT}")
    return len(body).to_bytes(4, "big") + body


class NoInput(io.TextIOBase):
    """sys.stdin, and so input(): nobody is there to type, and an empty answer would only puzzle."""

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
        status = posix.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Stdio:
    """Descriptors 0, 1 and 2 and the text streams over them, whole at the beginning of each cell.

    They are put right behind the answer to a cell, when nobody waits; what happens after that is noticed if a thread of
    the guest's did it, or a descriptor is gone."""

    def __init__(self):
        self.spares = [(fd, move_high(fd), identify(fd)) for fd in (0, 1, 2)]
        self.streams = {}
        self.has_company = False
        sys.stdin = sys.__stdin__ = NoInput()

    def open(self):
        """Begins a cell: undoes what has been done since, by what those before it left running."""
        if self.has_company or not self.unblock():
            self.restore()
            self.unblock()

    def unblock(self):
        """Whether both were there."""
        are_open = True
        for fd in (1, 2):
            try:
                if fcntl.fcntl(fd, fcntl.F_GETFL) & posix.O_NONBLOCK:
                    posix.set_blocking(fd, True)  # by a child such as node, which shares the pipe
            except OSError:
                are_open = False
        return are_open

    def restore(self):
        """Gives the next cell what those before it have closed or replaced."""
        self.has_company = _count() > 0  # threads of the guest's, which may do it again
        for fd, spare, identity in self.spares:
            try:
                if identify(fd) != identity:
                    posix.dup2(spare, fd)
            except OSError:
                continue  # the guest closed the spare too, and now goes without
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
        for name, stream in self.streams.items():
            current = getattr(sys, name, None)
            for target in (stream,) if current is stream else (stream, current):
                try:
                    target.flush()
                except Exception:
                    continue  # closed, or the guest's own object
        if "ctypes" in sys.modules:
            try:
                sys.modules["ctypes"].pythonapi.fflush(None)
            except Exception:
                pass  # not this C library


class Kernel:
    """One namespace, one event loop, one cell at a time."""

    def __init__(self, fd):
        self.pid = posix.getpid()
        self.thread = get_ident()
        self.channel = Channel(fd)
        self.stdio = Stdio()
        self.cells = 0
        self.cell_id = None
        self.loop = None
        self.task = None  # the cell's, while it awaits
        self.is_cancelled = False
        self.bridge = None  # once it is needed
        # SIGINT: acted on while armed, put off while a frame is being sent, or read by the bridge.
        self.armed = self.sending = self.put_off = False
        self.has_site = "site" in sys.modules
        self.stdio.restore()
        self.heed_interrupts()
        main = type(sys)("__main__")
        main.__builtins__ = builtins
        sys.modules["__main__"] = main
        self.namespace = main.__dict__

    def run(self):
        version = "%d.%d.%d" % sys.version_info[:3]
        self.send({"type": "ready", "language": "python", "version": version})
        self.load_output()  # while the host makes up its mind
        if self.has_site:
            self.open_workspace()
        while True:
            early = self.channel.early
            try:
                cell_id, code = early.pop(0) if early else self.channel.receive()
                if cell_id >= PREFACE:
                    if cell_id == PREFACE:
                        self.take_preface(code)
                    continue  # or an answer that nobody waits for any more
                code = code.decode()
            except ValueError as refusal:
                self.send({"type": "rejected", "id": None, "message": str(refusal)})
                continue
            if not self.has_site and any(sign in code for sign in SIGNS_OF_SITE):
                self.run_site()
            self.send(self.execute(cell_id, code))
            # While the host is busy with the answer: it goes first, should it have no other processor.
            posix.sched_yield()
            if not self.has_site:
                self.run_site()
                compile("", "<nothing>", "exec")  # the next may need what `compile_first` goes without
            self.tidy_up()

    def load_output(self):
        self.output = import_output()
        self.gallery = self.output.Gallery(self.send_items)
        builtins.display = self.gallery.display
        sys.meta_path.insert(0, BridgeFinder(self.load_bridge))

    def load_bridge(self):
        with OWN_IMPORTS:  # any thread may be the first to need it
            if self.bridge is None:
                self.bridge = import_bridge(self.output.OWN_FILES).Bridge(self)
        return self.bridge

    def take_preface(self, preface):
        try:
            self.load_bridge().take_preface(preface)
        except Exception as failure:  # a cell may have broken what the bridge needs; the rest need not suffer
            raise ValueError(f"preface: {self.output.explain(failure)}") from None

    def run_site(self):
        """What the interpreter does before all else, unless it is told not to (-S)."""
        import site

        self.has_site = True
        site.main()
        # Interpreters that this one starts are told the same flags, and must not go without it.
        flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_"}
        sys.flags = type(sys.implementation)(**{**flags, "no_site": 0})
        self.open_workspace()

    def open_workspace(self):
        sys.path.insert(0, "")  # its modules are found, as at any prompt

    def heed_interrupts(self):
        """Whatever a cell has made of them."""
        _signal.signal(_signal.SIGINT, self.on_interrupt)

    def tidy_up(self):
        """Behind the answer, so that nobody waits for it."""
        self.stdio.restore()
        if self.channel.wait is None:
            self.channel.rest_well()
        self.output.forget(f"<cell {self.cells - KEPT_CELLS}>")

    def execute(self, cell_id, code):
        """Runs one cell; what is to be said of it."""
        self.stdio.open()
        self.cells += 1
        self.cell_id = cell_id
        try:
            self.armed = True
            status, result, error = self.attempt(code)
            self.armed = False
        except KeyboardInterrupt:  # struck while the cell's end was being described
            self.armed = False
            self.stdio.flush()
            status, result = "interrupted", None
            error = {"name": "KeyboardInterrupt", "message": "", "traceback": "KeyboardInterrupt\n"}
        if posix.getpid() != self.pid:
            self.end_child(status, error)
        self.cell_id = None
        self.heed_interrupts()
        if self.bridge is not None:
            self.bridge.end_cell()
        return encode_done(cell_id, status, result, error)

    def attempt(self, code):
        """Status, result and error of a cell. Guest code runs in all of it: a repr, a str, a flush."""
        status, result, error = "ok", None, None
        self.gallery.open()
        try:
            value = self.evaluate(code)
            if value is not None:
                self.namespace["_"] = value
                result = self.output.render_result(value)
                self.gallery.show(value)
        except BaseException as exc:
            status, error = self.output.describe(exc)
        if status in ("ok", "error"):
            self.gallery.show_figures()
        self.gallery.close()
        self.stdio.flush()
        return status, result, error

    def evaluate(self, code):
        """Runs a cell and returns the value of its last expression."""
        name = f"<cell {self.cells}>"
        self.output.remember(name, code)
        parts = (compile_first(code, name) if not self.has_site else None) or compile_cell(code, name)
        for part in parts:
            if part.co_flags & CO_COROUTINE:
                return self.run_on_loop(parts)
        value = None
        for part in parts:
            value = eval(part, self.namespace)
        return value

    async def await_parts(self, parts):
        """All of a cell in one task: what it starts before its first `await` needs the loop as well."""
        import asyncio

        value = None
        try:
            for part in parts:
                value = eval(part, self.namespace)
                if part.co_flags & CO_COROUTINE:
                    value = await value
        except asyncio.CancelledError as cancelled:
            if not self.is_cancelled:
                raise
            raise KeyboardInterrupt().with_traceback(cancelled.__traceback__) from None
        return value

    def run_on_loop(self, parts):
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        self.is_cancelled = False
        task = self.task = self.loop.create_task(self.await_parts(parts))
        try:
            while True:
                try:
                    return self.loop.run_until_complete(task)
                except KeyboardInterrupt:
                    if task.done():
                        raise
                    self.cancel_task()  # it struck another task; let the cell's own clean up
                except asyncio.CancelledError:
                    if not self.is_cancelled:
                        raise
                    raise KeyboardInterrupt from None  # cancelled before its first step
        finally:
            self.task = None

    def cancel_task(self):
        self.is_cancelled = True
        self.task.cancel()
        self.loop.call_soon_threadsafe(lambda: None)  # wakes the loop, should it wait for events

    def on_interrupt(self, _signum, frame):
        if not self.armed:
            return
        if self.sending:
            self.put_off = True
        elif self.task is not None and self.is_loops_own(frame):
            self.cancel_task()
        else:
            raise KeyboardInterrupt

    def is_loops_own(self, frame):
        """Whether nothing but the event loop was struck: an exception there would lose callbacks."""
        while frame.f_globals.get("__name__", "").partition(".")[0] in LOOP_PACKAGES:
            frame = frame.f_back
        return frame.f_code is Kernel.run_on_loop.__code__

    def send(self, message):
        """Sends one frame whole: an interrupt that arrives meanwhile strikes afterwards."""
        frame = encode_frame(message)
        if get_ident() != self.thread:  # signals strike the main thread only
            self.channel.send(frame)
            return
        self.sending = True
        self.channel.send(frame)
        self.sending = False
        if self.put_off:
            self.put_off = False
            raise KeyboardInterrupt

    def send_items(self, items):
        if posix.getpid() != self.pid:
            raise ValueError("only the kernel's own process can show things")
        if self.cell_id is None:
            raise ValueError("no cell is running")
        self.send({"type": "display", "id": self.cell_id, "items": items})

    def end_child(self, status, error):
        """Ends a forked child that ran out of its cell, as a script that ran out of its lines would."""
        if status != "ok":
            print(error["traceback"] or error["message"], end="", file=sys.stderr)
        self.stdio.flush()
        code = error["message"] if status == "exited" else ""
        posix._exit(int(code) & 0xFF if code.isdigit() else int(status != "ok"))


def compile_cell(code, name):
    """A cell as code objects to run one after another; the value of the last is that of the cell.

    The way over the syntax tree takes twice as long, so it is taken only where a cell must be parted."""
    flags = TOP_LEVEL_AWAIT
    if ends_in_assignment(code):
        return [compile(code, name, "exec", flags, dont_inherit=True)]
    if is_one_expression(code):
        try:
            return [compile(code, name, "eval", flags, dont_inherit=True)]
        except SyntaxError:
            pass  # or it is none, which is said below
    import _ast

    tree = compile(code, name, "exec", flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
    parts = []
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
        parts.append(compile(last, name, "eval", flags, dont_inherit=True))
    if tree.body:
        parts.insert(0, compile(tree, name, "exec", flags, dont_inherit=True))
    return parts


def compile_first(code, name):
    """The same for one plain call in a cell that somebody waits for while the interpreter starts: `compile` makes the
    types of the syntax tree when it is first called, which takes longer than all else here, and `eval` does not."""
    if code.count("(") != 1 or code[-1] != ")" or not is_one_expression(code):
        return None
    if any(mark in code for mark in ("\\", "[", "is")):
        return None  # it may be warned about, by the name of its cell
    try:
        made = eval(f"lambda: (\n{code}\n)", {}).__code__
    except Exception:
        return None  # no expression, or one that awaits
    # What would be a variable, a generator or a function of the lambda is for `compile`.
    has_functions = any(type(constant) is type(made) for constant in made.co_consts)
    if made.co_varnames or made.co_cellvars or made.co_flags & ~PLAIN or has_functions:
        return None
    names = {"co_name": "<module>", "co_filename": name, "co_firstlineno": made.co_firstlineno - 1}
    if sys.version_info >= (3, 11):
        names["co_qualname"] = "<module>"
    return [made.replace(**names)]


def is_one_expression(code):
    """Whether it looks like that: a call, or a name and what follows it."""
    return "\n" not in code and ";" not in code and code.partition("(")[0].partition(".")[0].isidentifier()


def ends_in_assignment(code):
    """Whether the last line is plainly `name = …` or `name += …`, and no part of anything that began before it:
    that would end in it, with a bracket or quotes."""
    line = code[code.rfind("\n") + 1 :]
    target, sign, value = line.partition("=")
    if not sign or value[:1] == "=" or not target.rstrip("+-*/%&|^@>< ").isidentifier():
        return False
    if target[-1] in "<>" and target[-2:] not in ("<<", ">>"):
        return False  # a comparison
    return MARKS.isdisjoint(line)


def import_own(name):
    """A module of the interpreter's own, whatever the workspace has of that name. From one thread at a time: another
    would find it half made, or take the path of this one for the guest's."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module
    with OWN_IMPORTS:
        path = sys.path
        sys.path = OWN_PATH
        try:
            return __import__(name)
        finally:
            sys.path = path


def import_beside(name):
    """A module from beside this file: `-I` leaves that directory out of the path."""
    path = sys.path
    sys.path = [__file__.rpartition("/")[0], *OWN_PATH]
    try:
        return __import__(name)
    finally:
        sys.path = path


def import_output():
    kernel_output = import_beside("kernel_output")
    kernel_output.OWN_FILES.add(Kernel.run.__code__.co_filename)
    kernel_output.import_own = import_own
    return kernel_output


def import_bridge(own_files):
    """mcp_bridge.py with its parts, whose frames no traceback shows from then on."""
    if load_later and "mcp_bridge" not in sys.modules:
        load_later()
    bridge = import_beside("mcp_bridge")
    for name in BRIDGE_PARTS:
        own_files.add(sys.modules[name].__file__)
    sys.modules["mcp_bridge_calls"].import_own = import_own
    return bridge


class BridgeFinder:
    """Finds `mcp`, `mcp.runtime` and `mcp.servers`, which the bridge makes."""

    def __init__(self, load_bridge):
        self.load_bridge = load_bridge

    def find_spec(self, name, path=None, target=None):
        if name == "mcp" or name.startswith(("mcp.runtime", "mcp.servers")):
            return self.load_bridge().find_spec(name)
        return None


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
        modules["ssl"].RAND_add(posix.urandom(32), 32.0)
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = posix.urandom(32)


def choose_plots():
    """Matplotlib draws without a screen, unless the session says otherwise."""
    if "os" in sys.modules:
        sys.modules["os"].environ.setdefault("MPLBACKEND", "Agg")
    elif b"MPLBACKEND" not in posix.environ:
        posix.environ[b"MPLBACKEND"] = b"Agg"  # of which `os` makes its own
        posix.putenv(b"MPLBACKEND", b"Agg")


def prepare(preload):
    """Imports modules ahead of the fork and returns the names of those that could not be imported."""
    import gc

    choose_plots()
    output = import_output()
    output.prepare()
    import_bridge(output.OWN_FILES).prepare()
    missing = []
    for name in ("asyncio", *preload):
        try:
            __import__(name)
        except Exception:
            missing.append(name)
    if "ssl" in sys.modules:
        # Has OpenSSL make its tables here, once, which it otherwise would in every child for the first randomness
        # that is asked of it: 3 MB each. The children reseed what comes of it.
        sys.modules["ssl"].RAND_status()
    gc.collect()
    gc.freeze()  # or each child's collector would touch, and so copy, every page
    return missing


def serve(fd):
    """Serves the host on `fd` until it hangs up. Never returns."""
    choose_plots()
    reseed()
    sys.argv = [""]
    Kernel(fd).run()


OWN_PATH = list(sys.path)
OWN_IMPORTS = RLock()
load_later = None  # where start.py has the bridge: loads it

if __name__ == "__main__":
    serve(int(sys.argv[1]))
