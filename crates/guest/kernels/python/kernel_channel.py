"""The control channel of the Python kernel: a Unix stream socket to the host that carries frames.

A frame is a length (4 bytes, big-endian) and that many bytes.

    host → kernel   a number (8 bytes, big-endian), then
                    - without the four highest bits: the code of the cell of that number; with bit 60 in addition,
                      the cell may display HTML copies of values that have a text too
                    - with bit 63: the response to the call whose number the other bits are, JSON
                    - with bit 62: the preface, JSON: the servers and saved tools that the following cells may use
                    - with bit 61: names of modules to import before the first cell, separated by spaces; `done` follows
    kernel → host   JSON:
                    {"type": "ready", "language": "python", "version": "3.11.2"}, once
                    {"type": "display", "id": 7, "items": [{"mime": …, "data": …}]}, any number
                    {"type": "done", "id": 7, "status": "ok", "result": "42", "error": null}, once a cell; status
                    "error", "interrupted" or "exited" has an error {"name": …, "message": …, "traceback": …};
                    "cut": true is added if part of the result or the error was left out
                    {"type": "rejected", "id": null, "message": "…"}, for an invalid frame
                    {"type": "call", "id": 7, "call": 3, "method": …, "params": …}, a call to the host
                    {"type": "cancel", "id": 7, "call": 3}, if code no longer waits for the response

The kernel ends when the host closes the socket.
"""

import fcntl
import posix
from _thread import allocate_lock

from kernel_imports import import_stdlib

MAX_FRAME_BYTES = 16 << 20  # received
MAX_RESPONSE_BYTES = 72 << 20  # received
MAX_SENT_BYTES = 12 << 20  # the host ends a kernel that sends more
MAX_JSON_DEPTH = 100  # a little less than the host accepts
MAX_JSON_NUMBER = 1 << 1023  # below it the host reads a number, if only as a float
CHUNK_BYTES = 1 << 20
PAGE_BYTES = 1 << 12
NUMBER_BYTES = 8
HTML_BIT = 1 << 60
PRELOAD_BIT = 1 << 61
PREFACE_NUMBER = 1 << 62
RESPONSE_BIT = 1 << 63


def move_high(fd):
    """Duplicates `fd` to a number that guest code does not use by accident, closed on exec."""
    for floor in (900, 200, 60):  # RLIMIT_NOFILE may be low
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)
        except OSError:
            continue
    return posix.dup(fd)


