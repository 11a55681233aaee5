"""The standard streams of a cell's code, which it may close, replace or break without harm to the next."""

import fcntl
import io
import posix
import sys
from _thread import _count

from kernel_channel import move_high
from kernel_imports import ImportHook

NO_INPUT = "input() is not available in this sandbox: pass values in the code"


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
        self.pid = posix.getpid()
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
                except KeyboardInterrupt:
                    raise
                except BaseException:
                    continue  # closed, or the guest's own object
        if "ctypes" in sys.modules:
            try:
                sys.modules["ctypes"].pythonapi.fflush(None)
            except Exception:
                pass  # not this C library

    def flush_own(self):
        """The same without any code of the guest's, wherever that may be."""
        for stream in self.streams.values():
            try:
                stream.flush()
            except Exception:
                continue  # closed, or in the middle of a write

    def go_before_children(self):
        """From now on, what was printed until a child is started comes before what that prints, without a line's end
        too; and a forked child has none of it to print again."""
        posix.register_at_fork(before=self.flush_for_child)
        for name in ("system", "posix_spawn", "posix_spawnp"):
            self.lead(name, "posix", "os")
        ImportHook({"_posixsubprocess": lambda _: self.lead("fork_exec", "_posixsubprocess", "subprocess")}).install()

    def lead(self, name, home, user):
        """Has a function of the module `home` flush first, and so that of a module that has taken it from there."""
        start = getattr(sys.modules[home], name, None)
        if start is None:
            return  # not on this system

        def flush_and_start(*args, **kwargs):
            self.flush_for_child()
            return start(*args, **kwargs)

        for mark in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(flush_and_start, mark, getattr(start, mark))
        flush_and_start.__wrapped__ = start
        setattr(sys.modules[home], name, flush_and_start)
        for theirs in (name, f"_{name}"):
            if getattr(sys.modules.get(user), theirs, None) is start:
                setattr(sys.modules[user], theirs, flush_and_start)

    def flush_for_child(self):
        if posix.getpid() == self.pid:  # or a thread that is none in this process may hold the lock of a stream
            self.flush()
