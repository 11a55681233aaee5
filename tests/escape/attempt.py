"""Common code of the attack scripts: reports, child processes, raw system calls.

A script prints one JSON line for each attempt:

    {"attempt": "…", "contained": true, "saw": "EPERM"}         the attack failed
    {"attempt": "…", "contained": false, "saw": "allowed"}      the attack succeeded
    {"attempt": "…", "unsupported": "this kernel has no …"}     the host lacks what the attempt needs
    {"attempt": "…", "judged_by": "harness", "saw": "…"}        the harness checks the result on the host

The same attempts are made in a sandbox and, as a control, without one ("bare"), so that each line is known to be able
to fail. Only bare runs report `unsupported`: a refusal inside a sandbox is a refusal, whatever its reason.

Attempts run in child processes that end with their parent, so a script leaves nothing behind unless that is the attack.

No result may depend on the speed of the host, above all not that of a bare run: a script works until it has reached a
count, or waits for a condition. `DEADLINE_SECONDS` only ends scripts that hang.
"""

import argparse
import contextlib
import ctypes
import errno
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time

SANDBOXED = os.environ.get("RINGFENCE_ESCAPE_SANDBOXED") == "1"
MIB = 1 << 20

# Ends a script that hangs, and the children of a script. Scripts need a few seconds, on a busy host far more.
DEADLINE_SECONDS = 240

# Errors of a blocked call. Any other error means that the kernel has examined the arguments.
REFUSALS = {errno.EPERM, errno.EACCES, errno.ENOSYS}

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_SET_NAME, PR_GET_NO_NEW_PRIVS = 1, 15, 39

# name: (x86_64, aarch64); one number where both agree, None where the call does not exist
NUMBERS = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280),
    "chroot": (161, 51), "clock_settime": (227, 112), "clone": (56, 220), "clone3": 435,
    "delete_module": (176, 106), "finit_module": (313, 273), "fsconfig": 431, "fsmount": 432,
    "fsopen": 430, "fspick": 433, "getpid": (39, 172), "init_module": (175, 105), "io_uring_enter": 426,
    "io_uring_register": 427, "io_uring_setup": 425, "ioctl": (16, 29), "ioperm": (173, None),
    "iopl": (172, None), "ioprio_set": (251, 30), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "mlock": (149, 228), "mlock2": (325, 284), "mlockall": (151, 230),
    "modify_ldt": (154, None), "mount": (165, 40), "mount_setattr": 442, "move_mount": 429,
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": 428,
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": 438, "pidfd_open": 434,
    "pidfd_send_signal": 424, "pivot_root": (155, 41), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "reboot": (169, 142), "renameat2": (316, 276),
    "request_key": (249, 218), "sched_setattr": (314, 274), "sethostname": (170, 161), "setns": (308, 268),
    "settimeofday": (164, 170), "shmat": (30, 196), "shmctl": (31, 195), "shmget": (29, 194),
    "socket": (41, 198), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip

# PyDLL does not release the interpreter lock, so that the child of a raw clone has it too.
libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def report(attempt, contained, saw):
    emit({"attempt": attempt, "contained": bool(contained), "saw": str(saw)})


def unsupported(attempt, why):
    emit({"attempt": attempt, "unsupported": why})


def left_to_harness(attempt, saw):
    """Reports an attempt whose result the harness checks."""
    emit({"attempt": attempt, "judged_by": "harness", "saw": saw})


def emit(line):
    print(json.dumps(line), flush=True)


def errno_name(number):
    return errno.errorcode.get(number, f"errno {number}")


def syscall(call, *args):
    """Makes a system call by name or number; raises OSError as the os module does."""
    values = [ctypes.create_string_buffer(a) if isinstance(a, bytes) else a for a in args]
    words = [ctypes.c_long(a if isinstance(a, int) else ctypes.addressof(a)) for a in values]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number(call)), *words)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def number(call):
    if isinstance(call, int):
        return call
    known = NUMBERS[call]
    if isinstance(known, tuple):
        known = known[0 if platform.machine() == "x86_64" else 1]
    if known is None:
        raise OSError(errno.ENOSYS, f"{call} does not exist here")
    return known


