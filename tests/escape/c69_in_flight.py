"""Case 69: descriptors in flight, which the kernel counts for each uid of the host.

Attempted: to have so many of them that another program of the same user can pass none: sent one message after the
other, and by many threads that wait in front of full queues (`--only`). The script holds what it has until its input
ends, and writes one line when it has done its worst; the harness then tries to pass a descriptor as the same user.
Contained: the other program can.
Harmless: 16,000 references to /dev/null, gone with the process.
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
    """Lets each thread attach its descriptors and wait for a full queue; then makes room in all queues."""
    batch, held = descriptors(), []

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
        threading.Thread(target=send, args=(sender,), daemon=True).start()
    time.sleep(0.2)
    for _, receiver in held:
        for _ in range(8):
            receiver.recv(1)
    time.sleep(0.2)
    return held, "all have tried"


def main():
    ways = {"one-after-the-other": one_after_the_other, "waiting-senders": waiting_senders}
    args = attempt.arguments(__doc__, only=list(ways), one_only=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held, saw = ways[args.only]()
    print(f"{len(held)} messages, {saw}", flush=True)
    sys.stdin.read()


main()
