"""Case 63: kernel memory of sockets, which is not part of the memory limit.

Attempted: to hold 1.5 times `--memory` in unread responses of netlink (`--only netlink`), in unread UDP datagrams
(`udp`), in those of sockets that have lost their port (`udp-unbound`), or in UDP datagrams that are not sent yet
(`udp-corked`), in several processes, with larger buffers.
Contained: the sockets hold no more than half of the limit, whether because of errors or because a process dies.
Harmless: at most twice the limit, for about a second; only loopback sockets of the script.
"""

import os
import signal
import socket
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

PROCESSES = 8
WATCHDOG_SECONDS = 1  # a watchdog in a sandbox acts within this time
SO_MEMINFO = 55
UDP_CORK = 1
# RTM_GETLINK for the interface with index 1: struct nlmsghdr and struct ifinfomsg
GET_LINK = struct.pack("IHHII", 32, 18, 1, 1, 0) + struct.pack("BxHiII", 0, 0, 1, 0, 0)


def netlink():
    end = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    enlarge(end)
    for _ in range(8000):
        try:
            end.send(GET_LINK)
        except OSError:
            break
    return end


def udp():
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enlarge(end)
    end.bind(("127.0.0.1", 0))
    # The memory of a datagram is its size rounded up to a power of two.
    for _ in range(256):
        before = held(end)
        end.sendto(b"\1" * 30000, end.getsockname())
        if held(end) == before:
            break
    return end


def udp_unbound():
    """A UDP socket that is disconnected loses its port and keeps the datagrams that it has received."""
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind(("127.0.0.1", 0))
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enlarge(end)
    end.connect(peer.getsockname())
    for _ in range(256):
        before = held(end)
        peer.sendto(b"\1" * 30000, end.getsockname())
        if held(end) == before:
            break
    attempt.libc.connect(end.fileno(), b"\0" * 16, 16)  # AF_UNSPEC
    return end


def udp_corked():
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.connect(("127.0.0.1", 9))
    end.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
    end.send(b"\1" * 30000)
    end.send(b"\1" * 30000)
    return end


def enlarge(end):
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * attempt.MIB)


def held(end):
    """Returns the memory of the kernel for received data and for data to be sent."""
    received, _, sent, *_ = struct.unpack("9I", end.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
    return received + sent


# kind: (attempt, function that makes a socket with memory)
KINDS = {
    "netlink": ("unread responses of netlink", netlink),
    "udp": ("unread UDP datagrams", udp),
    "udp-unbound": ("unread UDP datagrams of sockets without a port", udp_unbound),
    "udp-corked": ("UDP datagrams that are not sent", udp_corked),
}


def hold(make, share, writer):
    sockets, total, saw = [], 0, "held to the end"
    try:
        while total < share:
            sockets.append(make())
            total += held(sockets[-1])
    except OSError as error:
        saw = attempt.errno_name(error.errno)
    os.write(writer, f"{total} {saw} after {len(sockets)} sockets\n".encode())
    attempt.sleep_until_killed()


def bomb(make, target):
    """Returns the bytes that all processes hold together, and the reason why the last one stopped."""
    reader, writer = os.pipe()
    pids = []
    for _ in range(PROCESSES):
        pid = attempt.fork()
        if pid == 0:
            hold(make, target // PROCESSES, writer)
        pids.append(pid)
    os.close(writer)
    total, saw = 0, ""
    with open(reader) as lines:
        for _ in pids:
            line = lines.readline()
            if not line:
                break
            count, saw = line.rstrip().split(" ", 1)
            total += int(count)
    alive = list(pids)

    def has_death():
        alive[:] = [pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0] == 0]
        return len(alive) < len(pids)

    # A process that was killed for its memory holds nothing.
    if attempt.SANDBOXED:
        attempt.wait_until(has_death, WATCHDOG_SECONDS)
    is_killed = has_death()
    attempt.kill_and_reap(alive)
    return (0, "a holder was killed") if is_killed else (total, saw)


def main():
    args = attempt.arguments(__doc__, only=list(KINDS), one_only=True)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    name, make = KINDS[args.only]
    total, saw = bomb(make, args.memory * 3 // 2)
    attempt.report(name, total <= args.memory // 2, f"{total // attempt.MIB} MiB in all; {saw}")


main()
