"""Case 12: daemons that outlive their command.

Attempted: to leave two processes behind: one that detaches itself (double fork, setsid) and ignores all signals that it
can, and one that forks and exits every 50 ms, so that any list of processes is out of date.
Both have the name `--token` (15 bytes, see /proc/PID/comm) and open and lock `--marker`, if it is given.
Contained: the harness checks that soon after the end of the command neither is left and the lock is free.
Harmless: they only sleep; the harness kills them, and they end by themselves after a minute.
"""

import fcntl
import os
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

LIFE_SECONDS = 60


def detach(args, ready, life):
    """Forks twice, leaves the session and the streams of the command, and calls `life` in the daemon."""
    if os.fork() > 0:
        return os.wait()
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    for signum in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}:
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIFE_SECONDS)
    attempt.libc.prctl(attempt.PR_SET_NAME, args.token.encode()[:15], 0, 0, 0)
    if args.marker:
        fcntl.flock(os.open(args.marker, os.O_RDWR | os.O_NONBLOCK), fcntl.LOCK_SH)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.write(ready, b"%d\n" % os.getpid())
    os.close(ready)
    life()
    os._exit(0)


def sleep():
    time.sleep(LIFE_SECONDS)


def hop():
    end = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < end:
        signal.alarm(LIFE_SECONDS)
        time.sleep(0.05)
        try:
            if os.fork() > 0:
                os._exit(0)
        except OSError:
            pass


def main():
    args = attempt.arguments(__doc__)
    for name, life in (("daemon that ignores signals", sleep), ("daemon that forks away", hop)):
        reader, writer = os.pipe()
        detach(args, writer, life)
        os.close(writer)
        with open(reader) as pipe:
            pid = pipe.readline().strip()
        attempt.left_to_harness(name, f"left behind as {args.token}, first pid {pid}")


main()
