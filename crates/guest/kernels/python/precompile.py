"""Compiles the Python kernel into the first frame for bootstrap.py. Compiling would take longer than everything else
that a cold kernel does before its first cell.

Runs on the host, with the interpreter of the sessions:

    python3 -I -S -c SOURCE <SOURCES

SOURCES are names and sources of modules, separated by zero bytes. Prints the version of the interpreter, a newline, and
four parts: loader.py; the code objects of the kernel's modules, without docstrings; those of the bridge (mcp_…),
compressed, because most sessions never load it, and with the docstrings that `help()` shows; and SOURCES, compressed,
for an interpreter of another version.
"""

import marshal
import sys
import zlib

DIRECTORY = "/run/ringfence"  # as in loader.py

text = sys.stdin.buffer.read()
fields = text.decode().split("\0")
kernel, bridge = {}, {}
for name, source in zip(fields[::2], fields[1::2]):
    part, optimize = (bridge, 1) if name.startswith("mcp_") else (kernel, 2)
    part[name] = compile(source, f"{DIRECTORY}/{name}.py", "exec", dont_inherit=True, optimize=optimize)
loader = marshal.dumps(kernel.pop("loader"))
parts = loader, marshal.dumps(kernel), zlib.compress(marshal.dumps(bridge), 9), zlib.compress(text, 9)
# Version 2 of the format can be read by every interpreter.
sys.stdout.buffer.write(repr(sys.version).encode() + b"\n" + marshal.dumps(parts, 2))
