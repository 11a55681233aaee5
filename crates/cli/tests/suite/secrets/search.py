"""Searches a running sandbox from outside: the memory of its processes, and its files, variables and arguments.

Standard input is JSON: the PID namespace of the sandbox, such as `pid:[4026532001]`, and texts by their names. With a
process instead of a namespace, only the memory of that process is searched. Standard output is JSON: the numbers of processes, files and bytes, and which text was found in which part.
"""

import json
import os
import re
import stat
import sys

CHUNK = 16 << 20
DIRECTORIES = ("workspace", "tmp", "dev/shm", "var/tmp", "run", "home")


class Search:
    def __init__(self, texts):
        self.texts = {name: text.encode() for name, text in texts.items()}
        self.longest = max(map(len, self.texts.values()))
        self.processes = self.files = self.bytes = 0
        self.found = set()

    def add(self, part, data):
        self.bytes += len(data)
        self.found.update((name, part) for name, text in self.texts.items() if text in data)

    def add_stream(self, part, read):
        """Searches what `read(offset, size)` returns until it is empty. Consecutive pieces overlap."""
        offset, rest = 0, b""
        while data := read(offset, CHUNK):
            self.add(part, rest + data)
            offset, rest = offset + len(data), data[-self.longest :]

    def add_memory(self, process):
        memory = os.open(f"{process}/mem", os.O_RDONLY)
        for line in open(f"{process}/maps"):
            start, end, mode, name = re.match(r"(\w+)-(\w+) (\S+)(.*)", line).groups()
            start, end = int(start, 16), int(end, 16)
            if "r" not in mode or name.endswith(("[vvar]", "[vvar_vclock]", "[vsyscall]")):
                continue

            def read(offset, size):
                try:
                    return os.pread(memory, min(size, end - start - offset), start + offset)
                except OSError:  # a page of a file that has become shorter
                    return b""

            self.add_stream("memory", read)
        os.close(memory)

    def add_file(self, part, path):
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            self.files += 1
            file = os.open(path, os.O_RDONLY)
            self.add_stream(part, lambda offset, size: os.pread(file, size, offset))
            os.close(file)

    def add_process(self, process):
        self.processes += 1
        for part in ("environ", "cmdline"):
            self.add(part, open(f"{process}/{part}", "rb").read())
        for thread in os.listdir(f"{process}/task"):
            self.add("name", open(f"{process}/task/{thread}/comm", "rb").read())
        # Also memfds and deleted files.
        for descriptor in os.listdir(f"{process}/fd"):
            self.add("descriptor", os.readlink(f"{process}/fd/{descriptor}").encode())
            self.add_file("descriptor", f"{process}/fd/{descriptor}")
        self.add_memory(process)

    def add_files(self, root):
        for top in DIRECTORIES:
            parts = top.split("/")
            if any(os.path.islink("/".join([root, *parts[: n + 1]])) for n in range(len(parts))):
                continue  # it would lead to a directory of the host
            for directory, _, names in os.walk(f"{root}/{top}"):
                for name in names:
                    path = f"{directory}/{name}"
                    self.add("name", path.encode())
                    if not os.path.islink(path):
                        self.add_file("file", path)


def namespace_of(process):
    try:
        return os.readlink(f"{process}/ns/pid")
    except OSError:
        return None


request = json.load(sys.stdin)
search = Search(request["texts"])
roots = set()
if "process" in request:
    search.processes = 1
    search.add_memory(f"/proc/{request['process']}")
for pid in filter(str.isdigit, os.listdir("/proc")):
    process = f"/proc/{pid}"
    if "namespace" not in request or namespace_of(process) != request["namespace"]:
        continue
    try:
        search.add_process(process)
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        continue
    if (mounts := os.readlink(f"{process}/ns/mnt")) not in roots:
        roots.add(mounts)
        search.add_files(f"{process}/root")
counts = {"processes": search.processes, "files": search.files, "bytes": search.bytes}
print(json.dumps({**counts, "found": sorted(search.found)}))
