"""Cases 9 and 10: output floods.

Attempted: to write `--bytes N` of `--kind` (plain, line, nul, ansi, utf8) to descriptor `--fd` (1 or 2), as fast as it
is read.
Contained: the harness checks the memory of ringfence and the output that it forwards. There is no report.
Harmless: the script only writes, and ends after `--bytes`, when the reader closes the pipe, or after `--seconds`.
"""

import argparse
import os
import signal

BLOCKS = {
    "plain": b"all work and no play makes a dull log line, over and over again\n" * 1024,
    "line": b"x" * 65536,
    "nul": b"\0" * 65536,
    "ansi": b"\x1b[2J\x1b[31m\x1b]0;title\x07\x1b[6n" * 3072,
    "utf8": b"\xc3\x28\xff\xfe\xed\xa0\x80\xf8\x88" * 7281,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=BLOCKS, default="plain")
    parser.add_argument("--bytes", type=int, default=10_000_000_000)
    parser.add_argument("--fd", type=int, choices=(1, 2), default=1)
    parser.add_argument("--seconds", type=int, default=240)
    args = parser.parse_args()
    signal.alarm(args.seconds)
    block, left = memoryview(BLOCKS[args.kind]), args.bytes
    try:
        while left > 0:
            left -= os.write(args.fd, block[: min(left, len(block))])
    except BrokenPipeError:
        pass


main()
