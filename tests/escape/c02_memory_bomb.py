"""Case 2: memory bombs of every kind that the kernel counts in its own way.

Attempted: to hold four times `--memory`, touched in steps of 16 MiB with pauses that leave a watchdog its chance.
`--only KIND` must say which: anon, anon-spread, shared-anon, files-tmp, files-shm, memfd, sysv-shm, pipes, sockets,
tcp-sockets.
Contained: no more than 1.5 times the limit was held at once, whether by an error or by the death of the holder.
The runner may also end the whole sandbox: then there is no line, and the harness judges the runner's own message.
Harmless: at most 1.5 GiB; the holders are killed at the end; files are unlinked before they are filled.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import struct
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

STEP = 16 * attempt.MIB
MAX_HOLDERS = 40
HOLD_SECONDS = 1
BALLAST = 8 * attempt.MIB  # makes a holder larger than its reporter in the eyes of the kernel's OOM killer
F_SETPIPE_SZ = 1031
IPC_PRIVATE, IPC_CREAT, IPC_RMID = 0, 0o1000, 0
RECORD = struct.Struct("qq")  # bytes held; errno that stopped the holder, 0 when it has enough
GOING_ON = -1
KEPT = []  # outlives the generator that filled it


def anonymous(flags=mmap.MAP_PRIVATE):
    while True:
        block = mmap.mmap(-1, STEP, flags=flags | mmap.MAP_ANONYMOUS)
        block[::mmap.PAGESIZE] = b"\1" * (STEP // mmap.PAGESIZE)
        KEPT.append(block)
        yield STEP


def shared_anonymous():
    return anonymous(mmap.MAP_SHARED)


def file_in(directory):
    file, path = tempfile.mkstemp(prefix="escape-", dir=directory)
    os.unlink(path)
    return fill(file)


def memfd():
    return fill(os.memfd_create("escape"))


def fill(file):
    while True:
        yield os.write(file, b"\1" * STEP)


def sysv_segments():
    libc = attempt.libc
    libc.shmat.restype = ctypes.c_void_p
    while True:
        segment = attempt.syscall("shmget", IPC_PRIVATE, STEP, IPC_CREAT | 0o600)
        address = libc.shmat(segment, None, 0)
        attempt.syscall("shmctl", segment, IPC_RMID, 0)
        ctypes.memset(address, 1, STEP)
        yield STEP


def pipes():
    while True:
        _, writer = os.pipe2(os.O_NONBLOCK)
        try:
            fcntl.fcntl(writer, F_SETPIPE_SZ, attempt.MIB)
        except PermissionError:
            pass  # over the user's soft limit a pipe is small, and still costs
        yield write_until_full(lambda block: os.write(writer, block))


def sockets():
    while True:
        pair = socket.socketpair()
        KEPT.append(pair)
        held = 0
        for end in pair:
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * attempt.MIB)
            held += write_until_full(end.send)
        yield held


def tcp_sockets():
    """Connections to oneself over loopback, whose buffers the kernel enlarges by itself."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    while True:
        near = socket.create_connection(listener.getsockname())
        pair = (near, listener.accept()[0])
        KEPT.append(pair)
        held = 0
        for end in pair:
            end.setblocking(False)
            held += write_until_full(end.send)
        yield held


def write_until_full(write):
    written, block = 0, b"\1" * 32768
    try:
        while True:
            written += write(block)
    except BlockingIOError:
        return written


# kind: (attempt, what is held, whether one process alone may hold all of it)
KINDS = {
    "anon": ("anonymous memory", anonymous, True),
    "anon-spread": ("anonymous memory spread over processes", anonymous, False),
    "shared-anon": ("shared anonymous memory", shared_anonymous, True),
    "files-tmp": ("files in /tmp", lambda: file_in("/tmp"), True),
    "files-shm": ("files in /dev/shm", lambda: file_in("/dev/shm"), True),
    "memfd": ("memfd", memfd, True),
    "sysv-shm": ("System V shared memory", sysv_segments, True),
    "pipes": ("pipe buffers", pipes, False),
    "sockets": ("unix socket buffers", sockets, False),
    "tcp-sockets": ("TCP socket buffers", tcp_sockets, False),
}


class Holder:
    """A child that takes memory and keeps it; it says how much, and at the end what stopped it."""

    def __init__(self, source, share):
        self.reader, writer = os.pipe()
        self.held, self.stopped_by, self.killed_by = 0, None, None
        self.pid = attempt.fork()
        if self.pid == 0:
            hold(source, share, writer)
        os.close(writer)

    def progress(self):
        """Yields whenever more is held, until the holder has stopped or died."""
        with open(self.reader, "rb", buffering=0) as pipe:
            while line := pipe.read(RECORD.size):
                self.held, error = RECORD.unpack(line)
                yield
                if error != GOING_ON:
                    self.stopped_by = error
                    return
        self.look(0)

    def look(self, options=os.WNOHANG):
        """Notices the death of the holder, after which it holds nothing."""
        if self.killed_by is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.held = 0
                self.killed_by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "its end"


def hold(source, share, writer):
    KEPT.append(bytearray(b"\1" * BALLAST))
    held = unslept = error = 0
    try:
        for added in source():
            held += added
            os.write(writer, RECORD.pack(held, GOING_ON))
            unslept += added
            if unslept >= STEP:
                unslept = 0
                time.sleep(0.005)
            if held >= share:
                break
    except MemoryError:
        error = errno.ENOMEM
    except OSError as refused:
        error = refused.errno
    os.write(writer, RECORD.pack(held, error))
    time.sleep(attempt.SECONDS)
    os._exit(0)


def bomb(source, alone, limit):
    """Returns the most bytes that were held at once by holders alive together, and what ended it."""
    target = min(4 * limit, 1536 * attempt.MIB)
    share = target if alone else limit * 3 // 4
    holders, most = [], 0

    def held_now():
        for holder in holders:
            holder.look()
        return sum(holder.held for holder in holders)

    try:
        while held_now() < target and len(holders) < MAX_HOLDERS:
            holder = Holder(source, min(share, target - held_now()))
            holders.append(holder)
            for _ in holder.progress():
                most = max(most, held_now())
            killed = [each.killed_by for each in holders if each.killed_by]
            if killed or holder.stopped_by not in (0, errno.EMFILE):
                return most, killed[0] if killed else attempt.errno_name(holder.stopped_by)
        time.sleep(HOLD_SECONDS)
        return most, "held to the end"
    except OSError as error:
        return most, f"{attempt.errno_name(error.errno)} at fork"
    finally:
        attempt.kill_and_reap([holder.pid for holder in holders if not holder.killed_by])


def main():
    args = attempt.arguments(__doc__, only=list(KINDS), one_only=True)
    name, source, alone = KINDS[args.only]
    held, saw = bomb(source, alone, args.memory)
    attempt.report(name, held <= 1.5 * args.memory, f"{saw}, {held // attempt.MIB} MiB at most")


if __name__ == "__main__":
    main()
