"""What cells have of the MCP servers that they may call: names in their namespace, and the package `mcp`.

    mcp_<alias>, mcp_servers, LOADED_MCP_SERVERS, save_tool, and saved tools by their names
    mcp.runtime, mcp.servers.<alias>

A preface says which servers and saved tools there are; without one the host is asked when somebody wants to know.
A name that the user has taken is left alone. A package `mcp` that is installed stays in reach: what this one does
not have comes from there.

What it does not do: decide what may be called. The host does, for every call, whatever this process says.
"""

import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import PathFinder

import mcp_bridge_calls as calls
import mcp_bridge_runtime as runtime
from kernel_compile import remember
from kernel_imports import import_own
from mcp_bridge_saved import SavedTools
from mcp_bridge_servers import Servers


def prepare():
    """Imports ahead what is otherwise imported when it is needed."""
    for name in ("ast", "difflib", "inspect", "keyword", "symtable", "textwrap"):
        import_own(name)


class Bridge:
    """One kernel's. It is made when it is first needed."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.calls = calls.Calls(kernel)
        self.servers = Servers()
        self.saved = SavedTools(self.calls.ask, kernel.namespace, remember)
        self.is_told = False  # by a preface, or by the host when asked
        self.placed = {}  # names in the namespace, and what was put there
        runtime._bridge = self
        self.place({"save_tool": runtime.save_tool})

    def end_cell(self):
        self.calls.end_cell()

    def take_preface(self, body):
        preface = calls.parse(body.decode())
        self.learn_servers(preface.get("servers") or [])
        self.saved.learn(preface.get("saved") or [])

    def learn_servers(self, told):
        self.is_told = True
        self.servers.learn(told, self.calls)
        proxies = {f"mcp_{proxy.__mcp__.alias}": proxy for proxy in self.servers.values()}
        self.place(
            {
                "save_tool": runtime.save_tool,
                "mcp_servers": self.servers,
                "LOADED_MCP_SERVERS": tuple(self.servers),
                **proxies,
            }
        )

    def place(self, names):
        """Makes these the names that cells find, but for those that they have taken themselves."""
        space = self.kernel.namespace
        for name, old in self.placed.items():
            if name not in names and space.get(name) is old:
                del space[name]
        for name, value in names.items():
            if name not in space or (name in self.placed and space[name] is self.placed[name]):
                space[name] = value
        self.placed = names

    def known_servers(self):
        if not self.is_told:
            self.learn_servers([server for server in self.calls.ask("servers/list")["servers"] if server["loaded"]])
        return self.servers

    def find_spec(self, name):
        """How `mcp` and what is below it is imported; None for what is not from here."""
        if name == "mcp":
            real = PathFinder.find_spec("mcp")
            return make_spec(name, make_package(real), list(real and real.submodule_search_locations or ()))
        if name == "mcp.runtime":
            return make_spec(name, runtime)
        if name == "mcp.servers":
            return make_spec(name, self.make_servers_package(), [])
        _, _, alias = name.partition("mcp.servers.")
        if not alias or "." in alias:
            return None
        if alias not in self.known_servers():
            raise ImportError(self.servers.explain_lack(alias), name=name)
        return make_spec(name, self.servers[alias])

    def make_servers_package(self):
        package = type(sys)("mcp.servers", "The servers that this session may call, each a module of its tools.")

        def find(name):
            if name == "__all__":
                return [proxy.__mcp__.alias for proxy in self.known_servers().values()]
            if name.startswith("__"):
                raise AttributeError(name)
            try:
                return self.known_servers()[name]
            except KeyError as lack:
                raise AttributeError(lack.args[0]) from None

        package.__getattr__ = find
        package.__dir__ = lambda: find("__all__")
        return package


def make_package(real):
    """`mcp`: what is asked of it and is not from here, it has from the installed package, which is run only then."""
    package = type(sys)("mcp", "Calls to MCP servers: see mcp.runtime and mcp.servers.")
    pending = [real] if real is not None and real.loader is not None else []

    def find(name):
        if name in ("runtime", "servers"):
            __import__(f"mcp.{name}")
            return package.__dict__[name]
        if pending and not name.startswith("__"):
            pending.pop().loader.exec_module(package)
            if name in package.__dict__:
                return package.__dict__[name]
        raise AttributeError(f"module 'mcp' has no attribute {name!r}")

    package.__getattr__ = find
    return package


class Made:
    """Imports a module that is there already."""

    def __init__(self, module):
        self.module = module

    def create_module(self, _spec):
        return self.module

    def exec_module(self, _module):
        """Nothing is left to do."""


def make_spec(name, module, path=None):
    module.__name__ = name
    spec = ModuleSpec(name, Made(module), is_package=path is not None)
    if path is not None:
        spec.submodule_search_locations = path
    return spec
