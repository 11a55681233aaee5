"""The Python kernel of a session: runs cells of code one after another in one namespace.

    python3 -I kernel.py FD          or, in a zygote:  kernel_fork.warm_up([...]) … fork … serve(fd)

FD is a socket to the host; kernel_channel.py documents the frames on it.

Invariants: control data goes only to FD and output only to descriptors 1 and 2; everything that is printed through
Python is flushed before `done`; a forked child never sends on FD.

The kernel does not protect itself from the code that it runs. Guest code shares this process and can break it, which
ends this kernel and nothing else: the host trusts no frame, and the sandbox isolates.

Top-level `await` uses one event loop that exists as long as the kernel. It runs while a cell awaits, and between cells if
there are background tasks (kernel_background.py). A cell that only starts tasks uses it too. SIGINT raises
KeyboardInterrupt in the running cell (during an `await` it cancels the cell's task, as asyncio.run does). Between cells it
is ignored, unless a background task keeps the next cell from running.

Only the bridge (mcp_bridge.py and its parts) reads from FD while a cell runs. It is loaded when a preface arrives or
a cell imports `mcp`.

A session may wait for this program to start, so it uses modules that every interpreter has built in: `posix` and
`_signal` instead of `os` and `signal`, and no `json`; each import of those takes longer than everything else here.
Modules that are rarely needed are imported when they are needed. With `-S`, `site` runs before the first cell that
could notice its absence, or after the first cell.
"""

import _signal
import builtins
import posix
import sys
from _thread import get_ident

sys.path.insert(0, __file__.rpartition("/")[0])  # `-I` leaves it out
import kernel_output as output
from kernel_background import Background
from kernel_cells import CO_COROUTINE, compile_cell, compile_plain_call, is_forgotten_coroutine, needs_event_loop
from kernel_cells import drop_source, install_source_hooks, store_source
from kernel_channel import HTML_BIT, PREFACE_NUMBER, PRELOAD_BIT, Channel, encode_done, encode_frame
from kernel_display import Display
from kernel_fork import reseed, set_plot_backend
from kernel_imports import IMPORT_LOCK, BridgeFinder, ImportHook, import_bridge
from kernel_paths import set_up_path
from kernel_stdio import Stdio

del sys.path[0]

LOOP_PACKAGES = ("asyncio", "selectors", "_weakrefset")
MAX_STORED_SOURCES = 1000  # cells whose source a traceback can show

