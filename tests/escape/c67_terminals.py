"""Case 67: pseudo-terminals, whose number is limited for the whole host.

Attempted: to hold 96 of them, in one process and in four.
Contained: refused after 32, in all processes together.
Harmless: 96 of at least 3072, in children that end at once.
"""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

WANTED, ALLOWED, PROCESSES = 96, 32, 4


def collect(wanted):
    """Opens terminals until one is refused; returns their number, and the error."""
    held = []
    try:
        while len(held) < wanted:
            held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        return len(held), attempt.errno_name(error.errno)
    return len(held), "no refusal"


def spread():
    """Opens terminals in several processes, each of which holds its terminals until all have reported."""
    report, reports = os.pipe()
    wait, go = os.pipe()
    pids = []
    for _ in range(PROCESSES):
        pid = attempt.fork()
        if pid == 0:
            os.close(go)
            held, _ = collect(WANTED // PROCESSES)
            os.write(reports, bytes([held]))
            os.read(wait, 1)
            os._exit(0)
        pids.append(pid)
    held = sum(os.read(report, 1)[0] for _ in pids)
    os.close(go)
    for pid in pids:
        os.waitpid(pid, 0)
    return held, "all have tried"


def report(name, call):
    held, saw = attempt.in_child(call).value
    attempt.report(name, 0 < held <= ALLOWED, f"{saw}, {held} held, {ALLOWED} allowed")


def main():
    attempt.arguments(__doc__)
    report("pseudo-terminals of one process", lambda: collect(WANTED))
    report("pseudo-terminals of several processes", spread)


main()
