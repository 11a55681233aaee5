"""Start of the Python kernel without a warm interpreter."""

import marshal
import os
import re
import socket
import subprocess
import sys
import tempfile

from bridge_host import BridgeTest, HostState
from kernel_host import KERNEL, TIMEOUT_S, Host


class ColdTest(BridgeTest):
    """A session without a warm interpreter: bootstrap.py reads the kernel from its socket."""

    def setUp(self):
        self.state = HostState()
        self.programs = {}
        guest = os.path.dirname(KERNEL)
        for name in os.listdir(guest):
            if name.endswith(".py"):
                with open(os.path.join(guest, name)) as file:
                    self.programs[name[:-3]] = file.read()
        sources = {"loader": self.programs["loader"]}
        for name in ("kernel", "mcp_bridge"):
            self.add_with_imports(name, sources)
        self.text = "\0".join(field for item in sources.items() for field in item).encode()

    def add_with_imports(self, name, sources):
        """Adds modules in load order: each imports only modules before it."""
        for imported in re.findall(r"^(?:import|from) ((?:kernel|mcp_bridge)_\w+)", self.programs[name], re.MULTILINE):
            self.add_with_imports(imported, sources)
        sources.setdefault(name, self.programs[name])

    def compile(self):
        command = [sys.executable, "-I", "-S", "-c", self.programs["precompile"]]
        return subprocess.run(command, input=self.text, capture_output=True, check=True, timeout=TIMEOUT_S).stdout

    def check(self, first, cwd=None):
        command = (sys.executable, "-I", "-S", "-c", self.programs["bootstrap"])
        self.host = self.new_host(command, cwd=cwd, first=first)
        self.assertEqual(self.value("await mcp_plain.echo(n=1)"), {"n": 1})
        self.assertIn("Saves a function for later sessions", self.run_ok("help(save_tool)").stdout)
        self.assertNotIn("mcp_bridge", self.run_error("await mcp_git_hub.create_issue()", "MCPError").traceback)
        self.assertNotIn("kernel", self.run_error("1 / 0", "ZeroDivisionError").traceback)

    def test_starts_from_compiled_modules(self):
        self.check(self.compile())

    def test_starts_from_sources(self):
        self.check(b"\n" + self.text)

    def test_uses_sources_if_another_interpreter_compiled_the_frame(self):
        _, _, parts = self.compile().partition(b"\n")
        *_, text = marshal.loads(parts)
        self.check(b"'another'\n" + marshal.dumps((b"unreadable", b"unreadable", b"unreadable", text), 2))

    def test_modules_of_the_working_directory_are_not_imported(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("kernel", "kernel_output", "marshal", "mcp_bridge", "zlib"):
                with open(os.path.join(directory, f"{name}.py"), "w") as file:
                    file.write("raise SystemError")
            self.check(self.compile(), cwd=directory)
            self.run_error("import kernel", "SystemError")  # a module of the guest

    def test_ends_if_the_host_closes_the_socket_during_the_start(self):
        command = (sys.executable, "-I", "-S", "-c", self.programs["bootstrap"])
        host = Host(command)
        self.addCleanup(host.close)
        host.socket.sendall(b"\0\1\0\0half")
        host.socket.shutdown(socket.SHUT_WR)
        self.assertEqual(host.process.wait(TIMEOUT_S), 0)
