"""The source of a function as a module of its own: with the imports, helpers and constants that it uses.

Of the names that it takes from where it was defined: a module or what comes from one is imported; a function that
was defined in a cell is included, with what that uses in turn; plain constants are written out as they are now. For
anything else ValueError says which name it was, and what to do.
"""

import builtins
import sys

from kernel_imports import import_own
from mcp_bridge_servers import ServerProxy, Servers

FUNCTION = type(lambda: None)
SAVERS = ("save_tool", "runtime.save_tool", "mcp.runtime.save_tool")  # decorators that are left behind


def collect(function):
    """The whole source of what saves `function`. ValueError if it cannot stand alone."""
    return Collection(function).render()


class Collection:
    def __init__(self, function):
        self.imports, self.constants = {}, {}
        self.functions = []  # those that others use first: a default or a decorator may need them
        self.values = {}  # name: what it stands for, in all parts the same
        self.add_function(function.__name__, function)

    def render(self):
        blocks = ["\n".join(sorted(self.imports)), "\n".join(self.constants.values()), *self.functions]
        return "\n\n".join(block for block in blocks if block) + "\n"

    def add(self, name, value, tree):
        is_new = name not in self.values
        if self.values.setdefault(name, value) is not value:
            raise ValueError(f"two functions that it uses mean different things by {name!r}: rename one")
        if isinstance(value, type(sys)):
            self.add_module(name, value, tree)
        elif isinstance(value, Servers) or name == "LOADED_MCP_SERVERS":
            home = "mcp_servers" if isinstance(value, Servers) else name
            self.imports[f"from mcp.runtime import {home}" + ("" if home == name else f" as {name}")] = True
        elif is_literal(value):
            self.constants[name] = f"{name} = {value!r}"
        elif isinstance(plain(value), FUNCTION) and is_of_cell(plain(value)):
            if is_new:
                self.add_function(name, value)
        else:
            self.add_import(name, value)

    def add_module(self, name, module, tree):
        if isinstance(module, ServerProxy):
            self.imports[f"from mcp.servers import {module.__mcp__.alias} as {name}"] = True
            return
        path = module.__name__
        self.imports[f"import {path}" if path == name else f"import {path} as {name}"] = True
        for attributes in attributes_of(tree, name):
            below = f"{path}.{attributes}"
            while below != path:
                if path == name and isinstance(sys.modules.get(below), type(sys)):
                    self.imports[f"import {below}"] = True  # `import xml` alone does not bring xml.dom
                    break
                below = below.rpartition(".")[0]

    def add_import(self, name, value):
        home, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
        found = sys.modules.get(home) if isinstance(home, str) else None
        if isinstance(own, str) and home != "__main__" and getattr(found, own, None) is value:
            self.imports[f"from {home} import {own}" + ("" if own == name else f" as {name}")] = True
        elif isinstance(value, type):
            raise ValueError(f"it uses the class {name!r}, which is not from a module: define it inside the function")
        else:
            kind = type(value).__name__
            raise ValueError(f"it uses {name!r}, a {kind} of this session: make it inside the function, or pass it in")

    def add_function(self, name, value):
        function = plain(value)
        if function.__name__ != name:
            raise ValueError(f"it uses {name!r}, which was defined as {function.__name__!r}: use that name")
        if function.__closure__:
            kept = ", ".join(function.__code__.co_freevars)
            raise ValueError(f"{name!r} keeps variables of the function around it ({kept}): pass them in")
        source, tree = source_of(function)
        self.values[name] = value
        space = function.__globals__
        for used, is_read in global_names(source).items():
            if used == name or (used.startswith("__") and used.endswith("__")):
                continue
            if used in space:
                self.add(used, space[used], tree)
            elif is_read and not hasattr(builtins, used):
                raise ValueError(f"{name!r} uses {used!r}, which is not defined")
        self.functions.append(source)


def plain(value):
    """The function that decorators were put around, or the value itself."""
    seen = 0
    while hasattr(value, "__wrapped__") and seen < 100:
        value, seen = value.__wrapped__, seen + 1
    return value


def is_of_cell(function):
    """Whether its source is in this session and nowhere else."""
    return function.__code__.co_filename.startswith(("<cell ", "<saved "))


def source_of(function):
    """Its source and syntax tree, without the decorators that save it."""
    try:
        lines, _ = import_own("inspect").getsourcelines(function)
    except (OSError, TypeError) as failure:
        raise ValueError(f"the source of {function.__name__!r} is not there: {failure}") from None
    ast = import_own("ast")
    text = import_own("textwrap").dedent("".join(lines))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        tree = None
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise ValueError(f"{function.__name__!r} is no function of its own: define it with def")
    lines = text.splitlines()
    for decorator in tree.body[0].decorator_list:
        if ast.unparse(decorator) in SAVERS:
            for number in range(decorator.lineno, decorator.end_lineno + 1):
                lines[number - 1] = None
    text = "\n".join(line for line in lines if line is not None).strip("\n") + "\n"
    return text.rstrip("\n"), ast.parse(text)


def global_names(source):
    """The names that a piece of source has from its module or from the builtins, and whether it reads them."""
    names, pending = {}, [import_own("symtable").symtable(source, "?", "exec")]
    while pending:
        table = pending.pop()
        pending += table.get_children()
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
                names[name] = True
            elif symbol.is_declared_global():
                names.setdefault(name, False)
    return names


def attributes_of(tree, name):
    """Of `name.a.b` each `a.b` that is there."""
    ast = import_own("ast")
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id == name:
            yield ".".join(parts)


def is_literal(value):
    """Whether its repr says all of it."""
    if type(value) not in (str, bytes, int, float, bool, type(None), list, tuple, dict, set):
        return False
    try:
        return import_own("ast").literal_eval(repr(value)) == value
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
