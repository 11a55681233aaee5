"""Case 1: fork, clone3 and thread bombs.

Attempted: to have four times the allowed number of processes (or threads) at once.
Contained: fewer than `--pids` are alive at once.
Harmless: at most 600, which only sleep, end with their parent and are killed at the end.
"""

import ctypes
import errno
import os
import signal
import struct
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def bomb(name, start, wanted, limit):
    """Starts processes with `start`, which returns 0 in the new one, until it is refused or there are enough."""
    started, saw = [], "no refusal"
    try:
        while len(started) < wanted:
            pid = start()
            if pid == 0:
                attempt.bind_to_parent()
                attempt.sleep_until_killed()
            started.append(pid)
    except OSError as error:
        saw = attempt.errno_name(error.errno)
    alive = sum(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in started)
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    for pid in started:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
    attempt.report(name, alive < limit, f"{saw} after {len(started)}, {alive} alive at once")


def raw_clone():
    return attempt.syscall("clone", signal.SIGCHLD, 0, 0, 0, 0)


def raw_clone3():
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
    fields = struct.pack("8Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    return attempt.syscall("clone3", ctypes.create_string_buffer(fields, 64), 64)


def thread_bomb(name, wanted, limit):
    threading.stack_size(64 << 10)
    stop, started, saw = threading.Event(), [], "no refusal"
    try:
        while len(started) < wanted:
            thread = threading.Thread(target=stop.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        saw = attempt.errno_name(errno.EAGAIN)
    alive = sum(thread.is_alive() for thread in started)
    stop.set()
    for thread in started:
        thread.join()
    attempt.report(name, alive < limit, f"{saw} after {len(started)}, {alive} alive at once")


def main():
    args = attempt.arguments(__doc__)
    wanted = min(600, 4 * args.pids)
    bomb("fork bomb", os.fork, wanted, args.pids)
    bomb("raw clone bomb", raw_clone, wanted, args.pids)
    bomb("clone3 bomb", raw_clone3, wanted, args.pids)
    thread_bomb("thread bomb", wanted, args.pids)


main()
