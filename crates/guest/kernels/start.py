# Starts the kernel of a session that has no warm interpreter: python3 -I -S -c SOURCE FD
# The kernel comes over FD, its socket, as the first frame: what it was compiled for, a line's end, and the rest, as
# compile.py has it. Where it is not compiled, the line is empty and the rest is text: names and sources.
# Somebody waits while this is compiled, so it does no more than take the frame apart; load.py is in there.
import marshal
import posix
import sys


def read(size):
    part = posix.read(fd, size) or posix._exit(0)
    return part if len(part) == size else part + read(size - len(part))


fd = int(sys.argv[1])
made_for, _, rest = read(int.from_bytes(read(4), "big")).partition(b"\n")
if made_for == repr(sys.version).encode():
    program, *parts, _ = marshal.loads(rest)
    program = marshal.loads(program)
else:
    if made_for:  # by another: one has taken the place of the other
        import zlib

        rest = zlib.decompress(marshal.loads(rest)[-1])
    words, parts = rest.decode().split("\0"), None
    sources = dict(zip(words[::2], words[1::2]))
    program = sources.pop("load")
exec(program)
