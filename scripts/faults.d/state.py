"""What the state directory and the clock can do: a full disk, a broken database, a jump of time."""

import os
import pathlib
import random
import re
import sqlite3
import tempfile

from host import MARK, eventually
from service import Client, Service, Told


def full_disk(world):
    """The state lies on a disk of 8 MiB that only this server sees, in a mount namespace of its own."""
    if os.geteuid() != 0:
        return "SKIPPED: only root can mount a small disk"
    with tempfile.TemporaryDirectory(prefix=MARK) as disk:
        mount = 'mount -t tmpfs -o size=8m,mode=700 none "$0" && exec "$@"'
        wrapper = ["unshare", "--mount", "sh", "-c", mount, disk]
        service = Service(world.program, wrapper=wrapper, state=disk)
        try:
            client = Client(service)
            session = client.call("execute_code", code="x = 1")[0]["session_id"]
            ballast = pathlib.Path(f"/proc/{service.worker()}/root{disk}/ballast")
            try:
                with ballast.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
            except OSError:
                pass

            def refused():
                try:
                    client.call("execute_code", code="1")
                except Told as told:
                    return str(told)

            said = eventually("new sessions are never refused", refused, 60)
            assert "full" in said and "cannot be written" in said, said
            status, health = service.health()
            assert status == 503 and "store" in health["reason"], (status, health)
            answer, _, _ = client.call("execute_code", code="print(x)", session_id=session)
            assert answer["stdout"] == "1\n", f"a session that lives is disturbed: {answer}"
            ballast.unlink()
            eventually("it is not healthy again", lambda: service.health()[0] == 200)
            client.call("execute_code", code="1")
            client.close()
            return f"new sessions: {said[:60]!r}; /health 503; old sessions went on; all well once there was space"
        finally:
            service.stop()


def committed(log):
    """How many frames of a write-ahead log are of its last use, up to the last commit."""
    frames = [log[at : at + 24] for at in range(32, len(log) - 4119, 4120)]
    commits = [number + 1 for number, frame in enumerate(frames) if frame[8:16] == log[16:24] and any(frame[4:8])]
    return commits[-1]


def broken_store(world):
    service = Service(world.program)
    try:
        client, lines = Client(service), []
        session = client.call("execute_code", code="kept = 42")[0]["session_id"]
        for round in range(world.rounds):
            client.close()
            service.kill()
            eventually("it lives", lambda: service.main.poll() is not None)
            database = pathlib.Path(service.state, "ringfence.db")
            if round % 3 == 2:
                # One page in the middle of its log, before what was committed last.
                damaged = pathlib.Path(f"{database}-wal")
                content = bytearray(damaged.read_bytes())
                middle = 32 + 4120 * (committed(content) // 2)
                content[middle : middle + 4120] = random.randbytes(4120)
            else:
                # As after an end in order, so that the damage is to the database and not to its log.
                damaged = database
                sqlite3.connect(database).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
                content = bytearray(database.read_bytes())
                if round % 3:
                    content = content[: random.randrange(1, len(content))]
                else:
                    # The first page, without which nothing else can be found.
                    content[0:4096] = random.randbytes(4096)
            damaged.write_bytes(content)
            before = len(service.said())
            service.revive()
            copy = pathlib.Path(str(damaged).replace(".db", f".db.broken-{round + 1}"))
            assert copy.read_bytes() == content, "the broken one is not kept"
            told = re.search(r"was broken .*", service.said()[before:])
            assert told, service.said()[before:]
            lines.append(told.group(0))
            if round % 3:
                session = client.call("execute_code", code="kept = 42")[0]["session_id"]
            answer, _, _ = client.call("execute_code", code="print(kept)", session_id=session)
            assert answer["stdout"] == "42\n", answer
        client.close()
        kept = re.search(r"sessions: [^,)]*", lines[0]).group(0)
        return f"{world.rounds} times noise, cut or noise in the log; started, copy kept, told what was saved ({kept} with its first page lost)"
    finally:
        service.stop()


def clock_jump(world):
    """Nobody can set the clock of one running process, and the host's is not ours to set. So: a server that takes over
    runs in a time namespace whose monotonic clocks are a week ahead, as after a suspend; and what it finds in the
    store was written by a wall clock that was a day ahead, as after a correction backwards."""
    service = Service(world.program)
    try:
        client = Client(service)
        session = client.call("execute_code", code="kept = 42")[0]["session_id"]
        client.close()
        service.kill()
        eventually("it lives", lambda: service.main.poll() is not None)
        with sqlite3.connect(pathlib.Path(service.state, "ringfence.db")) as database:
            database.execute("UPDATE sessions SET created = created + 86400")
            database.execute("UPDATE audit SET time_ms = time_ms + 86400000")
        database.close()
        week, has_namespace = str(7 * 86400), os.geteuid() == 0
        if has_namespace:
            service.wrapper = ["unshare", "--time", "--monotonic", week, "--boottime", week, "--fork", "--kill-child"]
        service.revive()
        answer, _, _ = client.call("execute_code", code="print(kept)", session_id=session)
        assert answer["stdout"] == "42\n", answer
        fresh = client.call("execute_code", code="print(1)")[0]
        assert fresh["stdout"] == "1\n", fresh
        client.close()
        how = "monotonic clocks a week ahead, and " if has_namespace else ""
        return f"taken over with {how}a wall clock a day back; variables kept, no session expired"
    finally:
        service.stop()


FAULTS = {"full disk": full_disk, "broken store": broken_store, "clock jump": clock_jump}
