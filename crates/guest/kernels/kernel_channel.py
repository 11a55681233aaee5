"""Frames between the Python kernel and its host, over a Unix stream socket; kernel.py says what is in them."""

import fcntl
import posix
from _thread import allocate_lock

from kernel_imports import import_own

FRAME_LIMIT = 16 << 20  # of what is received, as is the next
ANSWER_LIMIT = 72 << 20
SENT_LIMIT = 12 << 20  # for more the host would end this kernel
DEPTH_LIMIT = 100  # of JSON; the host reads a little more
NUMBER_LIMIT = 1 << 1023  # which it still reads as a float
CHUNK = 1 << 20
PAGE = 1 << 12
ID_SIZE = 8
PREFACE = 1 << 62
ANSWER = 1 << 63


def move_high(fd):
    """Duplicates `fd` to a number that guest code does not hit by accident, closed on exec."""
    for floor in (900, 200, 60):  # RLIMIT_NOFILE may be low
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)
        except OSError:
            continue
    return posix.dup(fd)


class Channel:
    """Frames to and from the host. The process ends when the socket does."""

    def __init__(self, fd):
        self.fd = move_high(fd)
        posix.close(fd)
        self.lock = allocate_lock()
        self.received = b""
        self.early = []  # frames that came while a cell ran, and are not for it
        self.wait = None  # not known yet
        posix.register_at_fork(after_in_child=self.disown)

    def disown(self):
        """In a forked child: lets go of the socket, so that the host sees the kernel's own end."""
        try:
            posix.close(self.fd)
        except OSError:
            pass
        self.fd, self.wait = -1, False

    def rest_well(self):
        """Waits by `poll` from now on. A `read` that waits is also woken when the host takes what was sent to it,
        for nothing, and it is the host that is held up by waking it."""
        try:
            select = import_own("select")
            watch = select.poll()
            watch.register(self.fd, select.POLLIN)
        except Exception:
            self.wait = False  # there is none, or not as it was
        else:
            self.wait = watch.poll

    def read(self, size):
        """Exactly as many bytes; what comes with them is kept."""
        parts, missing = [self.received], size - len(self.received)
        while missing > 0:
            part = self.read_some(min(max(missing, PAGE), CHUNK))
            parts.append(part)
            missing -= len(part)
        received = b"".join(parts)
        self.received = received[size:]
        return received[:size]

    def read_some(self, most):
        try:
            if self.wait:
                self.wait()
            part = posix.read(self.fd, most)
        except OSError:
            posix._exit(1)
        if not part:
            posix._exit(0)
        return part

    def receive(self):
        """The number of a frame and the rest of it; ValueError if it is none, with the stream in step."""
        if not self.received:
            self.received = self.read_some(PAGE)
        frame, size = self.received, int.from_bytes(self.received[:4], "big")
        if len(frame) == size + 4 and size >= ID_SIZE:  # as mostly: one, and whole
            self.received = b""
            return int.from_bytes(frame[4:12], "big"), frame[12:]
        size = int.from_bytes(self.read(4), "big")
        if size > FRAME_LIMIT:
            return self.receive_large(size)
        frame = self.read(size)
        if size < ID_SIZE:
            raise ValueError("a request needs the number of its cell")
        return int.from_bytes(frame[:ID_SIZE], "big"), frame[ID_SIZE:]

    def receive_large(self, size):
        number = int.from_bytes(self.read(ID_SIZE), "big")
        rest = size - ID_SIZE
        if number & ANSWER and size <= ANSWER_LIMIT:
            return number, self.read(rest)
        for offset in range(0, rest, CHUNK):
            self.read(min(CHUNK, rest - offset))
        raise ValueError(f"a frame of {size} bytes exceeds {ANSWER_LIMIT if number & ANSWER else FRAME_LIMIT}")

    def send(self, frame):
        with self.lock:
            try:
                sent = posix.write(self.fd, frame)
                while sent < len(frame):  # which is rare
                    sent += posix.write(self.fd, memoryview(frame)[sent:])
            except OSError:
                posix._exit(1)


def encode(value):
    """JSON, by hand as long as nothing in it must be escaped: what a cell mostly says needs nothing imported."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is str and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if kind is int:
        return str(value)
    if kind is dict:
        return "{" + ",".join([f"{encode(key)}:{encode(item)}" for key, item in value.items()]) + "}"
    return dump(value)


def encode_done(cell_id, status, result, error, was_cut):
    """The same of what somebody waits for, in one go."""
    head = f'"type":"done","id":{cell_id},"status":"{status}"'
    tail = ',"cut":true' if was_cut else ""
    return f'{{{head},"result":{encode(result)},"error":{encode(error)}{tail}}}'


def dump(value):
    """JSON of anything, by the heart of `json`: the rest takes long to import, and a cell may have replaced it."""
    try:
        own = import_own("_json")
    except ImportError:
        return import_own("json").dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write = own.make_encoder({}, refuse_object, own.encode_basestring, None, ":", ",", False, False, False)
    return "".join(write(value, 0))


def refuse_object(value):
    raise TypeError(f"an object of type {type(value).__name__} is no JSON")


def dump_data(value):
    """The same of what a guest made; ValueError for what the host would not read."""
    text = dump(value)
    level = [[value]]
    for _ in range(DEPTH_LIMIT + 1):
        inner = {}  # by identity: what is there many times is looked at once
        for container in level:
            for part in container.values() if isinstance(container, dict) else container:
                if isinstance(part, (dict, list, tuple)):
                    inner[id(part)] = part
                elif isinstance(part, int) and not -NUMBER_LIMIT < part < NUMBER_LIMIT:
                    raise ValueError("a number that is too large")
        level = inner.values()
        if not level:
            return text
    raise ValueError(f"nested more than {DEPTH_LIMIT} deep")


def encode_frame(message):
    text = message if type(message) is str else encode(message)
    try:
        body = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: the host would refuse the frame, so it is shown as an escape
        body = text.translate({code: f"\\\\u{code:x}" for code in range(0xD800, 0xE000)}).encode()
    if len(body) > SENT_LIMIT:
        raise ValueError(f"{len(body)} bytes when encoded, more than {SENT_LIMIT}")
    return len(body).to_bytes(4, "big") + body
