"""The Python kernel of a sandbox session: runs cells of code one after another in one namespace.

    python3 -I kernel.py FD          or, in a warm fork:  kernel_warmth.prepare([...]) … fork … serve(fd)

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
                    or "error", "interrupted", "exited" with {"name": …, "message": …, "traceback": …};
                    and "cut": true, only where not all of a value's or an error's text is shown
                    {"type": "rejected", "id": null, "message": "…"}, for a frame that is no request
                    {"type": "call", "id": 7, "call": 3, "method": …, "params": …} and, if its answer is not
                    waited for any more, {"type": "cancel", "id": 7, "call": 3}

What always holds: control data goes to FD only and output to descriptors 1 and 2 only; everything
printed through Python is flushed before `done`; a forked child never speaks on FD.

What it does not do: protect itself from the code that it runs. Guest code shares this process and can
break it, which ends this kernel and nothing else. The host trusts no frame; the sandbox is the wall.

Top-level `await` runs on one event loop that lives as long as the kernel but turns only while a cell
awaits: background tasks rest in between. A cell that only starts tasks runs on it too. SIGINT raises
KeyboardInterrupt in the cell that runs (in an `await` it cancels the cell's task, as asyncio.run does)
and is ignored between cells.

Its parts lie beside this file: frames in kernel_channel.py, the standard streams in kernel_stdio.py, what a cell's
values and errors look like in kernel_output.py. Calls, and all that cells can reach with them, are in mcp_bridge.py and
its parts, which are loaded when a preface comes or a cell imports `mcp`; only they read from the host while a cell runs.

A session may wait for this program to start, so it is made of what every interpreter has in it: `posix`
and `_signal` rather than `os` and `signal`, and no `json`, each of which takes longer to import than all
of this. What is needed seldom is imported when it is needed. With `-S`, `site` is run when a cell could
miss it, or else behind the first one.
"""

import _signal
import builtins
import posix
import sys
from _thread import get_ident

sys.path.insert(0, __file__.rpartition("/")[0])  # which `-I` leaves out
import kernel_output as output
from kernel_channel import PREFACE, Channel, encode_done, encode_frame
from kernel_compile import CO_COROUTINE, compile_cell, compile_first, is_forgotten, wants_loop
from kernel_compile import forget, remember, share_texts
from kernel_imports import OWN_IMPORTS, BridgeFinder, expect_modules, import_bridge
from kernel_stdio import Stdio
from kernel_warmth import choose_plots, reseed

del sys.path[0]

LOOP_PACKAGES = ("asyncio", "selectors", "_weakrefset")
KEPT_CELLS = 1000  # whose source a traceback can show

