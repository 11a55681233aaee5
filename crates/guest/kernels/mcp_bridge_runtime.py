"""Helpers for code that calls MCP servers: `import mcp.runtime as runtime`.

Tools of servers that this session may call are async functions: `await mcp_github.create_issue(title="…")`. What
is here finds servers and tools, calls them by name, and keeps functions and values for later sessions.
`capability_summary()` says it all in short.
"""

from mcp_bridge_calls import MCPError
from mcp_bridge_functions import suggest
from mcp_bridge_results import Blob
from mcp_bridge_servers import ServerProxy, UnknownTool, call_tool as _call_tool, call_tool_sync as _call_tool_sync

__name__ = "mcp.runtime"  # as which cells import it

__all__ = [
    *("MCPError", "UnknownTool", "Blob", "mcp_servers", "LOADED_MCP_SERVERS"),
    *("call_tool", "call_tool_sync", "list_tools", "list_tools_sync", "list_servers", "list_servers_sync"),
    *("discovered_servers", "describe_server", "list_loaded_server_metadata"),
    *("query_tool_docs", "query_tool_docs_sync", "search_tool_docs", "search_tool_docs_sync"),
    *("capability_summary", "save_tool", "saved_tools", "delete_tool"),
    *("save_memory", "load_memory", "update_memory", "delete_memory", "list_memories", "memory_exists"),
    "get_memory_info",
]

SUMMARY = """\
Tools of MCP servers, from code:
  await mcp_<alias>.<tool>(name=value)   a tool of a server that is loaded; help(mcp_<alias>.<tool>) explains it
  mcp_servers["name"], LOADED_MCP_SERVERS, dir(mcp_<alias>), mcp_<alias>["exact-tool-name"]
  await asyncio.gather(...)              calls run at once
A result is plain Python: data, text, or bytes with .mime_type. A tool's error raises MCPError.
import mcp.runtime as runtime:
  discovered_servers(detailed=True)      all servers; name one in `servers` of the call to load it
  await search_tool_docs("words", limit=5), await query_tool_docs(server, tool, detail="full")
  await call_tool(server, tool, {...}, raw=False, timeout=60)
  save_tool(func), saved_tools(), delete_tool(name)   functions that later sessions have by name
  save_memory(key, value), load_memory(key, default=None), update_memory(key, function), delete_memory(key),
  list_memories(), memory_exists(key), get_memory_info(key)   JSON values that later sessions have
The functions list_servers, list_tools, query_tool_docs, search_tool_docs and call_tool have blocking twins: ..._sync.\
"""

_bridge = None  # of this session


def __dir__():
    return sorted(__all__)


def __getattr__(name):
    if _bridge is not None and name in ("mcp_servers", "LOADED_MCP_SERVERS"):
        servers = _bridge.known_servers()
        return servers if name == "mcp_servers" else tuple(servers)
    hint = suggest(name, __all__)
    raise AttributeError(f"mcp.runtime has no {name!r}{hint}")


async def call_tool(server, tool, arguments=None, *, raw=False, timeout=None):
    """Calls a tool by its exact name or alias. `raw` gives the whole MCP result, errors included, as it came.

    `timeout` is in seconds, 60 unless given and at most 120, counted from when the call starts."""
    ask, name = _bridge.calls.ask_async, _name_of(server)
    try:
        return await _call_tool(ask, name, tool, arguments, raw, timeout)
    except MCPError as error:
        exact = _exact_name(await list_tools(name), tool) if error.kind == "not_found" else None
        if exact is None:
            raise
    return await _call_tool(ask, name, exact, arguments, raw, timeout)


def call_tool_sync(server, tool, arguments=None, *, raw=False, timeout=None):
    """Like `call_tool`, and blocks."""
    ask, name = _bridge.calls.ask, _name_of(server)
    try:
        return _call_tool_sync(ask, name, tool, arguments, raw, timeout)
    except MCPError as error:
        exact = _exact_name(list_tools_sync(name), tool) if error.kind == "not_found" else None
        if exact is None:
            raise
    return _call_tool_sync(ask, name, exact, arguments, raw, timeout)


async def list_tools(server):
    """What a server says of its tools: a list of dicts with name, alias, description, inputSchema."""
    return (await _bridge.calls.ask_async("tools/list", server=_name_of(server)))["tools"]


def list_tools_sync(server):
    """Like `list_tools`, and blocks."""
    return _bridge.calls.ask("tools/list", server=_name_of(server))["tools"]


async def list_servers():
    """The names of the servers that this session may call. `discovered_servers()` has all that there are."""
    return [server["name"] for server in (await _bridge.calls.ask_async("servers/list"))["servers"] if server["loaded"]]


def list_servers_sync():
    """Like `list_servers`, and blocks."""
    return [server["name"] for server in _servers() if server["loaded"]]


def discovered_servers(detailed=False):
    """The names of all servers, loaded or not; with `detailed` dicts with description, status, tool_count, loaded."""
    servers = _servers()
    return servers if detailed else [server["name"] for server in servers]


