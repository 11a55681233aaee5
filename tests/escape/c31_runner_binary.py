"""Case 31: overwriting the runner, or any program, through /proc/self/exe.

Attempted: to open for writing one's own and the init's /proc/PID/exe, also by way of a path descriptor taken while
the program ran, after it ended; `--runner`, the runner's binary, by its path on the host.
Contained: refused (ETXTBSY would mean that only its running protects it).
Harmless: nothing is written or truncated; outside, a stand-in that the script forked takes the place of the init.
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
    """Holds the program of a child by a path descriptor, and opens it for writing when the child has ended."""
    child = subprocess.Popen(["/usr/bin/sleep", "0.2"])
    try:
        held = os.open(f"/proc/{child.pid}/exe", os.O_PATH)
    finally:
        child.wait()
    attempt.open_and_close(f"/proc/self/fd/{held}", os.O_WRONLY)


def reopen_after_exec():
    """Executes itself again through /proc/self/exe, and tries from there; the exit status is the errno."""
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
