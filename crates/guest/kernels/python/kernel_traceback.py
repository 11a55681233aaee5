"""Tracebacks for the author of a cell: the frames of the caller in full, those of libraries in one line each.

Long runs of library frames and recursion are folded. Without the frames of the kernel, and with a hint where one helps.
"""

from kernel_imports import KERNEL_DIRECTORY, STDLIB_PATH, import_stdlib
from kernel_missing import hint_for_missing_module, hint_for_missing_server

MAX_LIBRARY_RUN = 4  # frames; of longer runs, the first and the last are shown
MAX_CYCLE = 8  # frames that call each other again and again
MIN_REPETITIONS = 4  # fewer are shown
MAX_HEAD, MAX_TAIL = 20, 30  # frames that are shown of one exception
MAX_LINE = 500  # characters of a source line
MAX_PACKAGES = 3  # names of packages in one fold
MAGIC_HINT = "hint: notebook magics are not available here: use execute_command, or subprocess\n"


def format_traceback(exc, trace=None):
    if isinstance(exc, SyntaxError) and exc.text is None and exc.filename and exc.lineno:
        lines = import_stdlib("linecache")
        exc.text = lines.getline(exc.filename, exc.lineno) or None  # as in errors of the parser
    report = import_stdlib("traceback").TracebackException(type(exc), exc, trace or exc.__traceback__)
    pending = [report]
    while pending:
        part = pending.pop()
        if part is not None:
            set_format(part.stack)
            pending += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    is_of_cell = isinstance(exc, SyntaxError) and not report.stack  # and not of code that the cell compiles itself
    if is_of_cell and is_notebook_magic(exc):
        hint = MAGIC_HINT
    else:
        hint = hint_for_missing_module(exc) or hint_for_missing_server(exc)
    return "".join(report.format()) + hint


def set_format(stack):
    """Makes a stack of `traceback` format itself as this module does."""
    stack[:] = user_frames(stack)
    one = type(stack).from_list
    stack.format = lambda **_: format_frames(stack, lambda frame: "".join(one([frame]).format()))


def format_frames(frames, format_frame):
    """Returns the lines of a traceback about frames."""
    entries = fold_cycles(fold_libraries(frames))
    if len(entries) > MAX_HEAD + MAX_TAIL:
        left_out = len(entries) - MAX_HEAD - MAX_TAIL
        entries[MAX_HEAD:-MAX_TAIL] = [f"  … {left_out} frames left out …\n"]
    texts = (entry if isinstance(entry, str) else format_entry(entry, format_frame) for entry in entries)
    return [shorten_lines(text) for text in texts]


def format_entry(frame, format_frame):
    if library_of(frame.filename):
        return f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n'
    return format_frame(frame)


def shorten_lines(text):
    if len(text) <= MAX_LINE:
        return text
    lines = text.splitlines()
    return "".join(line[:MAX_LINE] + (" …\n" if len(line) > MAX_LINE else "\n") for line in lines)


def fold_libraries(frames):
    """Returns the frames with a line of text in place of those in the middle of a long run of library frames."""
    entries, run = [], []
    for frame in [*frames, None]:
        if frame is not None and library_of(frame.filename):
            run.append(frame)
            continue
        entries += run if len(run) <= MAX_LIBRARY_RUN else [run[0], describe_fold(run[1:-1]), run[-1]]
        run = []
        if frame is not None:
            entries.append(frame)
    return entries


def describe_fold(frames):
    names = list(dict.fromkeys(library_of(frame.filename) for frame in frames))
    more = ", …" if len(names) > MAX_PACKAGES else ""
    return f"  … {len(frames)} frames of {', '.join(names[:MAX_PACKAGES])}{more} …\n"


def fold_cycles(entries):
    """Returns the entries with repetitions of the same entries, as in recursion, replaced by a line of text."""
    keys = [entry if isinstance(entry, str) else (entry.filename, entry.lineno, entry.name) for entry in entries]
    folded, start = [], 0
    while start < len(keys):
        size, repetitions = find_cycle(keys, start)
        folded += entries[start : start + size]
        if repetitions > 1:
            what = "line" if size == 1 else f"{size} frames"
            folded.append(f"  [Previous {what} repeated {repetitions - 1} more times]\n")
        start += size * repetitions
    return folded


def find_cycle(keys, start):
    """Returns the size of the cycle that begins at an entry, and how often it occurs; (1, 1) if there is none."""
    for size in range(1, MAX_CYCLE + 1):
        end = start + size
        while end < len(keys) and keys[end] == keys[end - size]:
            end += 1
        repetitions = (end - start) // size
        if repetitions >= MIN_REPETITIONS:
            return size, repetitions
    return 1, 1


def library_of(filename):
    """Returns the name of the package of a library, also of the standard library; nothing for code of the caller."""
    for directory in ("/site-packages/", "/dist-packages/"):
        _, found, path = filename.rpartition(directory)
        if found:
            return path.partition("/")[0].partition(".")[0]
    if filename.startswith("<frozen "):
        return filename[len("<frozen ") : -1].partition(".")[0]
    for directory in STDLIB_PATH:
        if directory and filename.startswith(f"{directory}/"):
            return filename[len(directory) + 1 :].partition("/")[0].partition(".")[0]
    return ""


def is_notebook_magic(error):
    """Returns whether the line of a syntax error is a notebook magic (`!ls`, `%time f()`, `x = !ls`), or the cell
    begins with one such as `%%bash`."""
    read = import_stdlib("linecache").getline
    line = read(error.filename, error.lineno or 0)
    target, _, value = line.partition("=")
    if all(name.strip().isidentifier() for name in target.split(",")):
        line = value
    line = line.strip()
    is_command = line[:1] == "!" and line[1:2] not in ("", "=")
    is_magic = line[:1] == "%" and line.lstrip("%")[:1].isalpha()
    return is_command or is_magic or read(error.filename, 1).startswith("%%")


def user_frames(stack):
    """Removes the frames of the kernel, and those of the event loop between them and the cell."""
    if stack and is_kernel_frame(stack[0]):
        cell = (n for n, frame in enumerate(stack) if frame.filename.startswith("<cell "))
        last = max(n for n, frame in enumerate(stack) if is_kernel_frame(frame))
        stack = stack[next(cell, last) :]
    return [frame for frame in stack if not is_kernel_frame(frame)]


def is_kernel_frame(frame):
    return is_kernel_file(frame.filename)


def is_kernel_file(filename):
    return filename.rpartition("/")[0] == KERNEL_DIRECTORY