# Without one of these in it a cell has only the builtins that are there without `site`, and cannot tell.
SIGNS_OF_SITE = (
    *("import", "exec", "eval", "compile", "__", "getattr"),  # ways to the path and to modules
    *("exit", "quit", "copyright", "credits", "license", "help"),  # builtins that it makes
)


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
        self.context = {}  # the task's, when it ends
        self.last_words = ""  # of a forked child that exits
        self.is_cancelled = False
        self.bridge = None  # once it is needed
        # SIGINT: acted on while armed, put off while a frame is being sent, or read by the bridge, or a task begun.
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
        self.open_gallery()  # while the host makes up its mind
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

    def open_gallery(self):
        share_texts()
        self.gallery = output.Gallery(self.send_item)
        builtins.display = self.gallery.display
        sys.unraisablehook = output.tell_unraisable
        sys.meta_path.insert(0, BridgeFinder(self.load_bridge))
        self.stdio.go_before_children()

    def load_bridge(self):
        with OWN_IMPORTS:  # any thread may be the first to need it
            if self.bridge is None:
                self.bridge = import_bridge().Bridge(self)
        return self.bridge

    def take_preface(self, preface):
        try:
            self.load_bridge().take_preface(preface)
        except Exception as failure:  # a cell may have broken what the bridge needs; the rest need not suffer
            raise ValueError(f"preface: {output.explain(failure)}") from None

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
        """Has its modules found, as at any prompt, and those that `pip` installs for the user of the sandbox."""
        site, home = sys.modules["site"], sys.modules["os"].environ.get("HOME", "/")
        sys.path.insert(0, "")
        # By hand: what `site` does for it touches a quarter of a megabyte that all sessions share otherwise. A zygote has
        # another home.
        site.USER_BASE = f"{home}/.local"
        site.USER_SITE = place = "%s/lib/python%d.%d/site-packages" % (site.USER_BASE, *sys.version_info[:2])
        expect_modules(place)
        packages = (at for at, it in enumerate(sys.path) if it.endswith(("/site-packages", "/dist-packages")))
        before, rest = sys.path, sys.path[next(packages, len(sys.path)) :]
        del before[len(before) - len(rest) :]
        if posix.access(place, posix.F_OK):
            site.addsitedir(place)
        else:
            before.append(place)
        before += rest  # what the user has installed goes before what the system has

    def heed_interrupts(self):
        """Whatever a cell has made of them."""
        _signal.signal(_signal.SIGINT, self.on_interrupt)

    def tidy_up(self):
        """Behind the answer, so that nobody waits for it."""
        self.stdio.restore()
        if self.channel.wait is None:
            self.channel.rest_well()
        for told in (self.namespace, globals()):
            told.pop("__warningregistry__", None)  # or a warning would be shown once a session
        if "asyncio" in sys.modules:
            self.tidy_loop()
        forget(f"<cell {self.cells - KEPT_CELLS}>")

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
            self.stdio.flush_own()
            status, result = "interrupted", None
            error = {"name": "KeyboardInterrupt", "message": "", "traceback": "KeyboardInterrupt\n"}
        if posix.getpid() != self.pid:
            self.end_child(status, error)
        if status == "interrupted":
            self.gallery.drop_figures()
        self.cell_id = None
        self.heed_interrupts()
        if self.bridge is not None:
            self.bridge.end_cell()
        return encode_done(cell_id, status, result, error, output.was_cut)

    def attempt(self, code):
        """Status, result and error of a cell. Guest code runs in all of it: a repr, a str, a flush."""
        status, result, error = "ok", None, None
        self.gallery.open()
        try:
            values = [self.evaluate(code)]
            value = self.run_on_loop((), values) if is_forgotten(values) else values[0]
            if value is not None:
                builtins._ = value  # as at any prompt: a name of the guest's own goes before it
                result = output.render_result(value)
                self.gallery.show(value)
        except BaseException as exc:
            status, error = output.describe(exc)
            if status == "exited":
                self.last_words = output.exit_words(exc.code, error["message"])
        if status in ("ok", "error") or (status == "exited" and posix.getpid() == self.pid):
            self.gallery.show_figures()
        self.gallery.close()
        self.stdio.flush()
        return status, result, error

    def evaluate(self, code):
        """Runs a cell and returns the value of its last expression."""
        name = f"<cell {self.cells}>"
        remember(name, code)
        parts = (compile_first(code, name) if not self.has_site else None) or compile_cell(code, name)
        for part in parts:
            if part.co_flags & CO_COROUTINE:
                return self.run_on_loop(parts)
        if ("_task" in code or "_future" in code or "_loop" in code) and wants_loop(parts, self.namespace):
            return self.run_on_loop(parts)
        value = None
        for part in parts:
            value = eval(part, self.namespace)
        return value

    async def await_parts(self, parts, values):
        """All of a cell in one task: what it starts before its first `await` needs the loop as well."""
        import asyncio
        import contextvars

        try:
            for part in parts:
                values[0] = eval(part, self.namespace)
                if part.co_flags & CO_COROUTINE:
                    values[0] = await values[0]
            if is_forgotten(values):
                values[0] = await values[0]
        except asyncio.CancelledError as cancelled:
            if not self.is_cancelled:
                raise
            raise KeyboardInterrupt().with_traceback(cancelled.__traceback__) from None
        finally:
            self.context = contextvars.copy_context()
        return values[0]

    def keep_context(self):
        """Has what was set in the task's context hold for the cells behind it, which run in the thread's."""
        import contextvars

        here = contextvars.copy_context()
        for variable, value in self.context.items():
            if here.get(variable, here) is not value:
                variable.set(value)
        self.context = {}

    def open_loop(self):
        """Makes the kernel's event loop that of its thread."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def tidy_loop(self):
        """Gives the thread a loop again where it had one: `asyncio.run` takes it away, and a cell may close it."""
        try:
            thread = getattr(sys.modules["asyncio.events"]._event_loop_policy, "_local", None)
            if thread is None:
                return
            loop = thread._loop
            # Where none was ever set, asyncio makes one when it is asked to, or is not meant to.
            if getattr(thread, "_set_called", True) if loop is None else loop.is_closed():
                self.open_loop()
        except Exception:
            pass  # not the asyncio that it was

    def run_on_loop(self, parts, values=None):
        """The value of the last part, or what the coroutine in `values` leads to."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.open_loop()
        self.is_cancelled = False
        woken_before = None
        try:
            woken_before = self.begin_task(self.await_parts(parts, values or [None]))
            task = self.task
            if self.put_off:
                self.cancel_task()
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
            self.put_off = False
            self.wake_again(woken_before)
            self.keep_context()

    def begin_task(self, coroutine):
        """Makes it the cell's, all at once: an interrupt in between would leave a task that the next cell runs."""
        self.sending = True
        try:
            self.task = self.loop.create_task(coroutine)
            return self.wake_loop_by_signals()
        finally:
            self.sending = False

    def wake_loop_by_signals(self):
        """A signal that comes just before the loop waits would be heard when that wait ends. What was woken before."""
        waker = getattr(self.loop, "_csock", None)  # none in a loop of another make
        return waker and _signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def wake_again(self, woken_before):
        # Handlers that the guest has added to the loop are heard of in the same way.
        if woken_before is None or self.loop._signal_handlers:
            return
        try:
            _signal.set_wakeup_fd(woken_before)
        except (OSError, ValueError):  # it was closed meanwhile
            _signal.set_wakeup_fd(-1)

    def cancel_task(self):
        self.is_cancelled = True
        self.task.cancel()
        self.loop.call_soon_threadsafe(lambda: None)  # wakes the loop, should it wait for events

    def on_interrupt(self, _signum, frame):
        if not self.armed:
            return
        self.stdio.flush_own()  # a cell that does not heed this is killed next
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

    def send_item(self, item):
        if posix.getpid() != self.pid:
            raise ValueError("only the kernel's own process can show things")
        if self.cell_id is None:
            raise ValueError("no cell is running")
        self.send(f'{{"type":"display","id":{self.cell_id},"items":[{item}]}}')

    def end_child(self, status, error):
        """Ends a forked child that ran out of its cell, as a script that ran out of its lines would."""
        if status != "ok":
            print(self.last_words if status == "exited" else error["traceback"], end="", file=sys.stderr)
        self.stdio.flush()
        posix._exit(error["code"] if status == "exited" else int(status != "ok"))


def serve(fd):
    """Serves the host on `fd` until it hangs up. Never returns."""
    choose_plots()
    reseed()
    sys.argv = [""]
    Kernel(fd).run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
