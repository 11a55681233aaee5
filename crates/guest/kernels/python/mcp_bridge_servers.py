"""The servers that a session may call, each as an object whose functions are the server's tools.

The object is a module too: `mcp_github`, `mcp_servers["github"]` and `mcp.servers.github` are the same. The list of
tools is requested from the host when it is first needed, and again when the host has reported a new version.
"""

import sys

from mcp_bridge_calls import MCPError
from mcp_bridge_functions import make_function, suggest
from mcp_bridge_results import convert


class UnknownTool(MCPError, AttributeError):
    """A server has no tool of that name. It is an AttributeError too, so that `hasattr` works."""

    __module__ = "mcp.runtime"


class Server:
    """A server that the session may call, and its tools as far as they are known."""

    def __init__(self, call, call_async, name):
        self.call, self.call_async = call, call_async
        self.name = name
        self.alias = self.description = self.version = None
        self.listing = None
        self.functions = {}

    def update(self, info):
        """Updates the server from the host's description."""
        self.alias = info["alias"]
        self.description = info.get("description") or ""
        if self.version != info.get("version"):
            self.drop_tools()
        self.version = info.get("version")

    def drop_tools(self):
        self.listing = None
        self.functions = {}

    @property
    def tools(self):
        if self.listing is None:
            self.listing = self.call("tools/list", server=self.name)["tools"]
        return self.listing

    def find(self, name):
        """Returns the tool of that alias or exact name; None if there is none."""
        for key in ("alias", "name"):
            for tool in self.tools:
                if tool[key] == name:
                    return tool
        return None

    def function(self, tool):
        name = tool["name"]
        if name not in self.functions:
            module_name = f"mcp.servers.{self.alias}"
            self.functions[name] = make_function(self.name, f"mcp_{self.alias}", module_name, tool, self.call_tool)
        return self.functions[name]

    async def call_tool(self, tool, arguments):
        return await call_tool(self.call_async, self.name, tool, arguments)

    async def list_tools(self):
        """Returns the tools of this server: a list of dicts with name, alias, description, inputSchema."""
        return list(self.tools)

    def unknown_tool(self, name):
        names = {known for tool in self.tools for known in (tool["alias"], tool["name"])}
        hint = suggest(name, sorted(names)) or f"; dir(mcp_{self.alias}) lists them"
        message = f"the server {self.name} has no tool {name!r}{hint}"
        return UnknownTool(message, kind="not_found", server=self.name, tool=str(name))


async def call_tool(call_async, server, tool, arguments, raw=False, timeout=None):
    try:
        result = await call_async("tools/call", **call_params(server, tool, arguments, timeout))
    except MCPError as error:
        error.server, error.tool = server, tool
        raise
    return result if raw else convert(result, server, tool)


def call_tool_sync(call, server, tool, arguments, raw=False, timeout=None):
    try:
        result = call("tools/call", **call_params(server, tool, arguments, timeout))
    except MCPError as error:
        error.server, error.tool = server, tool
        raise
    return result if raw else convert(result, server, tool)


def call_params(server, tool, arguments, timeout):
    params = {"server": server, "tool": tool, "arguments": {} if arguments is None else arguments}
    return params if timeout is None else {**params, "timeout": timeout}


class ServerProxy(type(sys)):
    """A server's tools as async functions: `await mcp_github.create_issue(title="…")`.

    `dir()` lists them and `help()` explains one. `proxy["exact-name"]` finds a tool by the server's own name for it.
    `await proxy.list_tools()` and TOOLS have the descriptions of all tools, TOOL_MAP the same by alias. A tool that is
    itself called list_tools takes precedence: `mcp.runtime.list_tools(server)` lists the tools of every server."""

    def __init__(self, server):
        super().__init__(f"mcp.servers.{server.alias}", server.description)
        self.__mcp__ = server

    @property
    def TOOLS(self):
        return list(self.__mcp__.tools)

    @property
    def TOOL_MAP(self):
        return {tool["alias"]: tool for tool in self.__mcp__.tools}

    @property
    def __all__(self):
        return [tool["alias"] for tool in self.__mcp__.tools]

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # looked up by Python itself
        server = self.__mcp__
        tool = server.find(name)
        if tool is None and name == "list_tools":
            return server.list_tools
        if tool is None:
            raise server.unknown_tool(name)
        return server.function(tool)

    def __getitem__(self, name):
        server = self.__mcp__
        for tool in server.tools:
            if tool["name"] == name:
                return server.function(tool)
        tool = server.find(name)
        if tool is None:
            raise server.unknown_tool(name)
        return server.function(tool)

    def __contains__(self, name):
        return self.__mcp__.find(name) is not None

    def __iter__(self):
        return (tool["name"] for tool in self.__mcp__.tools)

    def __dir__(self):
        names = ["TOOLS", "TOOL_MAP", "list_tools"]
        try:
            return [*names, *(name for name in self.__all__ if name not in names)]
        except MCPError:
            return names

    def __repr__(self):
        server = self.__mcp__
        count = "" if server.listing is None else f", {len(server.listing)} tools"
        return f"<MCP server {server.name} as mcp_{server.alias}{count}>"


class Servers(dict):
    """The servers that this session may call, by name; also found by alias."""

    def __missing__(self, name):
        for proxy in self.values():
            if proxy.__mcp__.alias == name:
                return proxy
        raise KeyError(self.not_loaded(name))

    def get(self, name, default=None):
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name):
        return self.get(name) is not None

    def not_loaded(self, name):
        """Returns the message for a server that this session may not call."""
        loaded = ", ".join(self) or "none"
        problem = f"the server {name!r} is not loaded in this session (loaded: {loaded})"
        return f"{problem}; hint: name it in `servers` of the call"

    def refresh(self, infos, calls):
        """Replaces the servers by those that the host lists, and reuses objects of known ones."""
        known = dict(self)
        self.clear()
        for info in infos:
            name = info["name"]
            if name in known:
                known[name].__mcp__.update(info)
                self[name] = known[name]
            else:
                server = Server(calls.call, calls.call_async, name)
                server.update(info)
                self[name] = ServerProxy(server)
