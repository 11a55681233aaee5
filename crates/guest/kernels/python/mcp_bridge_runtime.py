"""Functions for code that calls MCP servers: `import mcp.runtime as runtime`.

Tools of servers that this session may call are async functions: `await mcp_github.create_issue(title="…")`. This module
finds servers and tools, calls them by name, and saves functions and values for later sessions. `capability_summary()`
returns an overview.
"""

from mcp_bridge_calls import MCPError
from mcp_bridge_functions import suggest
from mcp_bridge_results import Blob
from mcp_bridge_servers import ServerProxy, UnknownTool, call_tool as _call_tool, call_tool_sync as _call_tool_sync

__name__ = "mcp.runtime"  # the name by which cells import it

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
  await mcp_<alias>.<tool>(name=value)   a tool of a loaded server; help(mcp_<alias>.<tool>) explains it
  mcp_servers["name"], LOADED_MCP_SERVERS, dir(mcp_<alias>), mcp_<alias>["exact-tool-name"]
  await asyncio.gather(...)              runs calls at the same time
A result is plain Python: data, text, or bytes with .mime_type. A tool that fails raises MCPError.
import mcp.runtime as runtime:
  discovered_servers(detailed=True)      all servers; name one in `servers` of the call to load it
  await search_tool_docs("words", limit=5), await query_tool_docs(server, tool, detail="full")
  await call_tool(server, tool, {...}, raw=False, timeout=60)
  save_tool(func), saved_tools(), delete_tool(name)   functions that later sessions can call by name
  save_memory(key, value), load_memory(key, default=None), update_memory(key, function), delete_memory(key),
  list_memories(), memory_exists(key), get_memory_info(key)   JSON values for later sessions
list_servers, list_tools, query_tool_docs, search_tool_docs and call_tool have blocking variants: ..._sync.\
"""

_bridge = None  # the Bridge of this session


def __dir__():
    return sorted(__all__)


def __getattr__(name):
    if _bridge is not None and name in ("mcp_servers", "LOADED_MCP_SERVERS"):
        servers = _bridge.known_servers()
        return servers if name == "mcp_servers" else tuple(servers)
    hint = suggest(name, __all__)
    raise AttributeError(f"module 'mcp.runtime' has no attribute {name!r}{hint}")


async def call_tool(server, tool, arguments=None, *, raw=False, timeout=None):
    """Calls a tool by its exact name or alias. `raw` returns the complete MCP result, even if it is an error.

    `timeout` is in seconds from the start of the call: 60 by default, at most 120."""
    call, name = _bridge.calls.call_async, _name_of(server)
    try:
        return await _call_tool(call, name, tool, arguments, raw, timeout)
    except MCPError as error:
        exact = _exact_name(await list_tools(name), tool) if error.kind == "not_found" else None
        if exact is None:
            raise
    return await _call_tool(call, name, exact, arguments, raw, timeout)


def call_tool_sync(server, tool, arguments=None, *, raw=False, timeout=None):
    """Like `call_tool`, but blocks."""
    call, name = _bridge.calls.call, _name_of(server)
    try:
        return _call_tool_sync(call, name, tool, arguments, raw, timeout)
    except MCPError as error:
        exact = _exact_name(list_tools_sync(name), tool) if error.kind == "not_found" else None
        if exact is None:
            raise
    return _call_tool_sync(call, name, exact, arguments, raw, timeout)


async def list_tools(server):
    """Returns the tools of a server: a list of dicts with name, alias, description, inputSchema."""
    return (await _bridge.calls.call_async("tools/list", server=_name_of(server)))["tools"]


def list_tools_sync(server):
    """Like `list_tools`, but blocks."""
    return _bridge.calls.call("tools/list", server=_name_of(server))["tools"]


async def list_servers():
    """Returns the names of the servers that this session may call. `discovered_servers()` returns all servers."""
    servers = (await _bridge.calls.call_async("servers/list"))["servers"]
    return [server["name"] for server in servers if server["loaded"]]


def list_servers_sync():
    """Like `list_servers`, but blocks."""
    return [server["name"] for server in _servers() if server["loaded"]]


def discovered_servers(detailed=False):
    """Returns the names of all servers, loaded or not. With `detailed`, dicts with description, status, tool_count,
    loaded."""
    servers = _servers()
    return servers if detailed else [server["name"] for server in servers]


def describe_server(name):
    """Describes a server by its name or alias: a dict with name, alias, description, status, cwd, tools.

    `cwd` is the working directory that the server's entry names, or None."""
    listed = _bridge.calls.call("tools/list", server=_name_of(name))
    tools = [
        {"name": tool["name"], "alias": tool["alias"], "description": _first_line(tool)} for tool in listed["tools"]
    ]
    return {**listed["server"], "tools": tools}


def list_loaded_server_metadata():
    """Describes the servers that this session may call: a list of dicts."""
    return [server for server in _servers() if server["loaded"]]


async def query_tool_docs(server, tool=None, detail="summary"):
    """Returns documentation of a server's tools (a list) or of one tool (a dict). `detail`: "summary" or "full"."""
    _check_detail(detail)
    listed = await _bridge.calls.call_async("tools/list", server=_name_of(server))
    return _docs(listed["server"], listed["tools"], tool, detail)


