"""Case 29: facts about the host in /proc: identifiers, and counters of the activity of the host and other sandboxes.

Attempted: to read each file; to find the boot id of `--boot-id`, and more memory than `--memory`.
Contained: the file does not exist, is empty, or describes only the sandbox.
Harmless: files are only read.
"""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

HIDDEN = [
    "cmdline", "config.gz", "diskstats", "interrupts", "kallsyms", "key-users", "keys", "modules", "schedstat",
    "softirqs",
]  # fmt: skip


def read(path):
    with open(path, "rb") as file:
        return file.read(1 << 16)


def hidden(name, find):
    """Reports whether `find` finds anything."""
    try:
        found = find()
    except OSError as error:
        found, saw = None, attempt.errno_name(error.errno)
    else:
        saw = "something" if found else "nothing"
    if not found and not attempt.SANDBOXED:
        attempt.unsupported(name, f"this kernel has no {name}, or nothing in it")
    else:
        attempt.report(name, not found, saw)


def numbers(path, line):
    """Returns the numbers in the line that begins with this word."""
    lines = (text.split() for text in read(path).decode().splitlines())
    return next([int(word) for word in words[1:] if word.isdigit()] for words in lines if words and words[0] == line)


def main():
    args = attempt.arguments(__doc__, boot_id=True)
    for name in HIDDEN:
        hidden(f"/proc/{name}", lambda name=name: read(f"/proc/{name}"))
    hidden("/proc/pressure", lambda: os.listdir("/proc/pressure"))

    boot_id = read("/proc/sys/kernel/random/boot_id").decode().strip()
    attempt.report("boot id", boot_id != args.boot_id and len(boot_id) == 36, boot_id)
    load = read("/proc/loadavg").decode().strip()
    attempt.report("load and number of processes", load == "0.00 0.00 0.00 1/1 1", load)
    total = numbers("/proc/meminfo", "MemTotal:")[0] << 10
    attempt.report("size of memory", 0 < total <= args.memory, f"{total} bytes")
    for name, path, line in (
        ("CPU times", "/proc/stat", "cpu"),
        ("number of interrupts", "/proc/stat", "intr"),
        ("number of context switches", "/proc/stat", "ctxt"),
        ("number of processes since boot", "/proc/stat", "processes"),
    ):
        counted = sum(numbers(path, line))
        attempt.report(name, counted <= 1, counted)


main()
