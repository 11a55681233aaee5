"""Background tasks: runs the event loop between cells, and interrupts a task that blocks it.

The loop runs between cells only if it has something to do; otherwise the kernel waits in `poll`, which is faster. It
watches the socket meanwhile, so it ends with the next frame and uses no processor time while all tasks wait.

An interrupt is for the cell, and background tasks continue. Only a task that blocks the loop is interrupted, since the
cell could not end or not even begin; a cell that could not begin is not run.
"""

import _signal
import posix
import sys
from _thread import allocate_lock, start_new_thread

from kernel_channel import move_high

GRACE_S = 0.2  # a task that runs for longer after an interrupt blocks the loop
MAX_STOPS = 100  # times that tasks may stop the loop before it waits for the next cell

BLOCKED = (
    "a background task blocked the event loop, so this code did not run; "
    "hint: await asyncio.sleep() in tasks, and run what blocks with asyncio.to_thread()"
)


class Background:
    def __init__(self, kernel):
        self.kernel = kernel
        self.fd = None  # a duplicate of the socket: the bridge adds and removes the socket itself in the same loop
        self.is_running = False
        self.suspect = None  # identifies an interrupt until the loop shows that no task blocks it
        self.refusal = None  # the interrupt that ended a task before the next cell could begin

    def has_work(self):
        """Returns whether the loop has tasks, callbacks or descriptors to watch."""
        loop = self.kernel.loop
        try:
            if loop.is_closed():
                return False
            if getattr(loop, "_ready", None) or getattr(loop, "_scheduled", None):
                return True
            selector = getattr(loop, "_selector", None)  # other implementations of loops have none
            if selector is not None and len(selector._fd_to_key) > 1:  # one descriptor is the loop's own
                return True
            tasks = sys.modules["asyncio.tasks"]
            known = getattr(tasks, "_scheduled_tasks", getattr(tasks, "_all_tasks", None))
            if known is not None and not known.data:  # the usual case; `all_tasks` takes longer than a short cell
                return False
            return bool(tasks.all_tasks(loop))
        except Exception:
            return False  # the guest has changed asyncio

    def run(self):
        """Runs the loop, if it has work, until a frame arrives or the host closes the socket."""
        for _ in range(MAX_STOPS):
            if not self.has_work() or not self.run_loop() or self.kernel.channel.has_input():
                break

    def run_loop(self):
        """Runs the loop until it is stopped. Returns whether it may run again."""
        loop = self.kernel.loop
        try:
            self.watch_socket(loop)
            self.is_running = True
            loop.run_forever()
        except KeyboardInterrupt as interrupt:
            if self.kernel.channel.has_input():
                self.refusal = interrupt
        except SystemExit:
            pass  # ends the task and not the kernel
        except BaseException:
            return False  # the guest has broken the loop
        finally:
            self.is_running = False
            self.suspect = None
            if posix.getpid() != self.kernel.pid:
                posix._exit(0)
            self.unwatch_socket(loop)
            self.kernel.handle_interrupts()
            self.kernel.stdio.may_be_changed = True
        return True

    def watch_socket(self, loop):
        if self.fd is None:
            self.fd = move_high(self.kernel.channel.fd)
            posix.register_at_fork(after_in_child=self.leave_child)
        loop.add_reader(self.fd, loop.stop)

    def unwatch_socket(self, loop):
        try:
            loop.remove_reader(self.fd)
        except Exception:
            pass  # the guest has closed the loop

    def leave_child(self):
        """Ends the loop in a forked child: the tasks belong to the kernel."""
        try:
            posix.close(self.fd)
        except OSError:
            pass
        if self.is_running:
            self.kernel.loop.stop()

    def interrupt(self):
        """Raises KeyboardInterrupt in what the loop runs, if it runs it for longer than a moment."""
        if self.suspect is None:
            self.suspect = suspect = object()
            try:
                self.kernel.loop.call_soon_threadsafe(self.acquit, suspect)
                start_new_thread(self.interrupt_again, (suspect,))
                return
            except RuntimeError:
                pass  # the loop is closed, or no thread can be started
        self.suspect = None
        raise KeyboardInterrupt

    def acquit(self, suspect):
        if self.suspect is suspect:
            self.suspect = None

    def interrupt_again(self, suspect):
        pause = allocate_lock()
        pause.acquire()
        pause.acquire(True, GRACE_S)
        if self.suspect is suspect:
            _signal.pthread_kill(self.kernel.thread, _signal.SIGINT)

    def take_refusal(self):
        """Returns the exception for a cell that could not begin; None for any other cell."""
        refusal, self.refusal = self.refusal, None
        return refusal and KeyboardInterrupt(BLOCKED).with_traceback(refusal.__traceback__)
