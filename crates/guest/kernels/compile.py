"""Compiles the kernel for start.py, once: that takes longer than all else that it does before its first cell. Runs on
the host, with the interpreter that sessions have.

    python3 -I -S -c SOURCE <TEXT

TEXT is names and sources, with zeros between them. Prints what interpreter it is for, a line's end, and four parts:
load.py; the code objects of the kernel's modules, without their texts for readers; those of the bridge (mcp_…), which is
loaded later if at all, and whose texts `help()` shows, packed; and TEXT, packed, for an interpreter that is another.
"""

import marshal
import sys
import zlib

DIRECTORY = "/run/ringfence"  # as in load.py

text = sys.stdin.buffer.read()
words = text.decode().split("\0")
now, later = {}, {}
for name, source in zip(words[::2], words[1::2]):
    part, optimize = (later, 1) if name.startswith("mcp_") else (now, 2)
    part[name] = compile(source, f"{DIRECTORY}/{name}.py", "exec", dont_inherit=True, optimize=optimize)
program = marshal.dumps(now.pop("load"))
parts = program, marshal.dumps(now), zlib.compress(marshal.dumps(later), 9), zlib.compress(text, 9)
# Of a version that every interpreter reads.
sys.stdout.buffer.write(repr(sys.version).encode() + b"\n" + marshal.dumps(parts, 2))