class Channel:
    """Frames to and from the host. The process ends when the socket is closed."""

    def __init__(self, fd):
        self.fd = move_high(fd)
        posix.close(fd)
        self.lock = allocate_lock()
        self.received = b""
        self.early_frames = []  # arrived while a cell ran, and are not responses to its calls
        self.poll = None  # set by `use_poll`; False if that failed
        posix.register_at_fork(after_in_child=self.close_in_child)

    def close_in_child(self):
        """Closes the socket in a forked child, or the host would not see the end of the kernel."""
        try:
            posix.close(self.fd)
        except OSError:
            pass
        self.fd, self.poll = -1, False

    def use_poll(self):
        """Waits with `poll` from now on. A blocked `read` also wakes up when the host reads what was sent to it, and
        that wake-up delays the host."""
        try:
            select = import_stdlib("select")
            poller = select.poll()
            poller.register(self.fd, select.POLLIN)
        except Exception:
            self.poll = False  # not available, or replaced by the guest
        else:
            self.poll = poller.poll

    def has_input(self):
        """Returns whether a frame has arrived, or the host has closed the socket. True if that is unknown."""
        return not self.poll or bool(self.poll(0))

    def read(self, size):
        """Reads exactly `size` bytes; bytes that arrive with them stay in `received`."""
        parts, missing = [self.received], size - len(self.received)
        while missing > 0:
            part = self.read_some(min(max(missing, PAGE_BYTES), CHUNK_BYTES))
            parts.append(part)
            missing -= len(part)
        received = b"".join(parts)
        self.received = received[size:]
        return received[:size]

    def read_some(self, max_bytes):
        try:
            if self.poll:
                self.poll()
            part = posix.read(self.fd, max_bytes)
        except OSError:
            posix._exit(1)
        if not part:
            posix._exit(0)
        return part

    def receive(self):
        """Returns the number of the next frame and its content. Raises ValueError for an invalid frame, which has been
        read completely by then."""
        if not self.received:
            self.received = self.read_some(PAGE_BYTES)
        frame, size = self.received, int.from_bytes(self.received[:4], "big")
        if len(frame) == size + 4 and size >= NUMBER_BYTES:  # the usual case: one complete frame
            self.received = b""
            return int.from_bytes(frame[4:12], "big"), frame[12:]
        size = int.from_bytes(self.read(4), "big")
        if size > MAX_FRAME_BYTES:
            return self.receive_large(size)
        frame = self.read(size)
        if size < NUMBER_BYTES:
            raise ValueError(f"frame of {size} bytes is too short for its number")
        return int.from_bytes(frame[:NUMBER_BYTES], "big"), frame[NUMBER_BYTES:]

    def receive_large(self, size):
        number = int.from_bytes(self.read(NUMBER_BYTES), "big")
        rest = size - NUMBER_BYTES
        if number & RESPONSE_BIT and size <= MAX_RESPONSE_BYTES:
            return number, self.read(rest)
        for offset in range(0, rest, CHUNK_BYTES):
            self.read(min(CHUNK_BYTES, rest - offset))
        limit = MAX_RESPONSE_BYTES if number & RESPONSE_BIT else MAX_FRAME_BYTES
        raise ValueError(f"frame of {size} bytes exceeds the limit of {limit}")

    def send(self, frame):
        with self.lock:
            try:
                sent = posix.write(self.fd, frame)
                while sent < len(frame):  # rare
                    sent += posix.write(self.fd, memoryview(frame)[sent:])
            except OSError:
                posix._exit(1)


def encode(value):
    """Encodes JSON without imports as long as nothing must be escaped, which is the usual case."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is str and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if kind is int:
        return str(value)
    if kind is dict:
        return "{" + ",".join([f"{encode(key)}:{encode(item)}" for key, item in value.items()]) + "}"
    return dump_json(value)


def encode_done(cell_id, status, result, error, is_truncated):
    """Encodes `done` in one step, since the caller waits for it."""
    head = f'"type":"done","id":{cell_id},"status":"{status}"'
    tail = ',"cut":true' if is_truncated else ""
    return f'{{{head},"result":{encode(result)},"error":{encode(error)}{tail}}}'


def dump_json(value):
    """Encodes any value with the C part of `json`: the rest takes long to import, and a cell may have replaced it."""
    try:
        json = import_stdlib("_json")
    except ImportError:
        return import_stdlib("json").dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write = json.make_encoder({}, reject_object, json.encode_basestring, None, ":", ",", False, False, False)
    return "".join(write(value, 0))


def reject_object(value):
    raise TypeError(f"object of type {type(value).__name__} is not JSON serializable")


def dump_guest_json(value):
    """Encodes a value of the guest; raises ValueError if the host would not accept it."""
    text = dump_json(value)
    level = [[value]]
    for _ in range(MAX_JSON_DEPTH + 1):
        inner = {}  # by identity: a container that occurs many times is checked once
        for container in level:
            for part in container.values() if isinstance(container, dict) else container:
                if isinstance(part, (dict, list, tuple)):
                    inner[id(part)] = part
                elif isinstance(part, int) and not -MAX_JSON_NUMBER < part < MAX_JSON_NUMBER:
                    raise ValueError("number is too large for JSON")
        level = inner.values()
        if not level:
            return text
    raise ValueError(f"nesting exceeds the limit of {MAX_JSON_DEPTH} levels")


def encode_frame(message):
    text = message if type(message) is str else encode(message)
    try:
        body = text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which the host would refuse: it is sent as an escape
        body = text.translate({code: f"\\\\u{code:x}" for code in range(0xD800, 0xE000)}).encode()
    if len(body) > MAX_SENT_BYTES:
        raise ValueError(f"{len(body)} bytes when encoded exceed the limit of {MAX_SENT_BYTES}")
    return len(body).to_bytes(4, "big") + body
