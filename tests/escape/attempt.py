"""What the attack scripts share: raw system calls, children, and one JSON line an attempt.

A script reports each attempt as one line on stdout:

    {"attempt": "…", "contained": true, "saw": "EPERM"}         the attack did not succeed
    {"attempt": "…", "contained": false, "saw": "allowed"}      it did
    {"attempt": "…", "unsupported": "this kernel has no …"}     nobody can try this on such a host
    {"attempt": "…", "judged_by": "harness", "saw": "…"}        only the host's side can tell

Names are the same inside and outside, so that a bare run proves line by line that the case can fail.
`unsupported` is said only outside: a refusal inside a sandbox is a refusal, whatever its reason.

Every attempt runs in a child that dies with its parent and with its own alarm, so nothing outlives a script
that did not mean to leave something behind.
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
SECONDS = 20

# The answers of a wall. Any other error means that the kernel went on to look at the arguments.
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

# PyDLL keeps the interpreter lock, so that a child of a raw clone finds it held by itself.
libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def report(attempt, contained, saw):
    emit({"attempt": attempt, "contained": bool(contained), "saw": str(saw)})


def unsupported(attempt, why):
    emit({"attempt": attempt, "unsupported": why})


def left_to_harness(attempt, saw):
    emit({"attempt": attempt, "judged_by": "harness", "saw": saw})


def emit(line):
    print(json.dumps(line), flush=True)


def errno_name(number):
    return errno.errorcode.get(number, f"errno {number}")


def syscall(call, *args):
    """Makes a system call by name or number; raises OSError as the os module does."""
    keep = [ctypes.create_string_buffer(a) if isinstance(a, bytes) else a for a in args]
    words = [ctypes.c_long(a if isinstance(a, int) else ctypes.addressof(a)) for a in keep]
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


def bind_to_parent(seconds=SECONDS):
    """Makes this child end with its parent, and in any case after `seconds`."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(seconds)


def fork(seconds=SECONDS):
    pid = os.fork()
    if pid == 0:
        bind_to_parent(seconds)
    return pid


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
        time.sleep(SECONDS)
        os._exit(0)
    try:
        yield pid
    finally:
        kill_and_reap([pid])


@contextlib.contextmanager
def init():
    """The process to attack as the init: PID 1 inside; outside a stand-in, so that the host's is left alone."""
    if SANDBOXED:
        yield 1
    else:
        with sleeper() as pid:
            yield pid


class Outcome:
    """How a child ended: a value it returned, an errno it met, or the signal that killed it."""

    def __init__(self, value=None, error=None, killed_by=None):
        self.value, self.error, self.killed_by = value, error, killed_by


def in_child(call, seconds=SECONDS):
    """Runs `call` in a forked child without stdout and tells how it went; `call` returns what JSON can carry."""
    reader, writer = os.pipe()
    pid = fork(seconds)
    if pid == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        answer = {}
        try:
            answer["value"] = call()
        except OSError as error:
            answer["error"] = error.errno
        except BaseException as error:
            answer["bug"] = repr(error)
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return Outcome(killed_by=signal.Signals(os.WTERMSIG(status)).name)
    answer = json.loads(said)
    if "bug" in answer:
        raise RuntimeError(f"the attempt itself failed: {answer['bug']}")
    return Outcome(answer.get("value"), answer.get("error"))


def probe(attempt, call, also=(), absent=None):
    """Runs `call` in a child and reports whether a wall stopped it.

    `also` are further errors that a wall gives to this call. `absent` maps errors to what the host lacks when a
    bare process meets them. SIGSYS is a wall; any other death is an attempt that got through.
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
        report(attempt, stopped, errno_name(outcome.error) + ("" if stopped else ", past the wall"))


def unshare_bare(flags):
    """Outside a sandbox, moves this child to namespaces of its own, so that what follows does not touch the host's.

    Inside, the attempt is on the sandbox's own namespaces, which is the attack.
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
    """A directory that is removed at the end: in the working directory inside, in the system's own place outside."""
    path = tempfile.mkdtemp(prefix="escape-", dir=parent or (os.getcwd() if SANDBOXED else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def arguments(description, **needed):
    """Parses the arguments that all scripts take, and guards the script's time.

    The limits are those of the sandbox; the same are passed to the bare run, which exceeds them.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--memory", type=size, default=256 * MIB)
    parser.add_argument("--pids", type=int, default=64)
    parser.add_argument("--cpus", type=float, default=1)
    parser.add_argument("--workspace", type=size, default=64 * MIB)
    parser.add_argument("--workspace-inodes", type=int, default=2000)
    parser.add_argument("--nofile", type=int, default=256)
    parser.add_argument("--host-pid", type=int, required="host_pid" in needed, help="a process of the harness")
    parser.add_argument("--host-file", required="host_file" in needed, help="a file that only the host has")
    parser.add_argument("--boot-id", required="boot_id" in needed, help="what the kernel calls this boot of the host")
    parser.add_argument("--key", required="key" in needed, help="a private key that one group may read")
    parser.add_argument("--group-file", help="a file in a volume that one group may read")
    parser.add_argument("--runner", required="runner" in needed, help="the runner's binary on the host")
    parser.add_argument("--only", choices=needed.get("only"), required="one_only" in needed, help="make only this")
    parser.add_argument("--token", default="escape-daemon", help="the name left processes take (15 bytes)")
    parser.add_argument("--marker", help="a file or FIFO that left processes hold open and locked")
    parser.add_argument("--volumes", help="where the volumes lie: `rw`, `ro`, `inner` (also in `rw`), `home`")
    parser.add_argument("--outside", help="a directory of the host's that is no volume, with a file `secret`")
    parser.add_argument("--proxy", type=int, help="the port of the way out; outside, of a server that allows all")
    parser.add_argument("--port", type=int, help="a web server on the host's loopback; allowed where anything is")
    parser.add_argument("--other-port", type=int, help="another one, which is not allowed")
    parser.add_argument("--udp-port", type=int, help="a UDP socket on the host's loopback that answers")
    parser.add_argument("--abstract", help="the name of an abstract socket of the host's")
    for caught in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(caught, lambda *_: sys.exit("stopped before its end"))
    signal.alarm(SECONDS)
    return parser.parse_args()
