"""Source code of cells: compiles it, and stores it for tracebacks and `inspect`.

A cell is compiled into several code objects if its last expression is its value. The usual forms take a fast path.
"""

import sys

from kernel_imports import ImportHook, import_stdlib

CO_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the import
PLAIN_FUNCTION = 0x43  # CO_OPTIMIZED, CO_NEWLOCALS and CO_NOFREE: the flags of a function without other properties
TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, without the import
MARKS = frozenset(";#'\"\\()[]{}")  # a line without them that looks like an assignment is one
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # separate functions before Python 3.12
TASK_STARTERS = frozenset(("create_task", "ensure_future", "get_running_loop"))
LOOP_RUNNERS = frozenset(("run", "run_until_complete", "run_forever"))  # fail where a loop runs already
ASYNCIO_TASK_STARTERS = frozenset(("asyncio.create_task", "asyncio.ensure_future", "asyncio.get_running_loop"))
ASYNCIO_LOOP_RUNNERS = frozenset(("asyncio.run", "run_until_complete", "run_forever"))

sources = {}  # entries in the format of linecache.cache, which takes them over when it is imported
future_flags = 0  # of all that cells have imported from `__future__`: it applies to later cells, as at any prompt


def compile_cell(code, name):
    """Compiles a cell into code objects that run one after another; the value of the last is the value of the cell."""
    parts = compile_parts(code, name, TOP_LEVEL_AWAIT | future_flags)
    if "__future__" in code:
        add_future_flags(parts)
    return parts


def add_future_flags(parts):
    global future_flags
    known = import_stdlib("__future__")
    for feature in known.all_feature_names:
        for part in parts:
            future_flags |= part.co_flags & getattr(known, feature).compiler_flag


