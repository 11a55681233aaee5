"""What a person sees of a cell beside its prints: results, errors, and rich output such as images.

Guest code runs in nearly all of it (`__repr__`, `__str__`, `_repr_html_`), so it may fail, print, take
long or be interrupted; a failure becomes text and never ends the kernel. All that is made is bounded.

Nothing here imports what the guest did not: matplotlib is drawn from only when it is loaded already. What
takes long to import (traceback, reprlib) is imported when a cell first needs it.
"""

import binascii
import io
import sys

from kernel_channel import dump_data, encode
from kernel_imports import BESIDE, ImportHook, import_own

ITEM_LIMIT = 8 << 20  # bytes before encoding
ITEMS_PER_CELL = 32
RESULT_LIMIT = 64 << 10  # characters, as are the next two
TRACEBACK_LIMIT = 32 << 10
NAME_LIMIT = 256
TEXTS = (str, bytes, bytearray)
CONTAINERS = (list, tuple, set, frozenset, dict)
NO_MAGICS = "hint: notebook magics are not available here: use execute_command, or subprocess\n"

was_cut = False  # whether a value or an error of the cell that runs is not shown whole

RICH_METHODS = (
    ("", "_repr_mimebundle_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("image/svg+xml", "_repr_svg_"),
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
)


def trim(text, limit):
    global was_cut
    if len(text) <= limit:
        return text
    was_cut = True
    kept = (limit - 64) // 2
    return f"{text[:kept]}\n… {len(text) - 2 * kept} characters left out …\n{text[-kept:]}"


def render(make, what, limit):
    """The text that `make` returns, bounded; if it fails, a text that says so."""
    try:
        return trim(make(), limit)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return trim(f"<{what} failed: {explain(failure)}>", limit)


def explain(failure):
    try:
        return f"{type(failure).__name__}: {failure}"
    except KeyboardInterrupt:
        raise
    except BaseException:
        return type(failure).__name__


def render_result(value):
    return render(lambda: make_repr(value), "repr()", RESULT_LIMIT)


def make_repr(value):
    kind = type(value)
    if kind in CONTAINERS or kind in TEXTS:
        return make_short_repr(value) if is_heavy(value) else repr(value)
    return repr(value)


def make_short_repr(value):
    global was_cut
    was_cut = True
    short = import_own("reprlib").Repr()
    short.maxlevel = 3
    short.maxlist = short.maxtuple = short.maxset = short.maxfrozenset = short.maxdict = 100
    short.maxstring = short.maxother = RESULT_LIMIT // 2
    short.repr_dict = lambda pairs, level: make_dict_repr(short, pairs, level)
    return short.repr(value)


def make_dict_repr(short, pairs, level):
    """In the dict's own order, where `reprlib` would sort it."""
    from itertools import islice

    if pairs and level <= 0:
        return "{...}"
    first = islice(pairs.items(), short.maxdict)
    parts = [f"{short.repr1(key, level - 1)}: {short.repr1(value, level - 1)}" for key, value in first]
    if len(pairs) > short.maxdict:
        parts.append("...")
    return "{" + ", ".join(parts) + "}"


class Leaving(int):
    """Stands behind all that is in the container of this identity."""


def is_heavy(value, budget=RESULT_LIMIT):
    """Whether plain containers hold more than fits a result: rendering them whole would be a waste."""
    pending, within = [value], set()
    while pending and budget > 0:
        item = pending.pop()
        kind = type(item)
        if kind is Leaving:
            within.discard(item)
            continue
        budget -= 1
        if kind in TEXTS:
            budget -= len(item)
        elif kind in CONTAINERS and id(item) not in within:  # in itself, it is shown as dots
            if len(item) > budget:
                return True
            within.add(id(item))
            pending.append(Leaving(id(item)))
            pending.extend(item)
            pending.extend(item.values() if kind is dict else ())
    return budget <= 0


def describe(exc):
    """The status and the error that a cell ended with."""
    name = render(lambda: f"{type(exc).__name__}", "__name__", NAME_LIMIT)
    if isinstance(exc, SystemExit):
        message = render(lambda: str(0 if exc.code is None else exc.code), "str()", TRACEBACK_LIMIT)
        return "exited", {"name": name, "message": message, "traceback": "", "code": exit_code(exc.code)}
    message = render(lambda: str(exc), "str()", TRACEBACK_LIMIT)
    trace = render(lambda: format_traceback(exc), "traceback", TRACEBACK_LIMIT)
    status = "interrupted" if isinstance(exc, KeyboardInterrupt) else "error"
    return status, {"name": name, "message": message, "traceback": trace}


def exit_code(given):
    """As the interpreter has it: what is no number is a message, and means failure."""
    if given is None:
        return 0
    return int(given) & 0xFF if isinstance(given, int) else 1


def exit_words(given, message):
    """What the interpreter would print at its end."""
    return "" if given is None or isinstance(given, int) else f"{message}\n"


def prepare():
    """Imports ahead what is otherwise imported when it is needed."""
    for name in ("json", "linecache", "reprlib", "traceback"):
        import_own(name)


def format_traceback(exc, trace=None):
    if isinstance(exc, SyntaxError) and exc.text is None and exc.filename and exc.lineno:
        lines = import_own("linecache")
        exc.text = lines.getline(exc.filename, exc.lineno) or None  # as when the parser finds it
    report = import_own("traceback").TracebackException(type(exc), exc, trace or exc.__traceback__)
    pending = [report]
    while pending:
        part = pending.pop()
        if part is not None:
            part.stack[:] = user_frames(part.stack)
            pending += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    is_of_cell = isinstance(exc, SyntaxError) and not report.stack  # and not of what it has compiled itself
    return "".join(report.format()) + (NO_MAGICS if is_of_cell and is_at_magic(exc) else "")


def is_at_magic(error):
    """Whether a cell is in error for what only notebooks understand: `!ls`, `%time f()`, `x = !ls`; or any of it, behind
    a first line such as `%%bash`."""
    read = import_own("linecache").getline
    line = read(error.filename, error.lineno or 0)
    target, _, value = line.partition("=")
    if all(name.strip().isidentifier() for name in target.split(",")):
        line = value
    line = line.strip()
    is_command = line[:1] == "!" and line[1:2] not in ("", "=")
    is_magic = line[:1] == "%" and line.lstrip("%")[:1].isalpha()
    return is_command or is_magic or read(error.filename, 1).startswith("%%")


def user_frames(stack):
    """A traceback without the kernel's frames, nor the event loop's between them and the cell."""
    if stack and is_own(stack[0]):
        cell = (n for n, frame in enumerate(stack) if frame.filename.startswith("<cell "))
        last = max(n for n, frame in enumerate(stack) if is_own(frame))
        stack = stack[next(cell, last) :]
    return [frame for frame in stack if not is_own(frame)]


def is_own(frame):
    return is_beside(frame.filename)


def is_beside(filename):
    return filename.rpartition("/")[0] == BESIDE


def patch_traceback(traceback):
    """Has the stack of a cell begin with it, in `print_stack` and the like; what `display` does is not in it."""
    walk = traceback.walk_stack

    def walk_stack(f):
        return walk(f) if f is None else walk_cell(f)

    def walk_cell(frame):
        for frame, line in walk(frame):
            name = frame.f_code.co_filename
            if name == f"{BESIDE}/kernel.py":
                break
            if not is_beside(name):
                yield frame, line

    traceback.walk_stack = walk_stack


def patch_warnings(warnings):
    """Has what is warned of while none of the guest's code runs, such as a coroutine that goes with an error, be told as
    at the interpreter's end: of no line in particular."""
    show = getattr(warnings, "_showwarnmsg", None)
    if show is None:
        return  # the guest's own

    def _showwarnmsg(msg):
        if is_beside(msg.filename):
            msg.filename, msg.lineno, msg.line = "sys", 1, ""
        show(msg)

    warnings._showwarnmsg = _showwarnmsg


def tell_unraisable(args):
    """As the interpreter does, without the kernel's frames: an interrupt is raised in one, and may strike a `__del__`."""
    first = trace = args.exc_traceback
    while trace is not None and trace.tb_next is not None:
        if is_beside(trace.tb_next.tb_frame.f_code.co_filename):
            trace.tb_next = trace.tb_next.tb_next
        else:
            trace = trace.tb_next
    if first is not None and is_beside(first.tb_frame.f_code.co_filename):
        args = type(args)((args.exc_type, args.exc_value, first.tb_next, args.err_msg, args.object))
    sys.__unraisablehook__(args)


def patch_threading(threading):
    """Tells of what ends a thread as of what ends a cell: with the source, which the interpreter looks for in files,
    and without the frames of `threading`."""
    tell = threading.excepthook

    def excepthook(args):
        exc, trace = args.exc_value, args.exc_traceback
        if args.exc_type is SystemExit:
            return
        while trace is not None and trace.tb_frame.f_globals is vars(threading):
            trace = trace.tb_next
        try:
            sys.stderr.write(f"Exception in thread {args.thread.name}:\n{format_traceback(exc, trace)}")
        except Exception:
            tell(args)  # what is there of it

    threading.excepthook = excepthook


def rich_forms(value):
    """The rich forms of `value` by mime type; of images one, the first that it offers, and so of markup."""
    if is_figure(value):
        return {"image/png": draw_figure(value)}
    forms = {}
    for mime, name in RICH_METHODS:
        # Looked up on the type: a class is not its instance, and some instances answer to every name.
        method = getattr(type(value), name, None)
        if method is None or mime in forms or any(are(mime) and any(map(are, forms)) for are in (is_image, is_markup)):
            continue
        try:
            data = method(value) if mime else make_bundle(method, value)
            data = data[0] if isinstance(data, tuple) else data  # the rest is metadata
            if data is not None:
                forms.update({mime: data} if mime else data)
        except Exception as failure:
            note(f"{name} of {type(value).__name__} failed: {explain(failure)}")
    return forms


def make_bundle(method, value):
    """As IPython asks for it, and as simple classes offer it."""
    try:
        return method(value, include=None, exclude=None)
    except TypeError as failure:
        if failure.__traceback__.tb_next is not None:  # it was called
            raise
    return method(value)


def is_image(mime):
    return mime.startswith("image/")


def is_markup(mime):
    return mime in ("text/html", "text/markdown", "text/latex")


def show_itself(value):
    """Whether `value` has shown itself, by calling `display`. Asked last: classes that offer this beside rich forms
    mean a notebook by it, and would open a browser here."""
    method = getattr(type(value), "_ipython_display_", None)
    if method is None:
        return False
    try:
        method(value)
        return True
    except Exception as failure:
        note(f"_ipython_display_ of {type(value).__name__} failed: {explain(failure)}")
        return False


def is_figure(value):
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, getattr(figures, "Figure", ()))


