# Starts the kernel of a session that has no warm interpreter: python3 -I -S -c SOURCE FD
# Compiling the kernel takes longer than all else that it does before its first cell, so the host does that once
# (compile.py), with the interpreter that sessions have. Until it has, the sources are there.
import sys

directory = "/run/ringfence"
try:
    with open(f"{directory}/kernel.code", "rb") as file:
        made_for, compiled, later = file.read().split(b"\n")
except OSError:
    made_for = None
if made_for == repr(sys.version).encode():
    import binascii
    import marshal

    for name, code in marshal.loads(binascii.a2b_base64(compiled)).items():
        module = sys.modules[name] = type(sys)(name)
        module.__file__ = f"{directory}/{name}.py"
        exec(code, module.__dict__)
    kernel = sys.modules["kernel"]
    kernel.LATER = later
else:
    sys.path.insert(0, directory)
    import kernel

    del sys.path[0]
    kernel.OWN_PATH.remove(directory)
kernel.serve(int(sys.argv[1]))
