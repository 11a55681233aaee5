# Starts the kernel of a session without a warm interpreter: python3 -I -S -c SOURCE FD
# The first frame on the socket FD is the kernel, as precompile.py writes it: a version, a newline, compiled parts.
# If it is not compiled, the version is empty, and names and sources follow.
# A call waits while this file is compiled, so it only reads the frame; the rest is in loader.py.
import marshal
import posix
import sys


def read(size):
    part = posix.read(fd, size) or posix._exit(0)
    return part if len(part) == size else part + read(size - len(part))


fd = int(sys.argv[1])
version, _, rest = read(int.from_bytes(read(4), "big")).partition(b"\n")
if version == repr(sys.version).encode():
    loader, *parts, _ = marshal.loads(rest)
    loader = marshal.loads(loader)
else:
    if version:  # compiled by another interpreter, which was replaced since
        import zlib

        rest = zlib.decompress(marshal.loads(rest)[-1])
    fields, parts = rest.decode().split("\0"), None
    sources = dict(zip(fields[::2], fields[1::2]))
    loader = sources.pop("loader")
exec(loader)
