# Starts the kernel of a session that has no warm interpreter: python3 -I -S -c SOURCE FD
# The kernel comes over FD, its socket, as the first frame: what it was compiled for, a line's end, and the rest.
# Compiling it takes longer than all else that it does before its first cell, so the host does that once (compile.py),
# with the interpreter that sessions have. Until it has, the line is empty and the rest is text: names and sources.
import posix
import sys

DIRECTORY = "/run/ringfence"  # of which tracebacks would speak; there is none


def read(size):
    parts = []
    while size > 0:
        part = posix.read(fd, size)
        if not part:
            posix._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def load(name, code):
    module = sys.modules[name] = type(sys)(name)
    module.__file__ = code.co_filename
    exec(code, module.__dict__)


def compile_all(sources):
    return {name: compile(source, f"{DIRECTORY}/{name}.py", "exec") for name, source in sources.items()}


def load_later():
    """Loads the bridge."""
    if later is None:
        codes = compile_all(sources)
    else:
        import marshal

        codes = marshal.loads(imports.import_own("zlib").decompress(later))
    for name, code in codes.items():
        load(name, code)


fd = int(sys.argv[1])
made_for, _, rest = read(int.from_bytes(read(4), "big")).partition(b"\n")
if made_for == repr(sys.version).encode():
    import marshal

    now, later, _ = marshal.loads(rest)
    codes = marshal.loads(now)
else:
    if made_for:  # by another: one has taken the place of the other
        import marshal
        import zlib

        rest = zlib.decompress(marshal.loads(rest)[2])
    words = rest.decode().split("\0")
    sources, later = dict(zip(words[::2], words[1::2])), None
    codes = compile_all({name: sources.pop(name) for name in words[::2] if name.startswith("kernel")})
for name, code in codes.items():  # each needs those before it at most
    load(name, code)
imports = sys.modules["kernel_imports"]
imports.load_later = load_later
sys.modules.pop("kernel").serve(fd)  # the guest may have one of its own
