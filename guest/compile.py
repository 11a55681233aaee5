"""Compiles the kernel for start.py. Runs on the host, with the interpreter that sessions have.

    python3 -I -S -c SOURCE NAME TEXT [NAME TEXT …]

Prints three lines: what interpreter it is for; the code objects of the kernel's modules, without their texts for
readers; and those of the bridge (mcp_…), which is loaded later if at all, and whose texts `help()` shows, packed.
"""

import binascii
import marshal
import sys
import zlib

DIRECTORY = "/run/ringfence"  # where a session has the sources, for tracebacks

given = sys.argv[1:]
now, later = {}, {}
for name, text in zip(given[::2], given[1::2]):
    part, optimize = (later, 1) if name.startswith("mcp_") else (now, 2)
    part[name] = compile(text, f"{DIRECTORY}/{name}.py", "exec", dont_inherit=True, optimize=optimize)
parts = marshal.dumps(now), zlib.compress(marshal.dumps(later), 9)
lines = [binascii.b2a_base64(part, newline=False).decode() for part in parts]
print(repr(sys.version), *lines, sep="\n", end="")
