"""Loads the kernel that bootstrap.py has read from its socket, and serves. `parts` are code objects; if it is None,
`sources` are texts."""

import marshal
import sys

DIRECTORY = "/run/ringfence"  # the name in tracebacks; no such file exists


def load(codes):
    for name, code in codes.items():  # each imports only modules before it
        module = sys.modules[name] = type(sys)(name)
        module.__file__ = code.co_filename
        exec(code, module.__dict__)


def compile_all(sources):
    return {name: compile(source, f"{DIRECTORY}/{name}.py", "exec") for name, source in sources.items()}


def load_bridge_modules():
    load(marshal.loads(imports.import_stdlib("zlib").decompress(bridge)) if parts else compile_all(sources))


if parts:
    kernel, bridge = parts
    load(marshal.loads(kernel))
else:
    load(compile_all({name: sources.pop(name) for name in list(sources) if name.startswith("kernel")}))
imports = sys.modules["kernel_imports"]
imports.load_bridge_modules = load_bridge_modules
sys.modules.pop("kernel").serve(fd)  # a guest may have a module of that name
