"""Saved tools: functions of earlier sessions that later sessions can call by name.

In a session that did not define it, a saved tool is a stub at first. Its source is requested from the host and run when
the tool is first used, so that a broken one affects only its users. A name that user code has assigned is not
overwritten.
"""

import builtins

from kernel_imports import import_stdlib
from mcp_bridge_calls import MCPError
from mcp_bridge_source import FUNCTION, collect, unwrap


class SavedTool:
    """A saved tool that has not been used yet. Calling it loads it."""

    __module__ = "mcp.runtime"

    def __init__(self, saved, info):
        self._saved, self._version = saved, info.get("version")
        self._function = None
        self.__name__ = self.__qualname__ = info["name"]
        self.__doc__ = info.get("doc") or f"The saved tool {info['name']}."

    def __call__(self, *given, **named):
        return self._saved.load(self)(*given, **named)

    @property
    def __wrapped__(self):
        return self._saved.load(self)

    @property
    def __signature__(self):
        return import_stdlib("inspect").signature(self._saved.load(self))

    def __repr__(self):
        return f"<saved tool {self.__name__}, version {self._version}>"


class SavedTools:
    def __init__(self, call, namespace, store_source):
        self.call, self.namespace, self.store_source = call, namespace, store_source
        self.assigned = {}  # name: (version, value) that this class has put into the namespace

    def save(self, function):
        """Saves a function for later sessions, with the imports, helper functions and plain constants that it uses.
        Saving again creates a new version. Returns the function."""
        bare = unwrap(function)
        name = getattr(bare, "__name__", None)
        if not isinstance(bare, FUNCTION) or not name:
            raise TypeError("save_tool needs a function that is defined with def")
        check_name(name)
        try:
            source = collect(bare)
        except ValueError as refusal:
            raise MCPError(f"{name} cannot be saved: {refusal}", kind="invalid") from None
        self.call("saved/save", name=name, source=source, doc=doc_of(bare))
        return function

    def refresh(self, infos):
        """Adds stubs for saved tools under names that are free, and removes those of deleted tools."""
        by_name = {info["name"]: info for info in infos}
        for name in [name for name in self.assigned if name not in by_name]:
            self.remove(name)
        for name, info in by_name.items():
            version, value = self.assigned.get(name, (None, None))
            if name in self.namespace and (value is None or self.namespace[name] is not value):
                self.assigned.pop(name, None)  # assigned by user code
            elif name not in self.namespace or version != info.get("version"):
                self.assign(name, info.get("version"), SavedTool(self, info))

    def assign(self, name, version, value):
        self.assigned[name] = version, value
        self.namespace[name] = value

    def remove(self, name):
        _, value = self.assigned.pop(name, (None, None))
        if value is not None and self.namespace.get(name) is value:
            del self.namespace[name]

    def load(self, stub):
        """Returns the function of a stub, and replaces the stub by it in the namespace."""
        if stub._function is None:
            name = stub.__name__
            tool = self.call("saved/load", name=name)
            stub._function = self.run(name, tool["version"], tool["source"])
            if self.namespace.get(name) is stub:
                self.assign(name, stub._version, stub._function)
        return stub._function

    def run(self, name, version, source):
        """Runs the source of a saved tool in a separate namespace."""
        file_name = f"<saved {name} version {version}>"
        self.store_source(file_name, source)
        namespace = {"__name__": f"saved_tools.{name}", "__builtins__": builtins}
        try:
            exec(compile(source, file_name, "exec", dont_inherit=True), namespace)
            function = namespace[name]
        except Exception as failure:
            cause = f"{type(failure).__name__}: {failure}"
            hint = f"hint: save it again, or remove it with runtime.delete_tool({name!r})"
            message = f"the saved tool {name} (version {version}) cannot be loaded: {cause}; {hint}"
            raise MCPError(message, kind="invalid", tool=name) from failure
        return function

    def list(self):
        return self.call("saved/list")["tools"]

    def delete(self, name):
        is_deleted = bool(self.call("saved/delete", name=name)["deleted"])
        self.remove(name)
        return is_deleted


def check_name(name):
    if not name.isidentifier() or import_stdlib("keyword").iskeyword(name) or name.startswith("_"):
        message = f"{name!r} is not a valid name for a saved tool; hint: use an identifier that starts with a letter"
        raise MCPError(message, kind="invalid")


def doc_of(function):
    return import_stdlib("inspect").getdoc(function) or ""
