"""A host for tests of the Python bridge, with a few servers, saved tools and memories."""

import json

from kernel_host import Cell, Host, KernelTest

RESPONSE_BIT = 1 << 63
PREFACE_NUMBER = 1 << 62

GITHUB = {"name": "git-hub", "alias": "git_hub", "description": "Code.", "version": "1"}
PLAIN = {"name": "plain", "alias": "plain", "description": "", "version": "1"}

CREATE_ISSUE = {
    "name": "create-issue",
    "alias": "create_issue",
    "description": "Opens an issue.\n\nIn a repository.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "labels": {"type": "array", "items": {"type": "string"}},
            "title": {"type": "string", "description": "What it is about"},
            "from": {"type": "integer"},
            "state": {"type": "string", "enum": ["open", "closed"], "default": "open"},
            "note": {"type": ["string", "null"]},
        },
        "required": ["title"],
        "additionalProperties": False,
    },
}


def tool(name, alias=None, **properties):
    schema = {"type": "object", "properties": properties}
    return {"name": name, "alias": alias or name, "description": f"Does {name}.", "inputSchema": schema}


class HostState:
    """Servers, tools, saved tools and memories of the host. `tools/call` returns its arguments as JSON by default."""

    def __init__(self):
        self.servers = {"git-hub": GITHUB, "plain": PLAIN}
        self.tools = {"git-hub": [CREATE_ISSUE, tool("class", "class_")], "plain": [tool("echo"), tool("wait")]}
        self.saved, self.memories = {}, {}
        self.call = lambda params: text_result(json.dumps(params["arguments"]))

    def call_method(self, method, params):
        if method == "tools/call":
            return self.call(params)
        return getattr(self, method.replace("/", "_"))(**params)

    def find(self, server):
        for known in self.servers.values():
            if server in (known["name"], known["alias"]):
                return known
        raise Refusal("not_found", f"no server {server}")

    def tools_list(self, server):
        server = self.find(server)
        described = {**server, "status": "ready", "loaded": True, "cwd": "/srv/project"}
        return {"server": described, "tools": self.tools[server["name"]]}

    def servers_list(self):
        status = {"status": "ready", "tool_count": 2}
        listed = [{**server, **status, "loaded": True} for server in self.servers.values()]
        return {"servers": [*listed, {"name": "far", "alias": "far", "description": "", **status, "loaded": False}]}

    def tools_search(self, detail, **params):
        found = {"server": "git-hub", "server_alias": "git_hub", "tool": "create-issue", "alias": "create_issue"}
        if detail == "full":
            found["inputSchema"] = CREATE_ISSUE["inputSchema"]
        return {"tools": [{**found, **params}]}

    def saved_save(self, name, source, doc):
        versions = self.saved.setdefault(name, [])
        versions.append({"name": name, "version": len(versions) + 1, "source": source, "doc": doc})
        return {"name": name, "version": len(versions)}

    def saved_load(self, name):
        return self.saved[name][-1]

    def saved_list(self):
        return {"tools": self.preface()["saved"]}

    def saved_delete(self, name):
        return {"deleted": self.saved.pop(name, None) is not None}

    def memory_save(self, key, value, metadata=None):
        self.memories[key] = {"key": key, "value": value, "metadata": metadata}
        return {"key": key, "created": 1, "updated": 2}

    def memory_load(self, key):
        return {"found": key in self.memories, **self.memories.get(key, {"key": key})}

    def memory_delete(self, key):
        return {"deleted": self.memories.pop(key, None) is not None}

    def memory_list(self):
        return {"memories": [{"key": key} for key in self.memories]}

    def memory_info(self, key):
        return {"found": key in self.memories, "key": key, "size": 1}

    def preface(self):
        saved = [{key: tools[-1][key] for key in ("name", "version", "doc")} for tools in self.saved.values()]
        return {"servers": list(self.servers.values()), "saved": saved}


class Refusal(Exception):
    def __init__(self, kind, message, **fields):
        super().__init__(message)
        self.error = {"kind": kind, "message": message, **fields}


LATER = object()  # as a result: the test sends the response itself


def text_result(*texts):
    return {"content": [{"type": "text", "text": text} for text in texts]}


class BridgeHost(Host):
    def __init__(self, state, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.state = state
        self.calls, self.cancelled = [], []

    def preface(self, preface=None):
        body = json.dumps(self.state.preface() if preface is None else preface).encode()
        self.send(PREFACE_NUMBER.to_bytes(8, "big") + body)

    def respond(self, call, result=None, **fields):
        response = fields or {"result": result}
        self.send((RESPONSE_BIT | call).to_bytes(8, "big") + json.dumps(response).encode())

    def next_call(self):
        """Returns the next call of the running cell, to which the test responds."""
        while True:
            frame = self.frame()
            if frame["type"] == "call":
                self.calls.append(frame)
                return frame
            if frame["type"] != "cancel":
                raise AssertionError(f"not a call: {frame}, {self.text(self.err)}")
            self.cancelled.append(frame["call"])

    def finish(self):
        shown = []
        while True:
            frame = self.frame()
            if frame is None:
                raise AssertionError(f"the kernel ended: {self.text(self.err)}")
            if frame["id"] != 100 + self.cells:
                raise AssertionError(f"frame of another cell: {frame}")
            if frame["type"] == "done":
                break
            if frame["type"] == "call":
                self.calls.append(frame)
                self.handle_call(frame)
            elif frame["type"] == "cancel":
                self.cancelled.append(frame["call"])
            else:
                shown += frame["items"]
        self.drain()
        cell = Cell(frame, shown, self.text(self.out), self.text(self.err))
        for received in self.pipes.values():
            received.clear()
        return cell

    def handle_call(self, frame):
        try:
            result = self.state.call_method(frame["method"], frame["params"])
        except Refusal as refusal:
            self.respond(frame["call"], error=refusal.error)
            return
        if result is not LATER:
            self.respond(frame["call"], result)


class BridgeTest(KernelTest):
    """Each test has a kernel with a preface of the servers `git-hub` and `plain`."""

    HAS_PREFACE = True

    def setUp(self):
        self.state = HostState()
        self.host = self.new_host()

    def new_host(self, *args, **kwargs):
        host = BridgeHost(self.state, *args, **kwargs)
        self.addCleanup(host.close)
        self.ready = host.frame()
        if self.HAS_PREFACE:
            host.preface()
        return host

    def value(self, code):
        """Returns the value of a cell's last expression."""
        cell = self.run_ok(code)
        return None if cell.result is None else eval(cell.result, {})

    def methods(self):
        return [call["method"] for call in self.host.calls]
