"""Case 2: memory bombs with every kind of memory that the kernel accounts in a different way.

Attempted: to hold four times `--memory`, in steps of 16 MiB with pauses in which a watchdog can act. `--only KIND`
selects the kind: anon, anon-spread, shared-anon, files-tmp, files-shm, memfd, sysv-shm, pipes, sockets, tcp-sockets.
Contained: never more than 1.5 times the limit is held at once, whether because of an error or because the holder dies.
ringfence may also end the whole sandbox: then there is no report, and the harness checks the message of ringfence.
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
WATCHDOG_SECONDS = 1  # a watchdog in a sandbox acts within this time
BALLAST = 8 * attempt.MIB  # makes a holder larger than this script, so that the OOM killer selects the holder
F_SETPIPE_SZ = 1031
IPC_PRIVATE, IPC_CREAT, IPC_RMID = 0, 0o1000, 0
RECORD = struct.Struct("qq")  # bytes held; errno that stopped the holder, 0 when it has enough
NOT_STOPPED = -1
ALLOCATED = []  # keeps allocations alive after the generator that made them


def anonymous(flags=mmap.MAP_PRIVATE):
    while True:
        block = mmap.mmap(-1, STEP, flags=flags | mmap.MAP_ANONYMOUS)
        block[::mmap.PAGESIZE] = b"\1" * (STEP // mmap.PAGESIZE)
        ALLOCATED.append(block)
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
            pass  # above the soft limit of the user pipes are small, but still cost memory
        yield write_until_full(lambda block: os.write(writer, block))


def sockets():
    while True:
        pair = socket.socketpair()
        ALLOCATED.append(pair)
        held = 0
        for end in pair:
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * attempt.MIB)
            held += write_until_full(end.send)
        yield held


def tcp_sockets():
    """Connections over loopback, whose buffers the kernel enlarges by itself."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    while True:
        near = socket.create_connection(listener.getsockname())
        pair = (near, listener.accept()[0])
        ALLOCATED.append(pair)
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


# kind: (attempt, generator of allocations, whether one process may hold all of it)
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
    """A child that allocates memory and keeps it. It reports how much it holds, and what stopped it."""

    def __init__(self, source, share):
        self.reader, writer = os.pipe()
        self.held, self.stopped_by, self.killed_by = 0, None, None
        self.pid = attempt.fork()
        if self.pid == 0:
            hold(source, share, writer)
        os.close(writer)

    def progress(self):
        """Yields after each allocation, until the holder has stopped or died."""
        with open(self.reader, "rb", buffering=0) as pipe:
            while line := pipe.read(RECORD.size):
                self.held, error = RECORD.unpack(line)
                yield
                if error != NOT_STOPPED:
                    self.stopped_by = error
                    return
        self.check(0)

    def check(self, options=os.WNOHANG):
        """Checks whether the holder has died; then it holds nothing."""
        if self.killed_by is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.held = 0
                self.killed_by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "its end"


def hold(source, share, writer):
    ALLOCATED.append(bytearray(b"\1" * BALLAST))
    held = since_pause = error = 0
    try:
        for added in source():
            held += added
            os.write(writer, RECORD.pack(held, NOT_STOPPED))
            since_pause += added
            if since_pause >= STEP:
                since_pause = 0
                time.sleep(0.005)
            if held >= share:
                break
    except MemoryError:
        error = errno.ENOMEM
    except OSError as refused:
        error = refused.errno
    os.write(writer, RECORD.pack(held, error))
    attempt.sleep_until_killed()


def bomb(source, alone, limit):
    """Returns the most bytes that living holders held at once, and what ended the attempt."""
    target = min(4 * limit, 1536 * attempt.MIB)
    share = target if alone else limit * 3 // 4
    holders, most = [], 0

    def held_now():
        for holder in holders:
            holder.check()
        return sum(holder.held for holder in holders)

    def first_death():
        return next((holder.killed_by for holder in holders if holder.killed_by), None)

    try:
        while held_now() < target and len(holders) < MAX_HOLDERS:
            holder = Holder(source, min(share, target - held_now()))
            holders.append(holder)
            for _ in holder.progress():
                most = max(most, held_now())
            if first_death() or holder.stopped_by not in (0, errno.EMFILE):
                return most, first_death() or attempt.errno_name(holder.stopped_by)
        if attempt.SANDBOXED:
            attempt.wait_until(lambda: held_now() < target, WATCHDOG_SECONDS)
        return most, first_death() or "held to the end"
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
