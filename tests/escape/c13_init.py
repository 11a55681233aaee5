"""Case 13: zombie floods, killing PID 1, an orphan that holds stdout.

`--only zombies`: to have four times `--pids` zombies; to leave twice `--pids` orphans for the init to reap.
Contained: fewer than `--pids` zombies; nearly all orphans are reaped soon. A bare run leaves the orphans to an init in a
new PID namespace that does not reap.
`--only init`: to end, stop or crash PID 1 with signals. Contained: it is still alive. The target of a bare run is a
child of the script; the init of the host receives no signal.
`--only orphan`: to leave a child that has stdout open. Contained: it is killed with the command, and so cannot report
that it outlived the command.
Harmless: bounded numbers, all reaped; the orphan ends by itself.
"""

import os
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

REAP_SECONDS = 5
SIGNAL_SECONDS = 0.2  # after this time a signal has had its effect
ORPHAN_SECONDS = 10  # ringfence kills orphans far earlier


def zombies(args):
    made, saw = [], "no refusal"
    try:
        while len(made) < min(600, 4 * args.pids):
            pid = attempt.fork()
            if pid == 0:
                os._exit(0)
            made.append(pid)
    except OSError as error:
        saw = attempt.errno_name(error.errno)
    for pid in made:
        os.waitpid(pid, 0)
    attempt.report("zombies kept", len(made) < args.pids, f"{saw} after {len(made)}")


def orphan():
    """Makes an orphan that exits at once; returns its pid, or -1 if its fork was refused."""
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

    def left():
        return sum(exists(pid) for pid in made if pid > 0)

    # The init of a bare run never reaps, so there is nothing to wait for.
    attempt.wait_until(lambda: left() < len(made) // 10, REAP_SECONDS if attempt.SANDBOXED else 0)
    return len(made), left(), made.count(-1)


def under_lazy_init(call):
    attempt.syscall("unshare", attempt.CLONE_NEWPID)
    # The first child is the init of the namespace, and waits for one child only.
    return attempt.in_child(lambda: attempt.in_child(call).value).value


def orphans(args):
    def call():
        return orphans_left(2 * args.pids)

    outcome = attempt.in_child(call if attempt.SANDBOXED else lambda: under_lazy_init(call))
    made, left, refused = outcome.value
    contained = made == 2 * args.pids and refused == 0 and left < made // 10
    attempt.report("orphans left to the init", contained, f"{left} of {made} not reaped, {refused} forks refused")


def kill_init():
    """Sends signals to PID 1, in a bare run to a child, and checks whether it is still alive."""
    target = 1 if attempt.SANDBOXED else attempt.fork()
    if target == 0:
        attempt.sleep_until_killed()
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
    if target == 1:
        time.sleep(SIGNAL_SECONDS)
    else:
        os.waitpid(target, 0)
    alive = exists(target)
    saw = ("still there" if alive else "the child died") + f" ({', '.join(sorted(refused)) or 'signals accepted'})"
    attempt.report("killing the init", alive, saw)


def hold_stdout():
    script = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(attempt.DEADLINE_SECONDS)
        if attempt.SANDBOXED:
            time.sleep(ORPHAN_SECONDS)
        else:
            attempt.wait_until(lambda: os.getppid() != script, attempt.DEADLINE_SECONDS)
        attempt.report("orphan that holds stdout", False, "outlived the command")
        os._exit(0)
    attempt.left_to_harness("orphan that holds stdout", f"pid {pid} has stdout open")


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
