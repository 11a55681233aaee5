"""Compiles the kernel for start.py. Runs on the host, with the interpreter that sessions have.

    python3 -I -S -c SOURCE NAME TEXT [NAME TEXT …]

Prints what interpreter it is for, and the code objects of these modules, without their texts for readers.
"""

import binascii
import marshal
import sys

DIRECTORY = "/run/ringfence"  # where a session has the sources, for tracebacks

given = sys.argv[1:]
modules = {
    name: compile(text, f"{DIRECTORY}/{name}.py", "exec", dont_inherit=True, optimize=2)
    for name, text in zip(given[::2], given[1::2])
}
print(repr(sys.version))
print(binascii.b2a_base64(marshal.dumps(modules), newline=False).decode(), end="")
