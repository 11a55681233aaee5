"""Case 27: TIOCSTI, which inserts input into a terminal, and TIOCLINUX, which pastes into a console.

Attempted: both on a terminal of the script; also with bits set above the 32 that the kernel reads, which a filter that
compares 64 bits does not match.
Contained: refused (ENOTTY would mean that the request has reached the terminal).
Harmless: the terminal is a pseudo-terminal that the script has opened and that no program reads.
"""

import errno
import fcntl
import os
import sys
import termios

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

TIOCSTI, TIOCLINUX = 0x5412, 0x541C
HIGH_BIT = 1 << 32


def request(number, argument):
    """Makes a new terminal the controlling one of a new session, and sends it the request."""
    _, terminal = os.openpty()
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    attempt.syscall("ioctl", terminal, number, argument)


def main():
    attempt.arguments(__doc__)
    # The kernel itself returns EIO if dev.tty.legacy_tiocsti is 0.
    for name, number in (("TIOCSTI", TIOCSTI), ("TIOCSTI with a high bit", TIOCSTI | HIGH_BIT)):
        attempt.probe(name, lambda number=number: request(number, b"x"), also=[errno.EIO])
    # Subcode 6 only reads the shift state.
    for name, number in (("TIOCLINUX", TIOCLINUX), ("TIOCLINUX with a high bit", TIOCLINUX | HIGH_BIT)):
        attempt.probe(name, lambda number=number: request(number, b"\6"))


main()