def query_tool_docs_sync(server, tool=None, detail="summary"):
    """Like `query_tool_docs`, but blocks."""
    _check_detail(detail)
    listed = _bridge.calls.call("tools/list", server=_name_of(server))
    return _docs(listed["server"], listed["tools"], tool, detail)


async def search_tool_docs(query, *, limit=5, detail="summary"):
    """Returns the tools of all servers, loaded or not, that match best: a list of dicts. `limit`: 1 to 20."""
    found = await _bridge.calls.call_async("tools/search", **_search_params(query, limit, detail))
    return [_with_common_keys(tool) for tool in found["tools"]]


def search_tool_docs_sync(query, *, limit=5, detail="summary"):
    """Like `search_tool_docs`, but blocks."""
    found = _bridge.calls.call("tools/search", **_search_params(query, limit, detail))
    return [_with_common_keys(tool) for tool in found["tools"]]


def capability_summary():
    """Returns an overview of what code can call."""
    return SUMMARY


def save_tool(func):
    """Saves a function for later sessions, which can call it by its name. Also a decorator; returns the function.

    The imports, plain constants and functions of cells that it uses are saved with it. Saving a name again creates a
    new version."""
    return _bridge.saved.save(func)


def saved_tools():
    """Returns the saved tools: a list of dicts with name, version, versions, doc, saved."""
    return _bridge.saved.list()


def delete_tool(name):
    """Deletes a saved tool with all its versions; returns False if there is none of that name."""
    return _bridge.saved.delete(getattr(name, "__name__", name))


def save_memory(key, value, *, metadata=None):
    """Stores a JSON value under a key, for this and later sessions."""
    params = {"key": key, "value": value}
    return _bridge.calls.call("memory/save", **(params if metadata is None else {**params, "metadata": metadata}))


def load_memory(key, default=None):
    """Returns the value that is stored under a key, or `default`."""
    entry = _bridge.calls.call("memory/load", key=key)
    return entry.get("value") if entry["found"] else default


def update_memory(key, updater, *, default=None):
    """Replaces the value of a key (`default` if there is none) by `updater(value)` and returns the new value."""
    if not callable(updater):
        raise TypeError("update_memory needs a function of the old value; hint: save_memory replaces a value")
    entry = _bridge.calls.call("memory/load", key=key)
    value = updater(entry.get("value") if entry["found"] else default)
    save_memory(key, value, metadata=entry.get("metadata"))
    return value


def delete_memory(key):
    """Deletes a key; returns False if there was none."""
    return bool(_bridge.calls.call("memory/delete", key=key)["deleted"])


def list_memories():
    """Returns all keys: a list of dicts with key, size, created, updated, metadata."""
    return _bridge.calls.call("memory/list")["memories"]


def memory_exists(key):
    """Returns whether a value is stored under a key."""
    return bool(_bridge.calls.call("memory/info", key=key)["found"])


def get_memory_info(key):
    """Returns a dict with key, size, created, updated and metadata; None if there is no such key."""
    entry = _bridge.calls.call("memory/info", key=key)
    return {name: item for name, item in entry.items() if name != "found"} if entry["found"] else None


def _servers():
    return _bridge.calls.call("servers/list")["servers"]


def _name_of(server):
    return server.__mcp__.name if isinstance(server, ServerProxy) else server


def _exact_name(tools, alias):
    return next((tool["name"] for tool in tools if tool["alias"] == alias and tool["name"] != alias), None)


def _first_line(tool):
    text = tool.get("description")
    return text.strip().partition("\n")[0] if isinstance(text, str) else ""


def _check_detail(detail):
    if detail not in ("summary", "full"):
        raise ValueError(f'detail must be "summary" or "full", not {detail!r}')


def _search_params(query, limit, detail):
    _check_detail(detail)
    if not isinstance(limit, int) or not 1 <= limit <= 20:
        raise ValueError(f"limit must be a number from 1 to 20, not {limit!r}")
    return {"query": str(query), "limit": limit, "detail": detail}


def _with_common_keys(doc):
    """Adds the keys that other bridges for code use for the same values."""
    common = {"serverAlias": doc.get("server_alias"), "toolAlias": doc.get("alias")}
    if "inputSchema" in doc:
        common["input_schema"] = doc["inputSchema"]
    return {**doc, **common}


def _docs(server, tools, tool, detail):
    def doc(found):
        names = {"server": server["name"], "server_alias": server["alias"]}
        names |= {"tool": found["name"], "alias": found["alias"]}
        if detail == "summary":
            return _with_common_keys({**names, "description": _first_line(found)})
        fields = {key: item for key, item in found.items() if key not in ("name", "alias")}
        return _with_common_keys({**names, **fields})

    if tool is None:
        return [doc(found) for found in tools]
    for key in ("name", "alias"):
        for found in tools:
            if found[key] == tool:
                return doc(found)
    hint = suggest(tool, [known for found in tools for known in (found["alias"], found["name"])])
    name = server["name"]
    raise UnknownTool(f"the server {name} has no tool {tool!r}{hint}", kind="not_found", server=name, tool=tool)