def draw_figure(figure):
    """PNG bytes; the figure is closed, so that it is sent once and the next cell starts afresh."""
    try:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()
    finally:
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close(figure)


def encode_item(mime, data):
    """An item as JSON: text/* stays text, JSON stays JSON, all else becomes base64; ValueError if it is too large."""
    if mime == "application/json" or mime.endswith("+json"):
        text = dump_data(data)
        size = len(text.encode("utf-8", "surrogatepass"))
    elif mime.startswith("text/"):
        size, text = len(data.encode("utf-8", "surrogatepass")), encode(str(data))
    elif isinstance(data, str) and is_image(mime) and not mime.endswith("+xml"):
        data = "".join(data.split())  # base64 already, by Jupyter's convention; some has line ends
        size, text = len(data) * 3 // 4, encode(data)
    else:
        data = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
        size, text = len(data), encode(binascii.b2a_base64(data, newline=False).decode())
    if size > ITEM_LIMIT:
        raise ValueError(f"{size} bytes, more than {ITEM_LIMIT}")
    return f'{{"mime":{encode(mime)},"data":{text}}}'


def note(text):
    try:
        print(f"display: {text}", file=sys.stderr)
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass  # closed, or the guest's own object


class Gallery:
    """Shows values and figures through `send_item`, within the bounds of a cell."""

    def __init__(self, send_item):
        self.send_item = send_item
        self.count = 0
        hooks = {"threading": patch_threading, "traceback": patch_traceback, "warnings": patch_warnings}
        ImportHook({**hooks, "matplotlib.pyplot": self.patch_pyplot}).install()

    def open(self):
        """Begins a cell."""
        global was_cut
        was_cut = False
        self.count = 0

    def close(self):
        """Ends a cell: says what it showed in vain."""
        if self.count > ITEMS_PER_CELL:
            note(f"{self.count - ITEMS_PER_CELL} items dropped: a cell shows at most {ITEMS_PER_CELL}")

    def display(self, *values):
        """Shows values as images, HTML, JSON or text, whichever they offer."""
        for value in values:
            forms = rich_forms(value)
            if not forms and show_itself(value):
                continue
            if not any(map(is_image, forms)):
                forms.setdefault("text/plain", render_result(value))
            self.send_forms(forms)

    def show(self, value):
        """Shows a result, if it is more than its repr."""
        forms = rich_forms(value)
        if forms:
            self.send_forms(forms)
        else:
            show_itself(value)

    def show_figures(self):
        """Shows and closes the figures that pyplot holds."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                self.show_figure(pyplot, number)
        except KeyboardInterrupt:
            raise
        except BaseException as failure:  # it may be the guest's own
            note(f"figures dropped: {explain(failure)}")

    def show_figure(self, pyplot, number):
        try:
            self.show(pyplot.figure(number))
        except Exception as failure:
            note(f"figure dropped: {explain(failure)}")

    def drop_figures(self):
        """Closes the figures of a cell that was interrupted, or the next would show them as its own. They are not
        drawn: that may be what took too long."""
        try:
            pyplot = sys.modules["matplotlib.pyplot"]
            numbers = pyplot.get_fignums()
            pyplot.close("all")
            if numbers:
                note("figures dropped: the cell was interrupted before all were shown")
        except BaseException:
            pass  # it is not loaded, or the guest's own

    def patch_pyplot(self, pyplot):
        """Makes `plt.show()` send the figures: with the Agg backend it would only warn, and the next plot would
        be drawn over the last."""
        pyplot.show = lambda *_, **__: self.show_figures()

    def send_forms(self, forms):
        """Each by itself, as large as it may be."""
        for mime, data in forms.items():
            self.count += 1
            try:
                if self.count <= ITEMS_PER_CELL:
                    self.send_item(encode_item(mime, data))
            except Exception as refusal:
                note(f"{mime} dropped: {explain(refusal)}")
