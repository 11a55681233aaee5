"""Case 31: overwriting ringfence, or any program, through /proc/self/exe.

Attempted: to open for writing /proc/PID/exe of the process itself and of the init, also with a path descriptor that was
opened while the program ran, after its end; the program at `--runner`, the path of ringfence on the host.
Contained: refused (ETXTBSY would mean that only a running process protects the file).
Harmless: nothing is written or truncated; the init of a bare run is a child of the script.
"""

import errno
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

ALSO = [errno.EROFS, errno.ENOENT]


def open_exe(pid):
    attempt.open_and_close(f"/proc/{pid}/exe", os.O_WRONLY)


def reopen(path):
    held = os.open(path, os.O_PATH)
    attempt.open_and_close(f"/proc/self/fd/{held}", os.O_WRONLY)


def reopen_after_end():
    """Opens the program of a child as a path descriptor, and reopens it for writing when the child has ended."""
    child = subprocess.Popen(["/usr/bin/cat"], stdin=subprocess.PIPE)
    try:
        held = os.open(f"/proc/{child.pid}/exe", os.O_PATH)
    finally:
        child.communicate()
    attempt.open_and_close(f"/proc/self/fd/{held}", os.O_WRONLY)


def reopen_after_exec():
    """Executes /proc/self/exe, and tries from there; the exit status is the errno."""
    code = (
        "import os\n"
        "try: os.open('/proc/self/exe', os.O_WRONLY)\n"
        "except OSError as error: os._exit(error.errno)\n"
    )
    status = subprocess.run(["/proc/self/exe", "-I", "-c", code], executable="/proc/self/exe").returncode
    if status > 0:
        raise OSError(status, "after exec")


def main():
    args = attempt.arguments(__doc__, runner=True)
    attempt.probe("own program", lambda: open_exe("self"), ALSO)
    attempt.probe("own program by a path descriptor", lambda: reopen("/proc/self/exe"), ALSO)
    attempt.probe("own program after executing it again", reopen_after_exec, ALSO)
    attempt.probe("program of a child that ended", reopen_after_end, ALSO)
    with attempt.init() as init:
        attempt.probe("init's program", lambda: open_exe(init), ALSO)
        attempt.probe("init's program by a path descriptor", lambda: reopen(f"/proc/{init}/exe"), ALSO)
    attempt.probe("runner by its path", lambda: attempt.open_and_close(args.runner, os.O_WRONLY), ALSO)


main()
