"""The servers that a session may call, each as an object that has a server's tools as its functions.

Such an object is a module too: `mcp_github`, `mcp_servers["github"]` and `mcp.servers.github` are one and the same.
What tools there are is asked when it is first needed, and again when the host has said that they changed.
"""

import sys

from mcp_bridge_calls import MCPError
from mcp_bridge_functions import make_function, suggest
from mcp_bridge_results import convert


class UnknownTool(MCPError, AttributeError):
    """A server has no tool of that name. It is an AttributeError too: `hasattr` answers."""

    __module__ = "mcp.runtime"


class Server:
    """What is known of a server, and the way to it."""

    def __init__(self, ask, ask_async, name):
        self.ask, self.ask_async = ask, ask_async
        self.name = name
        self.alias = self.description = self.version = None
        self.listing = None
        self.functions = {}

    def learn(self, told):
        """Takes over what the host says of it."""
        self.alias = told["alias"]
        self.description = told.get("description") or ""
        if self.version != told.get("version"):
            self.forget_tools()
        self.version = told.get("version")

    def forget_tools(self):
        self.listing = None
        self.functions = {}

    @property
    def tools(self):
        if self.listing is None:
            self.listing = self.ask("tools/list", server=self.name)["tools"]
        return self.listing

    def find(self, name):
        """The tool of that alias or exact name; None if there is none."""
        for key in ("alias", "name"):
            for tool in self.tools:
                if tool[key] == name:
                    return tool
        return None

    def function(self, tool):
        name = tool["name"]
        if name not in self.functions:
            module_name = f"mcp.servers.{self.alias}"
            self.functions[name] = make_function(f"mcp_{self.alias}", module_name, tool, self.call)
        return self.functions[name]

    async def call(self, tool, arguments):
        return await call_tool(self.ask_async, self.name, tool, arguments)

    def unknown(self, name):
        names = {known for tool in self.tools for known in (tool["alias"], tool["name"])}
        hint = suggest(name, sorted(names)) or f"; dir(mcp_{self.alias}) lists them"
        message = f"the server {self.name} has no tool {name!r}{hint}"
        return UnknownTool(message, kind="not_found", server=self.name, tool=str(name))


async def call_tool(ask_async, server, tool, arguments, raw=False, timeout=None):
    try:
        result = await ask_async("tools/call", **call_params(server, tool, arguments, timeout))
    except MCPError as error:
        error.server, error.tool = server, tool
        raise
    return result if raw else convert(result, server, tool)


def call_tool_sync(ask, server, tool, arguments, raw=False, timeout=None):
    try:
        result = ask("tools/call", **call_params(server, tool, arguments, timeout))
    except MCPError as error:
        error.server, error.tool = server, tool
        raise
    return result if raw else convert(result, server, tool)


def call_params(server, tool, arguments, timeout):
    params = {"server": server, "tool": tool, "arguments": {} if arguments is None else arguments}
    return params if timeout is None else {**params, "timeout": timeout}


class ServerProxy(type(sys)):
    """A server's tools as async functions: `await mcp_github.create_issue(title="…")`.

    `dir()` lists them and `help()` explains one. `proxy["exact-name"]` finds a tool by the name that its server
    gives it, whatever that is. TOOLS has all that the server says of its tools, TOOL_MAP the same by alias."""

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
            raise AttributeError(name)  # asked by Python itself, and not of a server
        server = self.__mcp__
        tool = server.find(name)
        if tool is None:
            raise server.unknown(name)
        return server.function(tool)

    def __getitem__(self, name):
        server = self.__mcp__
        for tool in server.tools:
            if tool["name"] == name:
                return server.function(tool)
        tool = server.find(name)
        if tool is None:
            raise server.unknown(name)
        return server.function(tool)

    def __contains__(self, name):
        return self.__mcp__.find(name) is not None

    def __iter__(self):
        return (tool["name"] for tool in self.__mcp__.tools)

    def __dir__(self):
        try:
            return ["TOOLS", "TOOL_MAP", *self.__all__]
        except MCPError:
            return ["TOOLS", "TOOL_MAP"]

    def __repr__(self):
        server = self.__mcp__
        count = "" if server.listing is None else f", {len(server.listing)} tools"
        return f"<MCP server {server.name} as mcp_{server.alias}{count}>"


class Servers(dict):
    """The servers that this session may call, by name; found by their alias as well."""

    def __missing__(self, name):
        for proxy in self.values():
            if proxy.__mcp__.alias == name:
                return proxy
        raise KeyError(self.explain_lack(name))

    def get(self, name, default=None):
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name):
        return self.get(name) is not None

    def explain_lack(self, name):
        known = ", ".join(self) or "none"
        return f"the server {name!r} is not loaded in this session (loaded: {known}): name it in `servers` of the call"

    def learn(self, told, calls):
        """Takes over what the host says that may be called now."""
        known = dict(self)
        self.clear()
        for server in told:
            name = server["name"]
            if name in known:
                known[name].__mcp__.learn(server)
                self[name] = known[name]
            else:
                new = Server(calls.ask, calls.ask_async, name)
                new.learn(server)
                self[name] = ServerProxy(new)