# A cell without any of these cannot notice that `site` has not run.
SITE_MARKERS = (
    *("import", "exec", "eval", "compile", "__", "getattr"),  # give access to the path and to modules
    *("exit", "quit", "copyright", "credits", "license", "help"),  # builtins that `site` adds
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
        self.task = None  # of the cell, while it awaits
        self.background = Background(self)
        self.context = {}  # of the task, when it has ended
        self.exit_message = ""  # printed by a forked child that exits
        self.is_cancelled = False
        self.bridge = None  # created when it is needed
        # SIGINT is ignored unless a cell runs, and deferred during sends, reads of the bridge and starts of tasks.
        self.is_interruptible = self.defers_interrupt = self.has_deferred_interrupt = False
        self.has_site = "site" in sys.modules
        self.stdio.restore()
        self.handle_interrupts()
        main = type(sys)("__main__")
        main.__builtins__ = builtins
        sys.modules["__main__"] = main
        self.namespace = main.__dict__

    def run(self):
        version = "%d.%d.%d" % sys.version_info[:3]
        self.send({"type": "ready", "language": "python", "version": version})
        self.install_hooks()  # while the host prepares the first cell
        if self.has_site:
            self.add_workspace_path()
        while True:
            early = self.channel.early_frames
            try:
                if self.loop is not None and not early and not self.channel.received:
                    self.background.run()
                cell_id, code = early.pop(0) if early else self.channel.receive()
                if cell_id >= PREFACE_NUMBER:
                    if cell_id == PREFACE_NUMBER:
                        self.apply_preface(code)
                    continue  # a late response is dropped
                code = code.decode()
            except ValueError as refusal:
                self.send({"type": "rejected", "id": None, "message": str(refusal)})
                continue
            if cell_id & PRELOAD_BIT:
                self.preload(cell_id ^ PRELOAD_BIT, code.split())
                continue
            self.display.sends_copies = cell_id & HTML_BIT != 0
            cell_id &= ~HTML_BIT
            if not self.has_site and any(marker in code for marker in SITE_MARKERS):
                self.run_site()
            self.send(self.execute(cell_id, code))
            # The rest runs while the host handles the result, which goes first if there is only one processor.
            posix.sched_yield()
            if not self.has_site:
                self.run_site()
                compile("", "<nothing>", "exec")  # prepares what `compile_plain_call` avoids
            self.clean_up()

    def install_hooks(self):
        install_source_hooks()
        self.display = Display(self.send_item)
        ImportHook({**output.IMPORT_HOOKS, "matplotlib.pyplot": self.display.patch_pyplot}).install()
        builtins.display = self.display.display
        sys.unraisablehook = output.report_unraisable
        sys.meta_path.insert(0, BridgeFinder(self.load_bridge))
        self.stdio.flush_before_children()

    def load_bridge(self):
        with IMPORT_LOCK:  # several threads may need it at the same time
            if self.bridge is None:
                self.bridge = import_bridge().Bridge(self)
        return self.bridge

    def preload(self, cell_id, modules):
        """Imports modules that cells will probably need, before a session uses this kernel. It is not a cell: nothing of
        it is visible later. SIGINT is ignored meanwhile."""
        if not self.has_site:
            self.run_site()
        for name in modules:
            try:
                __import__(name)
            except Exception:
                pass  # not installed, or broken: the cell that imports it gets the error
        self.stdio.flush()
        self.send(encode_done(cell_id, "ok", None, None, False))
        self.clean_up()

    def apply_preface(self, preface):
        try:
            self.load_bridge().apply_preface(preface)
        except Exception as failure:  # a cell may have broken something that only the bridge needs
            raise ValueError(f"preface cannot be applied: {output.summarize(failure)}") from None

    def run_site(self):
        """Runs the part of the interpreter's start that `-S` leaves out."""
        import site

        self.has_site = True
        site.main()
        # Interpreters that this one starts get the same flags, and must run `site`.
        flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_"}
        sys.flags = type(sys.implementation)(**{**flags, "no_site": 0})
        self.add_workspace_path()

    def add_workspace_path(self):
        """Makes modules of the working directory and of the virtual environment importable."""
        set_up_path(sys.modules["site"], sys.modules["os"].environ)

    def handle_interrupts(self):
        """Installs the handler, which a cell may have replaced."""
        _signal.signal(_signal.SIGINT, self.on_interrupt)

    def clean_up(self):
        """Restores the state for the next cell. Runs after `done`, when no caller waits."""
        self.stdio.restore()
        if self.channel.poll is None:
            self.channel.use_poll()
        for namespace in (self.namespace, globals()):
            namespace.pop("__warningregistry__", None)  # otherwise a warning is shown only once a session
        if "asyncio" in sys.modules:
            self.restore_loop()
        drop_source(f"<cell {self.cells - MAX_STORED_SOURCES}>")

    def execute(self, cell_id, code):
        """Runs one cell and returns its `done` message."""
        self.stdio.start_cell()
        self.cells += 1
        self.cell_id = cell_id
        try:
            self.is_interruptible = True
            status, result, error = self.run_cell(code)
            self.is_interruptible = False
        except KeyboardInterrupt:  # raised while the result was described
            self.is_interruptible = False
            self.stdio.flush_kernel_streams()
            status, result = "interrupted", None
            error = {"name": "KeyboardInterrupt", "message": "", "traceback": "KeyboardInterrupt\n"}
        if posix.getpid() != self.pid:
            self.exit_child(status, error)
        if status == "interrupted":
            self.display.drop_figures()
        self.cell_id = None
        self.handle_interrupts()
        if self.bridge is not None:
            self.bridge.end_cell()
        return encode_done(cell_id, status, result, error, output.was_truncated)

    def run_cell(self, code):
        """Returns status, result and error of a cell. Each step may run guest code: a repr, a str, a flush."""
        status, result, error = "ok", None, None
        output.start_cell()
        self.display.start_cell()
        try:
            refusal = self.background.take_refusal()
            if refusal is not None:
                raise refusal
            values = [self.evaluate(code)]
            value = self.run_on_loop((), values) if is_forgotten_coroutine(values) else values[0]
            if value is not None:
                builtins._ = value  # as at any prompt: a global `_` of the guest takes precedence
                result = output.render_result(value)
                self.display.show(value, result)
        except BaseException as exc:
            status, error = output.describe_exception(exc)
            if status == "exited":
                self.exit_message = output.exit_message(exc.code, error["message"])
        if status in ("ok", "error") or (status == "exited" and posix.getpid() == self.pid):
            self.display.show_figures()
        self.display.end_cell()
        self.stdio.flush()
        return status, result, error

    def evaluate(self, code):
        """Runs a cell and returns the value of its last expression."""
        name = f"<cell {self.cells}>"
        store_source(name, code)
        parts = (compile_plain_call(code, name) if not self.has_site else None) or compile_cell(code, name)
        for part in parts:
            if part.co_flags & CO_COROUTINE:
                return self.run_on_loop(parts)
        if ("_task" in code or "_future" in code or "_loop" in code) and needs_event_loop(parts, self.namespace):
            return self.run_on_loop(parts)
        value = None
        for part in parts:
            value = eval(part, self.namespace)
        return value

    async def await_parts(self, parts, values):
        """Runs all parts of a cell in one task: tasks that it starts before its first `await` need the loop as well."""
        import asyncio
        import contextvars

        try:
            for part in parts:
                values[0] = eval(part, self.namespace)
                if part.co_flags & CO_COROUTINE:
                    values[0] = await values[0]
            if is_forgotten_coroutine(values):
                values[0] = await values[0]
        except asyncio.CancelledError as cancelled:
            if not self.is_cancelled:
                raise
            raise KeyboardInterrupt().with_traceback(cancelled.__traceback__) from None
        finally:
            self.context = contextvars.copy_context()
        return values[0]

    def apply_context(self):
        """Copies context variables from the cell's task to the thread, where later cells run."""
        import contextvars

        here = contextvars.copy_context()
        for variable, value in self.context.items():
            if here.get(variable, here) is not value:
                variable.set(value)
        self.context = {}

    def set_loop(self):
        """Makes the kernel's event loop the current one of this thread."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def restore_loop(self):
        """Sets the thread's event loop again if it had one: `asyncio.run` removes it, and a cell may close it."""
        try:
            thread = getattr(sys.modules["asyncio.events"]._event_loop_policy, "_local", None)
            if thread is None:
                return
            loop = thread._loop
            # If none was ever set, it is left to asyncio whether it creates one.
            if getattr(thread, "_set_called", True) if loop is None else loop.is_closed():
                self.set_loop()
        except Exception:
            pass  # the guest has changed asyncio

    def run_on_loop(self, parts, values=None):
        """Returns the value of the last part, or the result of the coroutine in `values`."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.set_loop()
        self.is_cancelled = False
        wakeup_fd_before = None
        try:
            wakeup_fd_before = self.start_task(self.await_parts(parts, values or [None]))
            task = self.task
            if self.has_deferred_interrupt:
                self.cancel_task()
            while True:
                try:
                    return self.loop.run_until_complete(task)
                except KeyboardInterrupt:
                    if task.done():
                        raise
                    self.cancel_task()  # raised in another task: let the cell's own task clean up
                except asyncio.CancelledError:
                    if not self.is_cancelled:
                        raise
                    raise KeyboardInterrupt from None  # cancelled before its first step
        finally:
            self.task = None
            self.background.suspect = None
            self.has_deferred_interrupt = False
            self.restore_wakeup_fd(wakeup_fd_before)
            self.apply_context()

    def start_task(self, coroutine):
        """Creates the cell's task. An interrupt during this would leave a task behind that the next cell runs, so it is
        deferred."""
        self.defers_interrupt = True
        try:
            self.task = self.loop.create_task(coroutine)
            return self.set_wakeup_fd()
        finally:
            self.defers_interrupt = False

    def set_wakeup_fd(self):
        """Makes signals wake the event loop, and returns the descriptor that they woke before. Otherwise a signal that
        arrives just before the loop waits is handled only after that wait."""
        waker = getattr(self.loop, "_csock", None)  # other implementations of loops have none
        return waker and _signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def restore_wakeup_fd(self, fd):
        # Signal handlers that the guest has added to the loop need the descriptor too.
        if fd is None or self.loop._signal_handlers:
            return
        try:
            _signal.set_wakeup_fd(fd)
        except (OSError, ValueError):  # closed meanwhile
            _signal.set_wakeup_fd(-1)

    def cancel_task(self):
        self.is_cancelled = True
        self.task.cancel()
        self.loop.call_soon_threadsafe(lambda: None)  # wakes the loop if it waits for events

    def on_interrupt(self, _signum, frame):
        if not self.is_interruptible:
            if self.background.is_running and self.channel.has_input():
                self.background.interrupt()
            return
        self.stdio.flush_kernel_streams()  # a cell that ignores the interrupt is killed next
        if self.defers_interrupt:
            self.has_deferred_interrupt = True
        elif self.task is not None and (self.is_in_event_loop(frame) or self.is_in_other_task()):
            self.cancel_task()
            self.background.interrupt()
        else:
            raise KeyboardInterrupt

    def is_in_other_task(self):
        """Returns whether the loop runs a background task at the moment."""
        try:
            return sys.modules["asyncio"].current_task(self.loop) is not self.task
        except Exception:
            return False  # the guest has changed asyncio

    def is_in_event_loop(self, frame):
        """Returns whether the signal has interrupted the event loop itself, where an exception would lose callbacks."""
        while frame.f_globals.get("__name__", "").partition(".")[0] in LOOP_PACKAGES:
            frame = frame.f_back
        return frame.f_code is Kernel.run_on_loop.__code__

    def send(self, message):
        """Sends one frame completely: an interrupt that arrives meanwhile is raised afterwards."""
        frame = encode_frame(message)
        if get_ident() != self.thread:  # signal handlers run only in the main thread
            self.channel.send(frame)
            return
        self.defers_interrupt = True
        self.channel.send(frame)
        self.defers_interrupt = False
        if self.has_deferred_interrupt:
            self.has_deferred_interrupt = False
            raise KeyboardInterrupt

    def send_item(self, item):
        if posix.getpid() != self.pid:
            raise ValueError("a forked process cannot display values")
        if self.cell_id is None:
            raise ValueError("no cell is running")
        self.send(f'{{"type":"display","id":{self.cell_id},"items":[{item}]}}')

    def exit_child(self, status, error):
        """Ends a forked child at the end of its cell, as a script ends after its last line."""
        if status != "ok":
            print(self.exit_message if status == "exited" else error["traceback"], end="", file=sys.stderr)
        self.stdio.flush()
        posix._exit(error["code"] if status == "exited" else int(status != "ok"))


def serve(fd):
    """Runs cells of the host until it closes `fd`. Never returns."""
    set_plot_backend()
    reseed()
    sys.argv = [""]
    Kernel(fd).run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
