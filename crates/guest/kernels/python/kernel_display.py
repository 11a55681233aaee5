"""Rich output of cells: images, HTML, JSON and figures of matplotlib.

Most functions run guest code (`_repr_html_` and the like), which may fail, print, take long or be interrupted; a
failure becomes a note on stderr. No module is imported that the guest did not import: figures are drawn only if
matplotlib is loaded already.
"""

import binascii
import io
import sys

from kernel_channel import dump_guest_json, encode
from kernel_output import render_result, summarize

MAX_ITEM_BYTES = 8 << 20  # before encoding
MAX_ITEMS = 32  # per cell

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


def rich_forms(value):
    """Returns the rich forms of `value` by mime type: at most one image and one markup, the first that it offers."""
    if is_figure(value):
        return {"image/png": draw_figure(value)}
    forms = {}
    for mime, name in RICH_METHODS:
        # Looked up on the type: a class is not its instance, and some instances have every attribute.
        method = getattr(type(value), name, None)
        if method is None or mime in forms or any(are(mime) and any(map(are, forms)) for are in (is_image, is_markup)):
            continue
        try:
            data = method(value) if mime else make_bundle(method, value)
            data = data[0] if isinstance(data, tuple) else data  # the rest is metadata
            if data is not None:
                forms.update({mime: data} if mime else data)
        except Exception as failure:
            warn(f"{name} of {type(value).__name__} failed: {summarize(failure)}")
    return forms


def make_bundle(method, value):
    """Calls the method with the arguments of IPython, or without if it takes none."""
    try:
        return method(value, include=None, exclude=None)
    except TypeError as failure:
        if failure.__traceback__.tb_next is not None:  # raised by the method itself
            raise
    return method(value)


def is_image(mime):
    return mime.startswith("image/")


def is_markup(mime):
    return mime in ("text/html", "text/markdown", "text/latex")


def show_itself(value):
    """Lets `value` show itself by calling `display`; returns whether it did. Used only if there are no rich forms: a
    class with both means a notebook by this one, and would open a browser here."""
    method = getattr(type(value), "_ipython_display_", None)
    if method is None:
        return False
    try:
        method(value)
        return True
    except Exception as failure:
        warn(f"_ipython_display_ of {type(value).__name__} failed: {summarize(failure)}")
        return False


def is_figure(value):
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, getattr(figures, "Figure", ()))


def draw_figure(figure):
    """Returns PNG bytes and closes the figure, so that it is sent once and the next cell starts with an empty one."""
    try:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()
    finally:
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close(figure)


def encode_item(mime, data):
    """Encodes an item as JSON: text/* and JSON as they are, all else in base64. Raises ValueError if it is too
    large."""
    if mime == "application/json" or mime.endswith("+json"):
        text = dump_guest_json(data)
        size = len(text.encode("utf-8", "surrogatepass"))
    elif mime.startswith("text/"):
        size, text = len(data.encode("utf-8", "surrogatepass")), encode(str(data))
    elif isinstance(data, str) and is_image(mime) and not mime.endswith("+xml"):
        data = "".join(data.split())  # base64 by Jupyter's convention, possibly with line ends
        size, text = len(data) * 3 // 4, encode(data)
    else:
        data = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
        size, text = len(data), encode(binascii.b2a_base64(data, newline=False).decode())
    if size > MAX_ITEM_BYTES:
        raise ValueError(f"{size} bytes exceed the limit of {MAX_ITEM_BYTES}")
    return f'{{"mime":{encode(mime)},"data":{text}}}'


def warn(text):
    try:
        print(f"display: {text}", file=sys.stderr)
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass  # closed, or replaced by the guest


class Display:
    """Sends values and figures with `send_item`, up to the limit of a cell."""

    def __init__(self, send_item):
        self.send_item = send_item
        self.count = 0
        self.sends_copies = False  # whether the client of the cell wants HTML beside text that says the same

    def start_cell(self):
        self.count = 0

    def end_cell(self):
        if self.count > MAX_ITEMS:
            warn(f"{self.count - MAX_ITEMS} items dropped: the limit is {MAX_ITEMS} per cell")

    def display(self, *values):
        """Shows values as images, HTML, JSON or text, whichever they offer."""
        for value in values:
            forms = rich_forms(value)
            if not forms and show_itself(value):
                continue
            if not any(map(is_image, forms)):
                forms.setdefault("text/plain", render_result(value))
                self.drop_copy(forms, forms["text/plain"])
            self.send_forms(forms)

    def show(self, value, text=None):
        """Shows a result that has more than its repr, which is `text`."""
        forms = rich_forms(value)
        if forms:
            self.drop_copy(forms, text)
            self.send_forms(forms)
        else:
            show_itself(value)

    def drop_copy(self, forms, text):
        """Drops HTML if the text of the value says the same, as that of a table does: a model would read it twice. A
        text such as `<Chart>` only names the value."""
        if not self.sends_copies and type(text) is str and not (text[:1] == "<" and text[-1:] == ">"):
            forms.pop("text/html", None)

    def show_figures(self):
        """Shows and closes the open figures of pyplot."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                self.show_figure(pyplot, number)
        except KeyboardInterrupt:
            raise
        except BaseException as failure:  # the guest may have replaced pyplot
            warn(f"figures dropped: {summarize(failure)}")

    def show_figure(self, pyplot, number):
        try:
            self.show(pyplot.figure(number))
        except Exception as failure:
            warn(f"figure dropped: {summarize(failure)}")

    def drop_figures(self):
        """Closes the figures of an interrupted cell, or the next cell would show them. They are not drawn: that may
        have been what took too long."""
        try:
            pyplot = sys.modules["matplotlib.pyplot"]
            numbers = pyplot.get_fignums()
            pyplot.close("all")
            if numbers:
                warn("figures dropped: the cell was interrupted before all were shown")
        except BaseException:
            pass  # not loaded, or replaced by the guest

    def patch_pyplot(self, pyplot):
        """Makes `plt.show()` send the figures: with the Agg backend it would only warn, and the next plot would be
        drawn over the last."""
        pyplot.show = lambda *_, **__: self.show_figures()

    def send_forms(self, forms):
        """Sends each form in a separate frame, so that each may have the maximum size."""
        for mime, data in forms.items():
            self.count += 1
            try:
                if self.count <= MAX_ITEMS:
                    self.send_item(encode_item(mime, data))
            except Exception as refusal:
                warn(f"{mime} dropped: {summarize(refusal)}")
