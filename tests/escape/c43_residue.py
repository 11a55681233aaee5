"""Cases 43 and 44: traces of one sandbox in the next: files, shared memory, sockets, caches.

`--only leave`: leaves a mark with the name `--token` wherever it can, reports it, and waits for the end of its stdin, so
that it still runs while the other process searches.
`--only look`: searches for the marks. Contained: none is found.
`--only clean`: removes the marks of a bare `leave`.
Harmless: small files and segments with unique names.
"""

import contextlib
import os
import socket
import sys
import zlib

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

DIRECTORIES = {
    "workspace": "/workspace",
    "/tmp": "/tmp",
    "/var/tmp": "/var/tmp",
    "/dev/shm": "/dev/shm",
    "/run": "/run",
    "system cache": "/var/cache",
    "Python's library": os.path.dirname(os.__file__),
    "programs": "/usr/local/bin",
    "settings": "/etc",
}
SEGMENT_KEY_BASE = 0x52460000
IPC_CREAT = 0o1000


def segment_key(token):
    # Other tests may leave marks at the same time.
    return SEGMENT_KEY_BASE | zlib.crc32(token.encode()) & 0xFFFF


def path_in(directory, token):
    # A bare process has no workspace, and uses another directory.
    directory = "/var/tmp" if directory == "/workspace" and not attempt.SANDBOXED else directory
    return os.path.join(directory, f"escape-{token}")


def leave(token):
    for directory in DIRECTORIES.values():
        with contextlib.suppress(OSError):
            with open(path_in(directory, token), "w") as mark:
                mark.write(token)
    with contextlib.suppress(OSError):
        attempt.syscall("shmget", segment_key(token), 4096, IPC_CREAT | 0o666)
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket() as port:
        abstract.bind(f"\0escape-{token}")
        abstract.listen()
        port.bind(("127.0.0.1", 0))
        port.listen()
        attempt.emit({"left": token, "port": port.getsockname()[1]})
        sys.stdin.read()


def look(args):
    for name, directory in DIRECTORIES.items():
        found = os.path.exists(path_in(directory, args.token))
        attempt.report(f"file in {name}", not found, "found" if found else "none")
    attempt.probe("shared memory", lambda: attempt.syscall("shmget", segment_key(args.token), 4096, 0), [2])
    with socket.socket(socket.AF_UNIX) as abstract:
        refused = abstract.connect_ex(f"\0escape-{args.token}")
        attempt.report("abstract socket", refused != 0, attempt.errno_name(refused) if refused else "connected")
    with socket.socket() as port:
        refused = port.connect_ex(("127.0.0.1", args.port))
        attempt.report("port on loopback", refused != 0, attempt.errno_name(refused) if refused else "connected")


def clean(token):
    for directory in DIRECTORIES.values():
        with contextlib.suppress(OSError):
            os.unlink(path_in(directory, token))
    with contextlib.suppress(OSError):
        attempt.syscall("shmctl", attempt.syscall("shmget", segment_key(token), 4096, 0), 0, 0)


def main():
    args = attempt.arguments(__doc__, only=["leave", "look", "clean"], one_only=True)
    if args.only == "look":
        look(args)
    elif args.only == "leave":
        leave(args.token)
    else:
        clean(args.token)


main()
