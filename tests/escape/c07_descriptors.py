"""Case 7: descriptors, inotify and epoll instances.

Attempted: to hold four times `--nofile` descriptors, also after raising the limit, as epoll instances, and in flight in
unix sockets; to use all inotify instances that the kernel allows the user.
Contained: EMFILE within the limit (in flight: 1.5 times the limit); less than half of the user's inotify instances.
Harmless: a few thousand descriptors in a child that ends at once.
"""

import array
import os
import resource
import select
import socket
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def collect(make, wanted):
    """Makes objects with a descriptor each until one is refused; returns their number, and the error."""
    made, saw = [], "no refusal"
    try:
        while len(made) < wanted:
            made.append(make())
    except OSError as error:
        saw = attempt.errno_name(error.errno)
    return len(made), saw


def open_null():
    return os.open(os.devnull, os.O_RDONLY)


def after_raising(wanted):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = max(hard, wanted + 16)
    for limits in ((raised, raised), (min(raised, hard), hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            break
        except (ValueError, OSError):
            pass
    return collect(open_null, wanted)


def in_flight(wanted):
    """Sends descriptors to unix sockets that do not receive; the descriptor table does not count those in flight."""
    null, pairs = open_null(), []
    batch = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 32))]

    def send():
        if not pairs or len(pairs) * 4 <= send.sent:
            pairs.append(socket.socketpair())
        pairs[-1][0].sendmsg([b"x"], batch, socket.MSG_DONTWAIT)
        send.sent += 1

    send.sent = 0
    sent, saw = collect(send, wanted // 32)
    return sent * 32, saw


def inotify_init():
    instance = attempt.libc.inotify_init1(0)
    if instance < 0:
        raise OSError(attempt.ctypes.get_errno(), "inotify_init1")
    return instance


def inotify_allowance():
    try:
        with open("/proc/sys/fs/inotify/max_user_instances") as file:
            return int(file.read())
    except OSError:
        return 128


def report(name, call, limit):
    count, saw = attempt.in_child(call).value
    attempt.report(name, count <= limit, f"{saw} after {count}, {limit} allowed")


def main():
    args = attempt.arguments(__doc__)
    limit, wanted = args.nofile, min(4 * args.nofile, 4096)
    report("descriptors", lambda: collect(open_null, wanted), limit)
    report("descriptors after raising the limit", lambda: after_raising(wanted), limit)
    report("epoll instances", lambda: collect(select.epoll, wanted), limit)
    report("descriptors in flight in unix sockets", lambda: in_flight(wanted), int(1.5 * limit))
    allowance = inotify_allowance()
    report("inotify instances", lambda: collect(inotify_init, min(allowance, 4096)), allowance // 2)


main()
