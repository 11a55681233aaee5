"""The text of a cell: made into code objects, parted where its last expression is its value, and no slower than it must
be; and kept for tracebacks."""

import sys

from kernel_imports import ImportHook, import_own

CO_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the import
PLAIN = 0x43  # those of a function that is nothing else: CO_OPTIMIZED, CO_NEWLOCALS, CO_NOFREE
TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, likewise
MARKS = frozenset(";#'\"\\()[]{}")  # of which a line that is plainly an assignment has none
NEED_LOOP = frozenset(("create_task", "ensure_future", "get_running_loop"))
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # functions of their own, before 3.12
RUN_LOOP = frozenset(("run", "run_until_complete", "run_forever"))  # which cannot be where one runs
STARTS_TASKS = frozenset(("asyncio.create_task", "asyncio.ensure_future", "asyncio.get_running_loop"))
RUNS_LOOP = frozenset(("asyncio.run", "run_until_complete", "run_forever"))

cells = {}  # as linecache.cache has them, of which it becomes part when that is imported
futures = 0  # the flags of what cells have imported from `__future__`: that lasts, as at any prompt


def compile_cell(code, name):
    """A cell as code objects to run one after another; the value of the last is that of the cell."""
    parts = compile_parts(code, name, TOP_LEVEL_AWAIT | futures)
    if "__future__" in code:
        keep_futures(parts)
    return parts


def keep_futures(parts):
    global futures
    known = import_own("__future__")
    for feature in known.all_feature_names:
        for part in parts:
            futures |= part.co_flags & getattr(known, feature).compiler_flag


