"""Case 69: descriptors in flight, which the kernel counts for each uid of the host.

Attempted: to have so many descriptors in flight that another program of the same user can send none: in one message
after the other, and in many threads that wait for full queues (`--only`). The script prints one line when it has sent
all, and waits for the end of its input; meanwhile the harness sends a descriptor as the same user.
Contained: the harness succeeds.
Harmless: 16,000 references to /dev/null, which end with the process.
"""

import array
import os
import resource
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

MESSAGE = 253  # the kernel's limit for one message (SCM_MAX_FD)
MESSAGES = 60
BLOCKED_CHECKS = 10


def descriptors():
    null = os.open(os.devnull, os.O_RDONLY)
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * MESSAGE))]


def one_after_the_other():
    batch, held = descriptors(), []
    try:
        for _ in range(MESSAGES):
            held.append(socket.socketpair())
            held[-1][0].sendmsg([b"x"], batch)
    except OSError as error:
        return held, attempt.errno_name(error.errno)
    return held, "no refusal"


def waiting_senders():
    """Lets each thread attach its descriptors and wait for a full queue; then receives from all queues."""
    batch, held, threads = descriptors(), [], []

    def send(sender):
        try:
            sender.sendmsg([b"x"], batch)
        except OSError:
            pass

    for number in range(MESSAGES):
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(f"\0ringfence-{os.getpid()}-{number}")
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.connect(receiver.getsockname())
        sender.setblocking(False)
        try:
            while True:
                sender.send(b"x")
        except BlockingIOError:
            pass
        sender.setblocking(True)
        held.append((sender, receiver))
        threads.append(threading.Thread(target=send, args=(sender,), daemon=True))
        threads[-1].start()
    wait_until_blocked(threads)
    for _, receiver in held:
        for _ in range(8):
            receiver.recv(1)
    # In a sandbox, some threads never return: the sandbox limits what is in flight.
    wait_until_blocked(threads)
    return held, "all threads have sent or wait"


def wait_until_blocked(threads):
    """Waits until all threads have ended or sleep in the kernel, and have done so for a while.

    A thread may also sleep because it waits for the interpreter, which is free while this function sleeps.
    """
    checks = 0
    while checks < BLOCKED_CHECKS:
        time.sleep(0.02)
        checks = checks + 1 if all(map(is_blocked, threads)) else 0


def is_blocked(thread):
    try:
        with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
            return stat.read().rpartition(") ")[2].startswith("S")
    except OSError:
        return not thread.is_alive()


def main():
    ways = {"one-after-the-other": one_after_the_other, "waiting-senders": waiting_senders}
    args = attempt.arguments(__doc__, only=list(ways), one_only=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held, saw = ways[args.only]()
    print(f"{len(held)} messages, {saw}", flush=True)
    sys.stdin.read()


main()
