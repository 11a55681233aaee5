"""The standard streams of cells. A cell may close, replace or break them without effect on the next cell."""

import fcntl
import io
import posix
import sys
from _thread import _count

from kernel_channel import move_high
from kernel_imports import ImportHook

NO_INPUT = "input() is not available in this sandbox: pass values in the code"


class NoInput(io.TextIOBase):
    """sys.stdin, and so input(): an error says more than an empty line that no person has typed."""

    def read(self, *_):
        raise RuntimeError(NO_INPUT)

    readline = readlines = __next__ = read
    buffer = property(read)

    def fileno(self):
        return 0

    def close(self):
        """Does nothing: `exit()` closes stdin, and the kernel continues."""


def identify(fd):
    try:
        status = posix.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Stdio:
    """Descriptors 0, 1 and 2 and the text streams over them, intact at the start of each cell.

    They are restored after `done` has been sent, when no caller waits. They are checked again at the start of a cell if
    threads of the guest run, background tasks have run, or a descriptor is closed."""

    def __init__(self):
        self.spares = [(fd, move_high(fd), identify(fd)) for fd in (0, 1, 2)]
        self.streams = {}
        self.pid = posix.getpid()
        self.may_be_changed = False
        sys.stdin = sys.__stdin__ = NoInput()

    def start_cell(self):
        """Restores what threads, tasks and children of earlier cells have changed since the last cell."""
        if self.may_be_changed or not self.unblock():
            self.restore()
            self.unblock()

    def unblock(self):
        """Makes both output descriptors blocking; returns whether both are open."""
        are_open = True
        for fd in (1, 2):
            try:
                if fcntl.fcntl(fd, fcntl.F_GETFL) & posix.O_NONBLOCK:
                    posix.set_blocking(fd, True)  # a child such as node shares the pipe and may have changed it
            except OSError:
                are_open = False
        return are_open

    def restore(self):
        """Reopens what earlier cells have closed or replaced."""
        self.may_be_changed = _count() > 0  # which may do it again
        for fd, spare, identity in self.spares:
            try:
                if identify(fd) != identity:
                    posix.dup2(spare, fd)
            except OSError:
                continue  # the guest has closed the spare too
        for fd, name in ((1, "stdout"), (2, "stderr")):
            if not self.is_intact(name):
                # Line buffered, as on a terminal: in order with the output of subprocesses, and not lost by a kill.
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
                except KeyboardInterrupt:
                    raise
                except BaseException:
                    continue  # closed, or replaced by the guest
        if "ctypes" in sys.modules:
            try:
                sys.modules["ctypes"].pythonapi.fflush(None)
            except Exception:
                pass  # another C library

    def flush_kernel_streams(self):
        """Flushes without running guest code, so that it is safe at any point of a cell."""
        for stream in self.streams.values():
            try:
                stream.flush()
            except Exception:
                continue  # closed, or in the middle of a write

    def flush_before_children(self):
        """Flushes before each start of a child process from now on, so that incomplete lines come before the child's
        output, and a forked child does not print them again."""
        posix.register_at_fork(before=self.flush_for_child)
        for name in ("system", "posix_spawn", "posix_spawnp"):
            self.wrap_start(name, "posix", "os")
        wrap = lambda _: self.wrap_start("fork_exec", "_posixsubprocess", "subprocess")
        ImportHook({"_posixsubprocess": wrap}).install()

    def wrap_start(self, name, owner, importer):
        """Makes a function of the module `owner` flush first, also where the module `importer` has imported it."""
        start = getattr(sys.modules[owner], name, None)
        if start is None:
            return  # not available on this system

        def flush_and_start(*args, **kwargs):
            self.flush_for_child()
            return start(*args, **kwargs)

        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(flush_and_start, attribute, getattr(start, attribute))
        flush_and_start.__wrapped__ = start
        setattr(sys.modules[owner], name, flush_and_start)
        for imported in (name, f"_{name}"):
            if getattr(sys.modules.get(importer), imported, None) is start:
                setattr(sys.modules[importer], imported, flush_and_start)

    def flush_for_child(self):
        if posix.getpid() == self.pid:  # in a child, a thread that does not exist there may own the lock of a stream
            self.flush()
