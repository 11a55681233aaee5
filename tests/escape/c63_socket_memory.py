"""Case 63: kernel memory of sockets outside of the memory limit.

Attempted: to hold 1.5 times `--memory` in unread answers of netlink (`--only netlink`), in unread UDP datagrams
(`udp`), in those of sockets that have lost their port (`udp-unbound`), or in UDP datagrams that are not sent yet
(`udp-corked`), over several processes, with larger buffers.
Contained: the sockets hold no more than half of the limit, whether by errors or by the end of a process.
Harmless: at most twice the limit, held for a second; only loopback sockets of the script's own.
"""

import os
import signal
import socket
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

PROCESSES = 8
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
    # each datagram takes its size rounded up to a power of two
    for _ in range(256):
        before = held(end)
        end.sendto(b"\1" * 30000, end.getsockname())
        if held(end) == before:
            break
    return end


def udp_unbound():
    """Disconnected, a UDP socket loses its port and keeps what it has received."""
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
    """What the kernel has allocated for what the socket received and has to send."""
    received, _, sent, *_ = struct.unpack("9I", end.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
    return received + sent


# kind: (attempt, what makes a socket that holds memory)
KINDS = {
    "netlink": ("unread answers of netlink", netlink),
    "udp": ("unread UDP datagrams", udp),
    "udp-unbound": ("unread UDP datagrams of sockets without a port", udp_unbound),
    "udp-corked": ("UDP datagrams that are not sent", udp_corked),
}


def hold(make, share, writer):
    kept, total, saw = [], 0, "held to the end"
    try:
        while total < share:
            kept.append(make())
            total += held(kept[-1])
    except OSError as error:
        saw = attempt.errno_name(error.errno)
    os.write(writer, f"{total} {saw} after {len(kept)} sockets\n".encode())
    time.sleep(attempt.SECONDS)
    os._exit(0)


def bomb(make, target):
    """Returns the bytes that all processes hold together, and what stopped the last one."""
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
    time.sleep(1)
    # a process that was killed for its memory holds nothing
    alive = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
    attempt.kill_and_reap(alive)
    if len(alive) < len(pids):
        return 0, "a holder was killed"
    return total, saw


def main():
    args = attempt.arguments(__doc__, only=list(KINDS), one_only=True)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    name, make = KINDS[args.only]
    total, saw = bomb(make, args.memory * 3 // 2)
    attempt.report(name, total <= args.memory // 2, f"{total // attempt.MIB} MiB in all; {saw}")


main()
