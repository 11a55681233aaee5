"""Tools that were saved: functions of earlier sessions, there by name in every later one.

In a session that did not define it such a tool is a stub at first. Its source is asked for, and run, when it is
first used; until then one that is broken harms nobody. A name that the user has taken is left alone.
"""

import builtins

import mcp_bridge_calls as calls
from mcp_bridge_calls import MCPError
from mcp_bridge_source import FUNCTION, collect, plain


class SavedTool:
    """A saved tool that has not been used yet. Calling it loads it."""

    __module__ = "mcp.runtime"

    def __init__(self, saved, told):
        self._saved, self._version = saved, told.get("version")
        self._function = None
        self.__name__ = self.__qualname__ = told["name"]
        self.__doc__ = told.get("doc") or f"The saved tool {told['name']}."

    def __call__(self, *given, **named):
        return self._saved.load(self)(*given, **named)

    @property
    def __wrapped__(self):
        return self._saved.load(self)

    @property
    def __signature__(self):
        return calls.import_own("inspect").signature(self._saved.load(self))

    def __repr__(self):
        return f"<saved tool {self.__name__}, version {self._version}>"


class SavedTools:
    def __init__(self, ask, namespace, remember):
        self.ask, self.namespace, self.remember = ask, namespace, remember
        self.placed = {}  # name: (version, what was put there)

    def save(self, function):
        """Keeps a function, with its imports and docstring, for later sessions. Also a decorator.

        It takes along the imports, helper functions and plain constants that it uses. Saving again makes a new
        version. Returns the function."""
        bare = plain(function)
        name = getattr(bare, "__name__", None)
        if not isinstance(bare, FUNCTION) or not name:
            raise TypeError("save_tool takes a function that was defined with def")
        refuse_name(name)
        try:
            source = collect(bare)
        except ValueError as refusal:
            raise MCPError(f"{name} cannot be saved: {refusal}", kind="invalid") from None
        self.ask("saved/save", name=name, source=source, doc=doc_of(bare))
        return function

    def learn(self, told):
        """Puts stubs where there is room, and takes away what is saved no more."""
        named = {tool["name"]: tool for tool in told}
        for name in [name for name in self.placed if name not in named]:
            self.remove(name)
        for name, tool in named.items():
            version, thing = self.placed.get(name, (None, None))
            if name in self.namespace and (thing is None or self.namespace[name] is not thing):
                self.placed.pop(name, None)  # the user's own
            elif name not in self.namespace or version != tool.get("version"):
                self.place(name, tool.get("version"), SavedTool(self, tool))

    def place(self, name, version, thing):
        self.placed[name] = version, thing
        self.namespace[name] = thing

    def remove(self, name):
        _, thing = self.placed.pop(name, (None, None))
        if thing is not None and self.namespace.get(name) is thing:
            del self.namespace[name]

    def load(self, stub):
        """The function that a stub stands for, which takes its place."""
        if stub._function is None:
            name = stub.__name__
            told = self.ask("saved/load", name=name)
            stub._function = self.run(name, told["version"], told["source"])
            if self.namespace.get(name) is stub:
                self.place(name, stub._version, stub._function)
        return stub._function

    def run(self, name, version, source):
        """Runs the source of a saved tool in a namespace of its own."""
        file_name = f"<saved {name} version {version}>"
        self.remember(file_name, source)
        space = {"__name__": f"saved_tools.{name}", "__builtins__": builtins}
        try:
            exec(compile(source, file_name, "exec", dont_inherit=True), space)
            function = space[name]
        except Exception as failure:
            again = f"save it again, or remove it with runtime.delete_tool({name!r})"
            why = f"{type(failure).__name__}: {failure}"
            message = f"the saved tool {name} (version {version}) cannot be loaded: {why}; {again}"
            raise MCPError(message, kind="invalid", tool=name) from failure
        return function

    def list(self):
        return self.ask("saved/list")["tools"]

    def delete(self, name):
        is_deleted = bool(self.ask("saved/delete", name=name)["deleted"])
        self.remove(name)
        return is_deleted


def refuse_name(name):
    if not name.isidentifier() or calls.import_own("keyword").iskeyword(name) or name.startswith("_"):
        raise MCPError(f"{name!r} is no name for a saved tool: it needs one that starts with a letter", kind="invalid")


def doc_of(function):
    return calls.import_own("inspect").getdoc(function) or ""
