"""Case 8: real-time scheduling, negative nice, and more CPU than allowed.

Attempted: SCHED_FIFO, SCHED_DEADLINE, nice -5 and real-time I/O priority; to use all CPUs for a second, three times,
after widening the affinity, with eight processes for each CPU.
Contained: the priorities are refused; the CPU time used is at most 1.5 times `--cpus` times the wall time.
Harmless: the priorities are those of a child that ends at once; the burners end by themselves.
A bare run burns for short times until it has exceeded the limit, at a higher priority than the load of the host.
"""

import os
import resource
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

BURN_SECONDS, TRIES = 1, 3
BARE_BURN_SECONDS, BARE_TRIES, BARE_NICE = 0.3, 100, -10
SCHED_DEADLINE = 6


def fifo():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def deadline():
    # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
    fields = struct.pack("IIQiIQQQ", 48, SCHED_DEADLINE, 0, 0, 0, 10_000_000, 100_000_000, 100_000_000)
    attempt.syscall("sched_setattr", 0, fields, 0)


def io_priority():
    attempt.syscall("ioprio_set", 1, 0, 1 << 13)


def burn(seconds):
    os.setsid()  # a new scheduling group, if the kernel groups processes by session
    try:
        os.sched_setaffinity(0, range(os.cpu_count()))
    except OSError:
        pass
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    os._exit(0)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpus_burnt(processes, seconds):
    """Returns the average number of CPUs that these processes use together."""
    before, start = cpu_seconds(), time.monotonic()
    for _ in range(processes):
        try:
            if attempt.fork() == 0:
                burn(seconds)
        except OSError:
            break
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
    return (cpu_seconds() - before) / (time.monotonic() - start)


def main():
    args = attempt.arguments(__doc__)
    attempt.probe("SCHED_FIFO", fifo)
    attempt.probe("SCHED_DEADLINE", deadline)
    attempt.probe("nice -5", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
    attempt.probe("real-time I/O priority", io_priority)
    name, cpus = "more CPUs than allowed", os.cpu_count()
    if not attempt.SANDBOXED and cpus <= 1.5 * args.cpus:
        attempt.unsupported(name, f"this host has only {cpus} CPU")
        return
    tries, seconds = (TRIES, BURN_SECONDS) if attempt.SANDBOXED else (BARE_TRIES, BARE_BURN_SECONDS)
    if not attempt.SANDBOXED:
        os.nice(BARE_NICE)
    burnt = 0
    for _ in range(tries):
        burnt = max(burnt, cpus_burnt(min(32, 8 * cpus), seconds))
        if burnt > 1.5 * args.cpus:
            break
    attempt.report(name, burnt <= 1.5 * args.cpus, f"{burnt:.2f} CPUs used, {args.cpus:g} allowed")


main()
