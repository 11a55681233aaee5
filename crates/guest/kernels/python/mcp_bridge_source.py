"""The source of a function as a standalone module, with the imports, helpers and constants that it uses.

For each global name that the function uses: a module or an item of one is imported; a function that was defined in a
cell is included, with the names that it uses in turn; a plain constant is written with its current value. Anything else
raises ValueError with the name and a hint.
"""

import builtins
import sys

from kernel_imports import import_stdlib
from mcp_bridge_servers import ServerProxy, Servers

FUNCTION = type(lambda: None)
SAVERS = ("save_tool", "runtime.save_tool", "mcp.runtime.save_tool")  # decorators that are removed


def collect(function):
    """Returns the standalone source of `function`; raises ValueError if it cannot be made standalone."""
    return Collection(function).render()


class Collection:
    def __init__(self, function):
        self.imports, self.constants = {}, {}
        self.functions = []  # helpers come before their users: a default or a decorator may need them
        self.values = {}  # name: its value, which is the same in all functions
        self.add_function(function.__name__, function)

    def render(self):
        blocks = ["\n".join(sorted(self.imports)), "\n".join(self.constants.values()), *self.functions]
        return "\n\n".join(block for block in blocks if block) + "\n"

    def add(self, name, value, tree):
        is_new = name not in self.values
        if self.values.setdefault(name, value) is not value:
            raise ValueError(f"two functions that it uses have different values for {name!r}; hint: rename one")
        if isinstance(value, type(sys)):
            self.add_module(name, value, tree)
        elif isinstance(value, Servers) or name == "LOADED_MCP_SERVERS":
            item = "mcp_servers" if isinstance(value, Servers) else name
            self.imports[f"from mcp.runtime import {item}" + ("" if item == name else f" as {name}")] = True
        elif is_literal(value):
            self.constants[name] = f"{name} = {value!r}"
        elif isinstance(unwrap(value), FUNCTION) and is_of_cell(unwrap(value)):
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
                    self.imports[f"import {below}"] = True  # `import xml` alone does not import xml.dom
                    break
                below = below.rpartition(".")[0]

    def add_import(self, name, value):
        path, item = getattr(value, "__module__", None), getattr(value, "__name__", None)
        module = sys.modules.get(path) if isinstance(path, str) else None
        if isinstance(item, str) and path != "__main__" and getattr(module, item, None) is value:
            self.imports[f"from {path} import {item}" + ("" if item == name else f" as {name}")] = True
        elif isinstance(value, type):
            raise ValueError(f"it uses the class {name!r} of this session; hint: define it inside the function")
        else:
            problem = f"it uses {name!r}, a {type(value).__name__} of this session"
            raise ValueError(f"{problem}; hint: create it inside the function, or pass it as an argument")

    def add_function(self, name, value):
        function = unwrap(value)
        if function.__name__ != name:
            raise ValueError(f"it uses {name!r}, which was defined as {function.__name__!r}; hint: use that name")
        if function.__closure__:
            free = ", ".join(function.__code__.co_freevars)
            problem = f"{name!r} uses variables of the function around it ({free})"
            raise ValueError(f"{problem}; hint: pass them as arguments")
        source, tree = source_of(function)
        self.values[name] = value
        namespace = function.__globals__
        for used, is_read in global_names(source).items():
            if used == name or (used.startswith("__") and used.endswith("__")):
                continue
            if used in namespace:
                self.add(used, namespace[used], tree)
            elif is_read and not hasattr(builtins, used):
                raise ValueError(f"{name!r} uses {used!r}, which is not defined")
        self.functions.append(source)


def unwrap(value):
    """Returns the function inside of decorators, or the value itself."""
    seen = 0
    while hasattr(value, "__wrapped__") and seen < 100:
        value, seen = value.__wrapped__, seen + 1
    return value


def is_of_cell(function):
    """Returns whether the source of a function exists only in this session."""
    return function.__code__.co_filename.startswith(("<cell ", "<saved "))


def source_of(function):
    """Returns source and syntax tree of a function, without the decorators that save it."""
    try:
        lines, _ = import_stdlib("inspect").getsourcelines(function)
    except (OSError, TypeError) as failure:
        raise ValueError(f"the source of {function.__name__!r} is not available: {failure}") from None
    ast = import_stdlib("ast")
    text = import_stdlib("textwrap").dedent("".join(lines))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        tree = None
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise ValueError(f"{function.__name__!r} is not a separate function; hint: define it with def")
    lines = text.splitlines()
    for decorator in tree.body[0].decorator_list:
        if ast.unparse(decorator) in SAVERS:
            for number in range(decorator.lineno, decorator.end_lineno + 1):
                lines[number - 1] = None
    text = "\n".join(line for line in lines if line is not None).strip("\n") + "\n"
    return text.rstrip("\n"), ast.parse(text)


def global_names(source):
    """Maps the names that source takes from its module or the builtins to whether it reads them."""
    names, pending = {}, [import_stdlib("symtable").symtable(source, "?", "exec")]
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
    """Yields `a.b` for each `name.a.b` in the tree."""
    ast = import_stdlib("ast")
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id == name:
            yield ".".join(parts)


def is_literal(value):
    """Returns whether the repr of a value is enough to create it again."""
    if type(value) not in (str, bytes, int, float, bool, type(None), list, tuple, dict, set):
        return False
    try:
        return import_stdlib("ast").literal_eval(repr(value)) == value
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
