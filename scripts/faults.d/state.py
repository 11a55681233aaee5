"""Faults of the state directory and the clock: a full disk, a damaged database, a jump of time."""

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


def damaged_database(world):
    """The server is killed and its database damaged: the backup is restored, and the session in it goes on."""
    service = Service(world.program)
    try:
        client = Client(service)
        session = client.call("execute_code", code="kept = 42")[0]["session_id"]
        database = pathlib.Path(service.state, "ringfence.db")
        for round in range(world.rounds):
            client.close()
            service.kill()
            eventually("it lives", lambda: service.main.poll() is not None)
            backup = pathlib.Path(f"{database}.backup-1")
            backup.unlink(missing_ok=True)
            # As the server does every hour. The last connection that closes also moves the log into the database.
            with sqlite3.connect(database) as connection:
                connection.execute("VACUUM INTO ?", (str(backup),))
            connection.close()
            content = bytearray(database.read_bytes())
            if round % 2:
                content = content[: random.randrange(1, len(content))]
            else:
                # The first page, without which nothing else can be found.
                content[0:4096] = random.randbytes(4096)
            database.write_bytes(content)
            before = len(service.said())
            service.revive()
            reported = re.search(r"found damaged .*", service.said()[before:])
            assert reported and "backup-1" in reported.group(0), service.said()[before:]
            damaged = re.search(r"remove (\S+)\* to end", reported.group(0)).group(1)
            assert pathlib.Path(damaged).read_bytes() == content, "the damaged database is not preserved"
            for file in pathlib.Path(service.state).glob("ringfence.db.damaged-*"):
                file.unlink()
            answer, _, _ = client.call("execute_code", code="print(kept)", session_id=session)
            assert answer["stdout"] == "42\n", answer
        client.close()
        return f"{world.rounds} times noise or a cut; reported, preserved, backup restored; variables kept"
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


FAULTS = {"full disk": full_disk, "damaged database": damaged_database, "clock jump": clock_jump}