def compile_parts(code, name, flags):
    """The way over the syntax tree takes twice as long, so it is taken only where a cell must be parted."""
    if ends_in_assignment(code):
        return [compile(code, name, "exec", flags, dont_inherit=True)]
    if is_one_expression(code):
        try:
            return [compile(code, name, "eval", flags, dont_inherit=True)]
        except SyntaxError:
            pass  # or it is none, which is said below
    import _ast

    tree = compile(code, name, "exec", flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
    parts = []
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
        parts.append(compile(last, name, "eval", flags, dont_inherit=True))
    if tree.body:
        parts.insert(0, compile(tree, name, "exec", flags, dont_inherit=True))
    return parts


def compile_first(code, name):
    """The same for one plain call in a cell that somebody waits for while the interpreter starts: `compile` makes the
    types of the syntax tree when it is first called, which takes longer than all else here, and `eval` does not."""
    if code.count("(") != 1 or code[-1] != ")" or not is_one_expression(code):
        return None
    if any(mark in code for mark in ("\\", "[", "is")):
        return None  # it may be warned about, by the name of its cell
    try:
        made = eval(f"lambda: (\n{code}\n)", {}).__code__
    except Exception:
        return None  # no expression, or one that awaits
    # What would be a variable, a generator or a function of the lambda is for `compile`.
    has_functions = any(type(constant) is type(made) for constant in made.co_consts)
    if made.co_varnames or made.co_cellvars or made.co_flags & ~PLAIN or has_functions:
        return None
    names = {"co_name": "<module>", "co_filename": name, "co_firstlineno": made.co_firstlineno - 1}
    if sys.version_info >= (3, 11):
        names["co_qualname"] = "<module>"
    return [made.replace(**names)]


def is_one_expression(code):
    """Whether it looks like that: a call, or a name and what follows it."""
    return "\n" not in code and ";" not in code and code.partition("(")[0].partition(".")[0].isidentifier()


def ends_in_assignment(code):
    """Whether the last line is plainly `name = …` or `name += …`, and no part of anything that began before it:
    that would end in it, with a bracket or quotes."""
    line = code[code.rfind("\n") + 1 :]
    target, sign, value = line.partition("=")
    if not sign or value[:1] == "=" or not target.rstrip("+-*/%&|^@>< ").isidentifier():
        return False
    if target[-1] in "<>" and target[-2:] not in ("<<", ">>"):
        return False  # a comparison
    return MARKS.isdisjoint(line)


def wants_loop(parts, namespace):
    """Whether a cell that awaits nothing starts tasks for others to await, as it can in any notebook. What it does in
    functions matters only where it is not plain that `asyncio` starts them: others have functions of these names too,
    and may run loops in them."""
    at_once = [code for part in parts for code in nested_codes(part, COMPREHENSIONS)]
    names = set().union(*(code.co_names for code in at_once))
    if not NEED_LOOP & names:
        return False
    origins = find_origins(names, namespace)
    uses = set().union(*(names_used(code, origins) for code in at_once))
    if uses & RUNS_LOOP:
        return False
    if uses & STARTS_TASKS:
        return True
    if not uses & NEED_LOOP or "asyncio" not in names:
        return False
    return all(RUN_LOOP.isdisjoint(code.co_names) for part in parts for code in nested_codes(part))


def nested_codes(code, names=None):
    """It, and those of the functions and classes in it, or only of those with such names."""
    yield code
    for constant in code.co_consts:
        if type(constant) is type(code) and (names is None or constant.co_name in names):
            yield from nested_codes(constant, names)


def find_origins(names, namespace):
    """Which of the names stand for `asyncio`, or for what is in it under the same name."""
    asyncio, origins = sys.modules.get("asyncio", names), {}
    for name in names:
        value = namespace.get(name)
        if value is asyncio:
            origins[name] = "asyncio"
        elif value is getattr(asyncio, name, names):
            origins[name] = f"asyncio.{name}"
    return origins


def names_used(code, origins):
    """The names and attributes that it looks up, those of `asyncio` in full. What it imports or assigns is noted in
    `origins`, and is not used by that."""
    uses, last, module = set(), "", ""
    for step in import_own("dis").get_instructions(code):
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


def is_forgotten(values):
    """Whether this list has in it a coroutine that nothing else holds, and so could await any more. Nobody calls such a
    function last to look at that, so it is awaited for them; IPython shows it, and warns of it later, in another cell."""
    return is_fresh_coroutine(values[0]) and sys.getrefcount(values[0]) == 2  # the list's, and that of this call


def is_fresh_coroutine(value):
    """Whether it is one of an `async def`, and nobody has begun to await it."""
    if type(value) is not Coroutine or value.cr_frame is None or value.cr_running:
        return False
    return not value.cr_suspended if sys.version_info >= (3, 11) else value.cr_frame.f_lasti < 0


async def do_nothing():
    pass


coroutine = do_nothing()
Coroutine = type(coroutine)  # types.CoroutineType, likewise
coroutine.close()


def remember(name, code):
    """Keeps the source of a cell, for tracebacks."""
    entry = (len(code), None, [f"{line}\n" for line in code.split("\n")], name)
    (sys.modules["linecache"].cache if "linecache" in sys.modules else cells)[name] = entry


def forget(name):
    cells.pop(name, None)
    try:
        sys.modules["linecache"].cache.pop(name, None)
    except Exception:
        pass  # it is not loaded, or no longer what it was


def share_texts():
    """Has the modules that look for the source of code find that of cells."""
    ImportHook({"linecache": fill_linecache, "inspect": patch_inspect}).install()


def fill_linecache(linecache):
    linecache.cache.update(cells)
    cells.clear()


def patch_inspect(inspect):
    """Classes have no code that would name their cell, and their module has no file."""
    find = inspect.getfile

    def getfile(object):
        try:
            return find(object)
        except (OSError, TypeError):
            name = cell_of(object) if isinstance(object, type) and object.__module__ == "__main__" else None
            if name is None:
                raise
            return name

    inspect.getfile = getfile


def cell_of(found):
    """The name of the cell that defines a class: that of one of its methods, or else the last that has such a class."""
    texts = import_own("linecache").cache
    for member in vars(found).values():
        if type(member) is type(cell_of) and member.__qualname__ == f"{found.__qualname__}.{member.__name__}":
            if member.__code__.co_filename in texts:
                return member.__code__.co_filename
    for name in reversed(list(texts)):
        text = "".join(texts[name][2]) if name.startswith("<cell ") else ""
        if found.__name__ not in text:
            continue
        try:
            parts = compile_parts(text, name, TOP_LEVEL_AWAIT | futures)
        except SyntaxError:
            continue
        if any(defines(part, found) for part in parts):
            return name
    return None


def defines(code, found):
    """Whether the body of such a class is in it, which sets its qualified name."""
    inner = [constant for constant in code.co_consts if type(constant) is type(code)]
    bodies = (part for part in inner if part.co_name == found.__name__)
    return any(found.__qualname__ in part.co_consts for part in bodies) or any(defines(part, found) for part in inner)
