"""Frames between the Python kernel and its host, over a Unix stream socket; kernel.py says what is in them."""

import fcntl
import posix
from _thread import allocate_lock

from kernel_imports import import_own

FRAME_LIMIT = 16 << 20
ANSWER_LIMIT = 72 << 20
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
    """JSON, by hand as long as nothing in it must be escaped: what a cell mostly says needs no `json`."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is str and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if kind is int:
        return str(value)
    if kind is dict:
        return "{" + ",".join([f"{encode(key)}:{encode(item)}" for key, item in value.items()]) + "}"
    return import_own("json").dumps(value, separators=(",", ":"))


def encode_done(cell_id, status, result, error):
    """The same of what somebody waits for, in one go."""
    head = f'"type":"done","id":{cell_id},"status":"{status}"'
    return f'{{{head},"result":{encode(result)},"error":{encode(error)}}}'


def encode_frame(message):
    body = (message if type(message) is str else encode(message)).encode("ascii")
    if len(body) > FRAME_LIMIT:
        raise ValueError(f"{len(body)} bytes when encoded, more than {FRAME_LIMIT}")
    return len(body).to_bytes(4, "big") + body
