"""Access of cells to MCP servers: names in their namespace, and the package `mcp`.

    mcp_<alias>, mcp_servers, LOADED_MCP_SERVERS, save_tool, and saved tools by their names
    mcp.runtime, mcp.servers.<alias>

The preface lists servers and saved tools; without one the host is queried when a cell needs the list. A name that user
code has assigned is not overwritten. An installed package `mcp` stays usable: attributes and modules that this one does
not have come from there.

The bridge does not decide which calls are allowed. The host does, for every call.
"""

import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import PathFinder

import mcp_bridge_calls as calls
import mcp_bridge_runtime as runtime
from kernel_cells import store_source
from kernel_imports import import_stdlib
from mcp_bridge_saved import SavedTools
from mcp_bridge_servers import Servers


def preload():
    """Imports modules ahead that are otherwise imported when they are needed."""
    for name in ("ast", "difflib", "inspect", "keyword", "symtable", "textwrap"):
        import_stdlib(name)


class Bridge:
    """The bridge of one kernel, created when it is first needed."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.calls = calls.Calls(kernel)
        self.servers = Servers()
        self.saved = SavedTools(self.calls.call, kernel.namespace, store_source)
        self.knows_servers = False  # from a preface or a query
        self.assigned = {}  # names and values that the bridge has put into the namespace
        runtime._bridge = self
        self.assign({"save_tool": runtime.save_tool})

    def end_cell(self):
        self.calls.end_cell()

    def apply_preface(self, body):
        preface = calls.parse_json(body.decode())
        self.set_servers(preface.get("servers") or [])
        self.saved.refresh(preface.get("saved") or [])

    def set_servers(self, infos):
        self.knows_servers = True
        self.servers.refresh(infos, self.calls)
        proxies = {f"mcp_{proxy.__mcp__.alias}": proxy for proxy in self.servers.values()}
        self.assign(
            {
                "save_tool": runtime.save_tool,
                "mcp_servers": self.servers,
                "LOADED_MCP_SERVERS": tuple(self.servers),
                **proxies,
            }
        )

    def assign(self, names):
        """Replaces the names that the bridge has put into the namespace, except those that cells have assigned."""
        namespace = self.kernel.namespace
        for name, old in self.assigned.items():
            if name not in names and namespace.get(name) is old:
                del namespace[name]
        for name, value in names.items():
            if name not in namespace or (name in self.assigned and namespace[name] is self.assigned[name]):
                namespace[name] = value
        self.assigned = names

    def known_servers(self):
        if not self.knows_servers:
            self.set_servers([server for server in self.calls.call("servers/list")["servers"] if server["loaded"]])
        return self.servers

    def find_spec(self, name):
        """Returns the spec of `mcp` or a module below it; None if the bridge does not provide that."""
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
            raise ImportError(self.servers.not_loaded(alias), name=name)
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
            except KeyError as error:
                raise AttributeError(error.args[0]) from None

        package.__getattr__ = find
        package.__dir__ = lambda: find("__all__")
        return package


def make_package(real):
    """Creates `mcp`. For other attributes it executes the installed package `real`, but only when one is needed."""
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


class ExistingModuleLoader:
    """Imports a module that exists already."""

    def __init__(self, module):
        self.module = module

    def create_module(self, _spec):
        return self.module

    def exec_module(self, _module):
        """Does nothing: the module is complete."""


def make_spec(name, module, path=None):
    module.__name__ = name
    spec = ModuleSpec(name, ExistingModuleLoader(module), is_package=path is not None)
    if path is not None:
        spec.submodule_search_locations = path
    return spec
