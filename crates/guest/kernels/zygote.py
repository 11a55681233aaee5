"""A warm Python from which the sessions of a host are forked.

    python3 -I -c SOURCE SOCKET LIBRARY

Both are numbers of descriptors: SOCKET goes to the launcher, LIBRARY is the sandbox crate as a shared object. On
standard input comes {"sources": [[name, text], …], "preload": [module, …]}.

Runs on the host, so it imports only what belongs to the interpreter, and never runs a guest's code. The library
forks; what is forked builds its sandbox in Rust, and only then comes back here, as the kernel of a session.
"""

import ctypes
import json
import os
import sys

DIRECTORY = "/run/ringfence"  # where a session has the same files


def load(name, text):
    """A module from its text, named as in a session, where its tracebacks can find the source."""
    module = sys.modules[name] = type(sys)(name)
    module.__file__ = f"{DIRECTORY}/{name}.py"
    exec(compile(text, module.__file__, "exec"), module.__dict__)


def take_environment(text):
    """Variables as `5:A=one`, one after another. Every page that is touched here is copied, so not by `json`."""
    while text:
        size, _, text = text.partition(b":")
        size = int(size)
        name, _, value = text[:size].partition(b"=")
        os.environb[name] = value
        text = text[size:]


def main(socket, library):
    given = json.load(sys.stdin)
    for name, text in given["sources"]:  # each needs those before it at most
        load(name, text)
    kernel = sys.modules.pop("kernel")  # a guest may have one of its own
    sys.modules["kernel_warmth"].prepare(given["preload"])

    @ctypes.PYFUNCTYPE(None, ctypes.c_char_p)
    def enter(environment):
        """In the sandbox, with the control channel as descriptor 3. Never returns."""
        try:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            take_environment(environment)
            kernel.serve(3)
        finally:
            os._exit(1)

    os.environ.clear()  # what it has is none of the sessions'
    # PyDLL keeps the interpreter's lock, which the forks then have.
    serve = ctypes.PyDLL(f"/proc/self/fd/{library}").ringfence_zygote
    ctypes.pythonapi.PyOS_BeforeFork()
    os._exit(serve(socket, enter))


main(*map(int, sys.argv[1:3]))