def describe_server(name):
    """All that is known of a server, by its name or alias: a dict with name, alias, description, status, tools."""
    told = _bridge.calls.ask("tools/list", server=_name_of(name))
    tools = [{"name": tool["name"], "alias": tool["alias"], "description": _first_line(tool)} for tool in told["tools"]]
    return {**told["server"], "tools": tools}


def list_loaded_server_metadata():
    """What is known of each server that this session may call: a list of dicts."""
    return [server for server in _servers() if server["loaded"]]


async def query_tool_docs(server, tool=None, detail="summary"):
    """Documentation of a server's tools (a list), or of one of them (a dict). `detail`: "summary" or "full"."""
    _check_detail(detail)
    return _docs(_name_of(server), await list_tools(server), tool, detail)


def query_tool_docs_sync(server, tool=None, detail="summary"):
    """Like `query_tool_docs`, and blocks."""
    _check_detail(detail)
    return _docs(_name_of(server), list_tools_sync(server), tool, detail)


async def search_tool_docs(query, *, limit=5, detail="summary"):
    """The tools of all servers, loaded or not, that fit the query best: a list of dicts. `limit`: 1 to 20."""
    return (await _bridge.calls.ask_async("tools/search", **_search_params(query, limit, detail)))["tools"]


def search_tool_docs_sync(query, *, limit=5, detail="summary"):
    """Like `search_tool_docs`, and blocks."""
    return _bridge.calls.ask("tools/search", **_search_params(query, limit, detail))["tools"]


def capability_summary():
    """What can be done here, in short."""
    return SUMMARY


def save_tool(func):
    """Keeps a function for later sessions, where it is there by its name. Also a decorator; returns the function.

    The imports, plain constants and functions of cells that it uses are kept with it. A second save of a name makes
    a new version."""
    return _bridge.saved.save(func)


def saved_tools():
    """The tools that were saved: a list of dicts with name, version, versions, doc, saved."""
    return _bridge.saved.list()


def delete_tool(name):
    """Removes a saved tool with all its versions; False if there is none of that name."""
    return _bridge.saved.delete(getattr(name, "__name__", name))


def save_memory(key, value, *, metadata=None):
    """Keeps a value (anything that is JSON) under a key, for this and later sessions."""
    params = {"key": key, "value": value}
    return _bridge.calls.ask("memory/save", **(params if metadata is None else {**params, "metadata": metadata}))


def load_memory(key, default=None):
    """The value that was kept under a key, or `default`."""
    told = _bridge.calls.ask("memory/load", key=key)
    return told.get("value") if told["found"] else default


def update_memory(key, updater, *, default=None):
    """Keeps `updater(value)` in place of the value of a key (of `default` where there is none) and returns it."""
    if not callable(updater):
        raise TypeError("update_memory takes a function from the old value to the new; save_memory replaces a value")
    told = _bridge.calls.ask("memory/load", key=key)
    value = updater(told.get("value") if told["found"] else default)
    save_memory(key, value, metadata=told.get("metadata"))
    return value


def delete_memory(key):
    """Forgets a key; False if there was none."""
    return bool(_bridge.calls.ask("memory/delete", key=key)["deleted"])


def list_memories():
    """All that is kept: a list of dicts with key, size, created, updated, metadata."""
    return _bridge.calls.ask("memory/list")["memories"]


def memory_exists(key):
    """Whether something is kept under a key."""
    return bool(_bridge.calls.ask("memory/info", key=key)["found"])


def get_memory_info(key):
    """A dict with key, size, created, updated and metadata; None if nothing is kept under that key."""
    told = _bridge.calls.ask("memory/info", key=key)
    return {name: item for name, item in told.items() if name != "found"} if told["found"] else None


def _servers():
    return _bridge.calls.ask("servers/list")["servers"]


def _name_of(server):
    return server.__mcp__.name if isinstance(server, ServerProxy) else server


def _exact_name(tools, alias):
    return next((tool["name"] for tool in tools if tool["alias"] == alias and tool["name"] != alias), None)


def _first_line(tool):
    text = tool.get("description")
    return text.strip().partition("\n")[0] if isinstance(text, str) else ""


def _check_detail(detail):
    if detail not in ("summary", "full"):
        raise ValueError(f'detail is "summary" or "full", not {detail!r}')


def _search_params(query, limit, detail):
    _check_detail(detail)
    if not isinstance(limit, int) or not 1 <= limit <= 20:
        raise ValueError(f"limit is a number from 1 to 20, not {limit!r}")
    return {"query": str(query), "limit": limit, "detail": detail}


def _docs(server, tools, tool, detail):
    def doc(found):
        said = {"server": server, "tool": found["name"], "alias": found["alias"]}
        if detail == "summary":
            return {**said, "description": _first_line(found)}
        return {**said, **{key: item for key, item in found.items() if key not in ("name", "alias")}}

    if tool is None:
        return [doc(found) for found in tools]
    for key in ("name", "alias"):
        for found in tools:
            if found[key] == tool:
                return doc(found)
    hint = suggest(tool, [known for found in tools for known in (found["alias"], found["name"])])
    raise UnknownTool(f"the server {server} has no tool {tool!r}{hint}", kind="not_found", server=server, tool=tool)
