"""Case 13: zombie floods, killing PID 1, an orphan that holds stdout.

`--only zombies`: to keep four times `--pids` zombies; to leave the init twice `--pids` orphans to reap.
Contained: fewer than `--pids` zombies; nearly all orphans are reaped within a second. Outside, the orphans are left
to an init of the script's own that does not reap, in a PID namespace of its own.
`--only init`: to end, stop or crash PID 1 by signals. Contained: it is still there. Outside, the target is a
stand-in that the script forked: the host's PID 1 is never signalled.
`--only orphan`: to leave a child that holds stdout. Contained: it is ended with the command, and so cannot report
that it held stdout to its own end.
Harmless: bounded counts, all reaped; the orphan ends by itself after 10 s.
"""

import os
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

HOLD_SECONDS = 10


def zombies(args):
    kept, saw = [], "no refusal"
    try:
        while len(kept) < min(600, 4 * args.pids):
            pid = attempt.fork()
            if pid == 0:
                os._exit(0)
            kept.append(pid)
    except OSError as error:
        saw = attempt.errno_name(error.errno)
    for pid in kept:
        os.waitpid(pid, 0)
    attempt.report("zombies kept", len(kept) < args.pids, f"{saw} after {len(kept)}")


def orphan():
    """Makes an orphan that exits at once; returns its pid."""
    reader, writer = os.pipe()
    parent = attempt.fork()
    if parent == 0:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.write(writer, b"%d" % child)
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        pid = int(pipe.read() or -1)
    os.waitpid(parent, 0)
    return pid


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def orphans_left(count):
    made = []
    for _ in range(count):
        try:
            made.append(orphan())
        except (OSError, ValueError):
            break
        time.sleep(0.005)
    time.sleep(1)
    return len(made), sum(exists(pid) for pid in made if pid > 0), made.count(-1)


def under_lazy_init(call):
    attempt.syscall("unshare", attempt.CLONE_NEWPID)
    # the first child is the namespace's init and waits for one child only
    return attempt.in_child(lambda: attempt.in_child(call).value).value


def orphans(args):
    def call():
        return orphans_left(2 * args.pids)

    outcome = attempt.in_child(call if attempt.SANDBOXED else lambda: under_lazy_init(call))
    made, left, refused = outcome.value
    contained = made == 2 * args.pids and refused == 0 and left < made // 10
    attempt.report("orphans left to the init", contained, f"{left} of {made} not reaped, {refused} forks refused")


def kill_init():
    """Sends signals to PID 1, outside to a stand-in, and looks whether it is still there."""
    target = 1 if attempt.SANDBOXED else attempt.fork()
    if target == 0:
        time.sleep(HOLD_SECONDS)
        os._exit(0)
    refused = set()
    for signum in (signal.SIGSTOP, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        try:
            os.kill(target, signum)
        except OSError as error:
            refused.add(attempt.errno_name(error.errno))
    try:
        attempt.syscall("pidfd_send_signal", attempt.syscall("pidfd_open", target, 0), signal.SIGKILL, 0, 0)
    except OSError as error:
        refused.add(attempt.errno_name(error.errno))
    time.sleep(0.3)
    if target != 1:
        os.waitpid(target, 0)
    alive = exists(target)
    saw = ("still there" if alive else "the stand-in died") + f" ({', '.join(sorted(refused)) or 'signals accepted'})"
    attempt.report("killing the init", alive, saw)


def hold_stdout():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HOLD_SECONDS + 1)
        time.sleep(HOLD_SECONDS)
        attempt.report("orphan that holds stdout", False, "held it to its own end")
        os._exit(0)
    attempt.left_to_harness("orphan that holds stdout", f"pid {pid} holds stdout for {HOLD_SECONDS} s")


def main():
    args = attempt.arguments(__doc__, only=["zombies", "init", "orphan"])
    if args.only in (None, "zombies"):
        zombies(args)
        orphans(args)
    if args.only in (None, "init"):
        kill_init()
    if args.only in (None, "orphan"):
        hold_stdout()


main()
