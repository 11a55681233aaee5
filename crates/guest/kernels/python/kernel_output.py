"""Texts of results and errors, of limited length.

Most functions run guest code (`__repr__`, `__str__`), which may fail, print, take long or be interrupted; a failure
becomes text and never ends the kernel. Modules that take long to import (traceback, reprlib) are imported when a cell
first needs them.
"""

import sys

from kernel_imports import KERNEL_DIRECTORY, import_stdlib
from kernel_traceback import format_traceback, is_kernel_file

MAX_RESULT = 64 << 10  # characters
MAX_TRACEBACK = 32 << 10  # characters
MAX_NAME = 256  # characters
TEXTS = (str, bytes, bytearray)
CONTAINERS = (list, tuple, set, frozenset, dict)

was_truncated = False  # whether part of a value or an error of the running cell was left out


def start_cell():
    global was_truncated
    was_truncated = False


def trim(text, limit):
    global was_truncated
    if len(text) <= limit:
        return text
    was_truncated = True
    half = (limit - 64) // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def render(make, what, limit):
    """Returns the text that `make` returns, up to a limit, or a text with the error if it fails."""
    try:
        return trim(make(), limit)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return trim(f"<{what} failed: {summarize(failure)}>", limit)


def summarize(failure):
    """Returns the type and the message of an exception."""
    try:
        return f"{type(failure).__name__}: {failure}"
    except KeyboardInterrupt:
        raise
    except BaseException:
        return type(failure).__name__


def render_result(value):
    return render(lambda: make_repr(value), "repr()", MAX_RESULT)


def make_repr(value):
    kind = type(value)
    if kind in CONTAINERS or kind in TEXTS:
        return make_short_repr(value) if exceeds_result(value) else repr(value)
    return repr(value)


def make_short_repr(value):
    global was_truncated
    was_truncated = True
    short = import_stdlib("reprlib").Repr()
    short.maxlevel = 3
    short.maxlist = short.maxtuple = short.maxset = short.maxfrozenset = short.maxdict = 100
    short.maxstring = short.maxother = MAX_RESULT // 2
    short.repr_dict = lambda pairs, level: make_dict_repr(short, pairs, level)
    return short.repr(value)


def make_dict_repr(short, pairs, level):
    """Keeps the order of the dict, which `reprlib` would sort."""
    from itertools import islice

    if pairs and level <= 0:
        return "{...}"
    first = islice(pairs.items(), short.maxdict)
    parts = [f"{short.repr1(key, level - 1)}: {short.repr1(value, level - 1)}" for key, value in first]
    if len(pairs) > short.maxdict:
        parts.append("...")
    return "{" + ", ".join(parts) + "}"


class ContainerEnd(int):
    """Marks the end of the content of the container with this identity."""


def exceeds_result(value, budget=MAX_RESULT):
    """Returns whether plain containers have more content than fits a result: rendering all of it would be wasted."""
    pending, within = [value], set()
    while pending and budget > 0:
        item = pending.pop()
        kind = type(item)
        if kind is ContainerEnd:
            within.discard(item)
            continue
        budget -= 1
        if kind in TEXTS:
            budget -= len(item)
        elif kind in CONTAINERS and id(item) not in within:  # a container inside itself is shown as dots
            if len(item) > budget:
                return True
            within.add(id(item))
            pending.append(ContainerEnd(id(item)))
            pending.extend(item)
            pending.extend(item.values() if kind is dict else ())
    return budget <= 0


def describe_exception(exc):
    """Returns the status and the error with which a cell has ended."""
    name = render(lambda: f"{type(exc).__name__}", "__name__", MAX_NAME)
    if isinstance(exc, SystemExit):
        message = render(lambda: str(0 if exc.code is None else exc.code), "str()", MAX_TRACEBACK)
        return "exited", {"name": name, "message": message, "traceback": "", "code": exit_code(exc.code)}
    message = render(lambda: str(exc), "str()", MAX_TRACEBACK)
    trace = render(lambda: format_traceback(exc), "traceback", MAX_TRACEBACK)
    status = "interrupted" if isinstance(exc, KeyboardInterrupt) else "error"
    return status, {"name": name, "message": message, "traceback": trace}


def exit_code(given):
    """Returns the exit code as the interpreter does: anything but a number is a message and means failure."""
    if given is None:
        return 0
    return int(given) & 0xFF if isinstance(given, int) else 1


def exit_message(given, message):
    """Returns the text that the interpreter would print at its end."""
    return "" if given is None or isinstance(given, int) else f"{message}\n"


def preload():
    """Imports modules ahead that are otherwise imported when they are needed."""
    for name in ("json", "linecache", "reprlib", "traceback"):
        import_stdlib(name)


def patch_traceback(traceback):
    """Makes stacks (`print_stack` and the like) begin with the cell and leaves out the frames of `display`."""
    walk = traceback.walk_stack

    def walk_stack(f):
        return walk(f) if f is None else walk_cell(f)

    def walk_cell(frame):
        for frame, line in walk(frame):
            name = frame.f_code.co_filename
            if name == f"{KERNEL_DIRECTORY}/kernel.py":
                break
            if not is_kernel_file(name):
                yield frame, line

    traceback.walk_stack = walk_stack


def patch_warnings(warnings):
    """Shows a warning that occurs while no guest code runs, for example about a coroutine that is freed with an error,
    without a line, as at the end of an interpreter."""
    show = getattr(warnings, "_showwarnmsg", None)
    if show is None:
        return  # replaced by the guest

    def _showwarnmsg(msg):
        if is_kernel_file(msg.filename):
            msg.filename, msg.lineno, msg.line = "sys", 1, ""
        show(msg)

    warnings._showwarnmsg = _showwarnmsg


def report_unraisable(args):
    """Reports an exception as the interpreter does, without the kernel's frames: an interrupt is raised in one of them,
    possibly during a `__del__`."""
    first = trace = args.exc_traceback
    while trace is not None and trace.tb_next is not None:
        if is_kernel_file(trace.tb_next.tb_frame.f_code.co_filename):
            trace.tb_next = trace.tb_next.tb_next
        else:
            trace = trace.tb_next
    if first is not None and is_kernel_file(first.tb_frame.f_code.co_filename):
        args = type(args)((args.exc_type, args.exc_value, first.tb_next, args.err_msg, args.object))
    sys.__unraisablehook__(args)


def patch_threading(threading):
    """Reports an exception that ends a thread like one that ends a cell: with source lines, which the interpreter would
    look for in files, and without the frames of `threading`."""
    report = threading.excepthook

    def excepthook(args):
        exc, trace = args.exc_value, args.exc_traceback
        if args.exc_type is SystemExit:
            return
        while trace is not None and trace.tb_frame.f_globals is vars(threading):
            trace = trace.tb_next
        try:
            sys.stderr.write(f"Exception in thread {args.thread.name}:\n{format_traceback(exc, trace)}")
        except Exception:
            report(args)

    threading.excepthook = excepthook


IMPORT_HOOKS = {"threading": patch_threading, "traceback": patch_traceback, "warnings": patch_warnings}