def bind_to_parent():
    """Makes this child end with its parent, and in any case at the deadline."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(DEADLINE_SECONDS)


def fork():
    pid = os.fork()
    if pid == 0:
        bind_to_parent()
    return pid


def sleep_until_killed():
    """For children that only have to exist; their parent kills them, or ends."""
    time.sleep(DEADLINE_SECONDS)
    os._exit(0)


def wait_until(condition, seconds):
    """Waits until the condition is true, for at most `seconds`; returns the last result of the condition."""
    end = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return result


def kill_and_reap(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


@contextlib.contextmanager
def sleeper():
    """A child that only sleeps, for attempts that need another process."""
    pid = fork()
    if pid == 0:
        sleep_until_killed()
    try:
        yield pid
    finally:
        kill_and_reap([pid])


@contextlib.contextmanager
def init():
    """The process to attack as the init: PID 1 in a sandbox; in a bare run a child, to spare the init of the host."""
    if SANDBOXED:
        yield 1
    else:
        with sleeper() as pid:
            yield pid


class Outcome:
    """Result of a child: the value that it returned, the errno that it met, or the signal that killed it."""

    def __init__(self, value=None, error=None, killed_by=None):
        self.value, self.error, self.killed_by = value, error, killed_by


def in_child(call):
    """Runs `call` in a forked child without stdout, and returns its outcome; its value must be JSON."""
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        result = {}
        try:
            result["value"] = call()
        except OSError as error:
            result["error"] = error.errno
        except BaseException as error:
            result["bug"] = repr(error)
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        output = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return Outcome(killed_by=signal.Signals(os.WTERMSIG(status)).name)
    result = json.loads(output)
    if "bug" in result:
        raise RuntimeError(f"the attempt itself failed: {result['bug']}")
    return Outcome(result.get("value"), result.get("error"))


def probe(attempt, call, also=(), absent=None):
    """Runs `call` in a child and reports whether it was blocked.

    `also` are further errors that mean that this call is blocked. `absent` maps errors of a bare run to what the host
    lacks. SIGSYS means blocked; death by any other signal means that the attempt succeeded.
    """
    outcome = in_child(call)
    if outcome.killed_by:
        report(attempt, outcome.killed_by == "SIGSYS", outcome.killed_by)
    elif outcome.error is None:
        report(attempt, False, outcome.value if isinstance(outcome.value, str) else "allowed")
    elif not SANDBOXED and absent and outcome.error in absent:
        unsupported(attempt, absent[outcome.error])
    else:
        stopped = outcome.error in REFUSALS or outcome.error in also
        report(attempt, stopped, errno_name(outcome.error) + ("" if stopped else ", not blocked"))


def unshare_bare(flags):
    """In a bare run, moves this child to new namespaces, so that the attempt does not change those of the host.

    In a sandbox, its own namespaces are the target of the attack.
    """
    if SANDBOXED:
        return
    syscall("unshare", flags)
    if flags & CLONE_NEWNS:
        syscall("mount", b"none", b"/", 0, MS_REC | MS_PRIVATE, 0)


def open_and_close(path, flags=os.O_RDONLY):
    os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))


@contextlib.contextmanager
def scratch(parent=None):
    """A directory that is removed at the end: in a sandbox in the working directory, else in the system's for these."""
    path = tempfile.mkdtemp(prefix="escape-", dir=parent or (os.getcwd() if SANDBOXED else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def arguments(description, **needed):
    """Parses the arguments, which are common to all scripts, and sets the deadline.

    The limits are those of the sandbox; a bare run is given the same, and exceeds them.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--memory", type=size, default=256 * MIB)
    parser.add_argument("--pids", type=int, default=64)
    parser.add_argument("--cpus", type=float, default=1)
    parser.add_argument("--workspace", type=size, default=64 * MIB)
    parser.add_argument("--workspace-inodes", type=int, default=2000)
    parser.add_argument("--nofile", type=int, default=256)
    parser.add_argument("--host-pid", type=int, required="host_pid" in needed, help="a process of the host")
    parser.add_argument("--host-file", required="host_file" in needed, help="a file that only the host has")
    parser.add_argument("--boot-id", required="boot_id" in needed, help="the boot id of the host")
    parser.add_argument("--key", required="key" in needed, help="a private key that one group may read")
    parser.add_argument("--group-file", help="a file in a volume that one group may read")
    parser.add_argument("--runner", required="runner" in needed, help="the path of ringfence on the host")
    parser.add_argument("--only", choices=needed.get("only"), required="one_only" in needed, help="make only this attempt")
    parser.add_argument("--token", default="escape-daemon", help="the name of processes that are left behind (15 bytes)")
    parser.add_argument("--marker", help="a file or FIFO that these processes open and lock")
    parser.add_argument("--volumes", help="directory of the volumes: `rw`, `ro`, `inner` (also in `rw`), `home`")
    parser.add_argument("--outside", help="a directory of the host that is no volume, with a file `secret`")
    parser.add_argument("--proxy", type=int, help="the port of the proxy; in a bare run, of a server that allows everything")
    parser.add_argument("--port", type=int, help="a web server on the loopback address of the host; the proxy allows it")
    parser.add_argument("--other-port", type=int, help="another web server, which the proxy does not allow")
    parser.add_argument("--udp-port", type=int, help="a UDP echo service on the loopback address of the host")
    parser.add_argument("--abstract", help="the name of an abstract socket of the host")
    for caught in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(caught, lambda *_: sys.exit("stopped at the deadline or by SIGTERM"))
    signal.alarm(DEADLINE_SECONDS)
    return parser.parse_args()