def compile_parts(code, name, flags):
    """Compiles code directly if it has one part. The syntax tree takes twice as long, and is needed only to split
    it."""
    if ends_in_assignment(code):
        return [compile(code, name, "exec", flags, dont_inherit=True)]
    if is_one_expression(code):
        try:
            return [compile(code, name, "eval", flags, dont_inherit=True)]
        except SyntaxError:
            pass  # not an expression after all; an error in it is reported below
    import _ast

    tree = compile(code, name, "exec", flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
    parts = []
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
        parts.append(compile(last, name, "eval", flags, dont_inherit=True))
    if tree.body:
        parts.insert(0, compile(tree, name, "exec", flags, dont_inherit=True))
    return parts


def compile_plain_call(code, name):
    """Compiles a cell that is one plain call and the first of a cold interpreter; None if it is anything else. The
    first call of `compile` creates the types of the syntax tree, which takes longer than everything else here; `eval`
    does not."""
    if code.count("(") != 1 or code[-1] != ")" or not is_one_expression(code):
        return None
    if any(mark in code for mark in ("\\", "[", "is")):
        return None  # may cause a warning, which must name its cell
    try:
        made = eval(f"lambda: (\n{code}\n)", {}).__code__
    except Exception:
        return None  # not an expression, or one that awaits
    # Code that would be a variable, a generator or a function of the lambda needs `compile`.
    has_functions = any(type(constant) is type(made) for constant in made.co_consts)
    if made.co_varnames or made.co_cellvars or made.co_flags & ~PLAIN_FUNCTION or has_functions:
        return None
    names = {"co_name": "<module>", "co_filename": name, "co_firstlineno": made.co_firstlineno - 1}
    if sys.version_info >= (3, 11):
        names["co_qualname"] = "<module>"
    return [made.replace(**names)]


def is_one_expression(code):
    """Returns whether code looks like one expression: a call, or a name and what follows it."""
    return "\n" not in code and ";" not in code and code.partition("(")[0].partition(".")[0].isidentifier()


def ends_in_assignment(code):
    """Returns whether the last line is plainly `name = …` or `name += …`. It cannot be the end of something that began
    before it: that would end with a bracket or quotes."""
    line = code[code.rfind("\n") + 1 :]
    target, sign, value = line.partition("=")
    if not sign or value[:1] == "=" or not target.rstrip("+-*/%&|^@>< ").isidentifier():
        return False
    if target[-1] in "<>" and target[-2:] not in ("<<", ">>"):
        return False  # a comparison
    return MARKS.isdisjoint(line)


def needs_event_loop(parts, namespace):
    """Returns whether a cell that awaits nothing starts tasks for later cells to await, as it can in any notebook. The
    functions in it matter only if it is uncertain that `asyncio` starts the tasks: other libraries have functions of
    these names, and may run loops in them."""
    top_level = [code for part in parts for code in nested_codes(part, COMPREHENSIONS)]
    names = set().union(*(code.co_names for code in top_level))
    if not TASK_STARTERS & names:
        return False
    origins = find_origins(names, namespace)
    uses = set().union(*(names_used(code, origins) for code in top_level))
    if uses & ASYNCIO_LOOP_RUNNERS:
        return False
    if uses & ASYNCIO_TASK_STARTERS:
        return True
    if not uses & TASK_STARTERS or "asyncio" not in names:
        return False
    return all(LOOP_RUNNERS.isdisjoint(code.co_names) for part in parts for code in nested_codes(part))


def nested_codes(code, names=None):
    """Yields a code object and those of the functions and classes in it, or only of those with the given names."""
    yield code
    for constant in code.co_consts:
        if type(constant) is type(code) and (names is None or constant.co_name in names):
            yield from nested_codes(constant, names)


def find_origins(names, namespace):
    """Maps names that are `asyncio`, or an item of it under the same name, to their full names."""
    asyncio, origins = sys.modules.get("asyncio", names), {}
    for name in names:
        value = namespace.get(name)
        if value is asyncio:
            origins[name] = "asyncio"
        elif value is getattr(asyncio, name, names):
            origins[name] = f"asyncio.{name}"
    return origins


def names_used(code, origins):
    """Returns the names and attributes that code looks up, those of `asyncio` in full. Names that it imports or assigns
    do not count as used; they are added to `origins`."""
    uses, last, module = set(), "", ""
    for step in import_stdlib("dis").get_instructions(code):
        kind, name = step.opname, step.argval
        if kind in ("LOAD_NAME", "LOAD_GLOBAL"):
            last = origins.get(name, name)
            uses.add(last)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            last = f"asyncio.{name}" if last == "asyncio" else name
            uses.add(last)
        elif kind == "IMPORT_NAME":
            last = module = name
        elif kind == "IMPORT_FROM":
            last = f"{module}.{name}"
        elif kind == "STORE_NAME":
            origins[name] = last
        elif kind != "EXTENDED_ARG":
            last = ""
    return uses


def is_forgotten_coroutine(values):
    """Returns whether this list contains a coroutine that nothing else references, so that no later code could await
    it. The kernel awaits it: a cell that ends with such a call wants its result. IPython shows the coroutine, and warns
    about it in a later cell."""
    return is_unstarted_coroutine(values[0]) and sys.getrefcount(values[0]) == 2  # by the list and by this call


def is_unstarted_coroutine(value):
    """Returns whether it is the coroutine of an `async def` that has not been awaited yet."""
    if type(value) is not Coroutine or value.cr_frame is None or value.cr_running:
        return False
    return not value.cr_suspended if sys.version_info >= (3, 11) else value.cr_frame.f_lasti < 0


async def do_nothing():
    pass


coroutine = do_nothing()
Coroutine = type(coroutine)  # types.CoroutineType, without the import
coroutine.close()


def store_source(name, code):
    """Stores the source of a cell for tracebacks."""
    entry = (len(code), None, [f"{line}\n" for line in code.split("\n")], name)
    (sys.modules["linecache"].cache if "linecache" in sys.modules else sources)[name] = entry


def drop_source(name):
    sources.pop(name, None)
    try:
        sys.modules["linecache"].cache.pop(name, None)
    except Exception:
        pass  # not loaded, or replaced by the guest


def install_source_hooks():
    """Lets the modules that look for source code find that of cells."""
    ImportHook({"linecache": fill_linecache, "inspect": patch_inspect}).install()


def fill_linecache(linecache):
    linecache.cache.update(sources)
    sources.clear()


def patch_inspect(inspect):
    """Makes `inspect` find classes of cells: a class has no code object that names its cell, and its module no file."""
    find = inspect.getfile

    def getfile(object):
        try:
            return find(object)
        except (OSError, TypeError):
            name = find_cell(object) if isinstance(object, type) and object.__module__ == "__main__" else None
            if name is None:
                raise
            return name

    inspect.getfile = getfile


def find_cell(class_):
    """Returns the name of the cell that defines a class: that of one of its methods, or else the last that contains
    such a class."""
    texts = import_stdlib("linecache").cache
    for member in vars(class_).values():
        if type(member) is type(find_cell) and member.__qualname__ == f"{class_.__qualname__}.{member.__name__}":
            if member.__code__.co_filename in texts:
                return member.__code__.co_filename
    for name in reversed(list(texts)):
        text = "".join(texts[name][2]) if name.startswith("<cell ") else ""
        if class_.__name__ not in text:
            continue
        try:
            parts = compile_parts(text, name, TOP_LEVEL_AWAIT | future_flags)
        except SyntaxError:
            continue
        if any(defines(part, class_) for part in parts):
            return name
    return None


def defines(code, class_):
    """Returns whether code contains the body of the class, which sets its qualified name."""
    inner = [constant for constant in code.co_consts if type(constant) is type(code)]
    bodies = (part for part in inner if part.co_name == class_.__name__)
    return any(class_.__qualname__ in part.co_consts for part in bodies) or any(defines(part, class_) for part in inner)
