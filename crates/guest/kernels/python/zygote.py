"""A warm Python interpreter on the host from which sessions are forked.

    python3 -I -c SOURCE SOCKET LIBRARY

SOCKET and LIBRARY are descriptors: a socket to the launcher, and the sandbox crate as a shared library. Standard input
is {"sources": [[name, text], …], "preload": [module, …]}.

The zygote imports only modules of the interpreter and never runs a guest's code. The library forks; the child builds
its sandbox in Rust and returns to Python only inside it, as the kernel of a session.
"""

import ctypes
import json
import os
import sys

DIRECTORY = "/run/ringfence"  # as in a session


def load(name, text):
    """Loads a module from its text. Its file name is that of a session, so that tracebacks leave it out there."""
    module = sys.modules[name] = type(sys)(name)
    module.__file__ = f"{DIRECTORY}/{name}.py"
    exec(compile(text, module.__file__, "exec"), module.__dict__)


def set_environment(text):
    """Sets variables encoded as `5:A=one`, one after another. `json` would touch, and so copy, more shared pages."""
    while text:
        size, _, text = text.partition(b":")
        size = int(size)
        name, _, value = text[:size].partition(b"=")
        os.environb[name] = value
        text = text[size:]


def main(socket, library):
    setup = json.load(sys.stdin)
    for name, text in setup["sources"]:  # each imports only modules before it
        load(name, text)
    kernel = sys.modules.pop("kernel")  # a guest may have a module of that name
    sys.modules["kernel_fork"].warm_up(setup["preload"])

    @ctypes.PYFUNCTYPE(None, ctypes.c_char_p)
    def enter(environment):
        """Runs inside the sandbox, with the control channel as descriptor 3. Never returns."""
        try:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            set_environment(environment)
            kernel.serve(3)
        finally:
            os._exit(1)

    os.environ.clear()  # sessions must not see the host's variables
    # PyDLL holds the interpreter's lock during the call, so that forked children own it.
    serve = ctypes.PyDLL(f"/proc/self/fd/{library}").ringfence_zygote
    ctypes.pythonapi.PyOS_BeforeFork()
    os._exit(serve(socket, enter))


main(*map(int, sys.argv[1:3]))
