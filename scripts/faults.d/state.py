"""Faults of the state directory and the clock: a full disk, a damaged database, a jump of time."""

import os
import pathlib
import random
import re
import sqlite3
import tempfile

from host import MARK, wait_until
from service import Client, Refused, Service


def full_disk(context):
    """The state directory is on a disk of 8 MiB, mounted in a mount namespace of this server."""
    if os.geteuid() != 0:
        return "SKIPPED: only root can mount a small disk"
    with tempfile.TemporaryDirectory(prefix=MARK) as disk:
        mount = 'mount -t tmpfs -o size=8m,mode=700 none "$0" && exec "$@"'
        wrapper = ["unshare", "--mount", "sh", "-c", mount, disk]
        service = Service(context.program, wrapper=wrapper, state=disk)
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

            def refusal():
                try:
                    client.call("execute_code", code="1")
                except Refused as error:
                    return str(error)

            message = wait_until("new sessions are never refused", refusal, 60)
            assert "full" in message and "cannot be written" in message, message
            status, health = service.health()
            assert status == 503 and "store" in health["reason"], (status, health)
            content, _, _ = client.call("execute_code", code="print(x)", session_id=session)
            assert content["stdout"] == "1\n", f"an existing session is disturbed: {content}"
            ballast.unlink()
            wait_until("the server is not healthy again", lambda: service.health()[0] == 200)
            client.call("execute_code", code="1")
            client.close()
            return f"new sessions: {message[:60]!r}; /health 503; existing sessions worked; recovered with free space"
        finally:
            service.stop()


def damaged_database(context):
    """The server is killed and its database damaged: the backup is restored, and the session in it goes on."""
    service = Service(context.program)
    try:
        client = Client(service)
        session = client.call("execute_code", code="value = 42")[0]["session_id"]
        database = pathlib.Path(service.state, "ringfence.db")
        for round in range(context.rounds):
            client.close()
            service.kill()
            wait_until("the server is still running", lambda: service.main.poll() is not None)
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
            before = len(service.log())
            service.revive()
            reported = re.search(r"found damaged .*", service.log()[before:])
            assert reported and "backup-1" in reported.group(0), service.log()[before:]
            damaged = re.search(r"remove (\S+)\* to end", reported.group(0)).group(1)
            assert pathlib.Path(damaged).read_bytes() == content, "the damaged database is not preserved"
            for file in pathlib.Path(service.state).glob("ringfence.db.damaged-*"):
                file.unlink()
            result, _, _ = client.call("execute_code", code="print(value)", session_id=session)
            assert result["stdout"] == "42\n", result
        client.close()
        return f"{context.rounds} times noise or a cut; reported, preserved, backup restored; variables preserved"
    finally:
        service.stop()


def clock_jump(context):
    """A server takes over after a jump of the clocks.

    The clock of a running process cannot be set, and that of the host must not be. So the new server runs in a time
    namespace whose monotonic clocks are a week ahead, as after a suspend, and the store looks as if it had been written
    when the wall clock was a day ahead, as after a correction backwards.
    """
    service = Service(context.program)
    try:
        client = Client(service)
        session = client.call("execute_code", code="value = 42")[0]["session_id"]
        client.close()
        service.kill()
        wait_until("the server is still running", lambda: service.main.poll() is not None)
        with sqlite3.connect(pathlib.Path(service.state, "ringfence.db")) as database:
            database.execute("UPDATE sessions SET created = created + 86400")
            database.execute("UPDATE audit SET time_ms = time_ms + 86400000")
        database.close()
        week, has_namespace = str(7 * 86400), os.geteuid() == 0
        if has_namespace:
            service.wrapper = ["unshare", "--time", "--monotonic", week, "--boottime", week, "--fork", "--kill-child"]
        service.revive()
        content, _, _ = client.call("execute_code", code="print(value)", session_id=session)
        assert content["stdout"] == "42\n", content
        new = client.call("execute_code", code="print(1)")[0]
        assert new["stdout"] == "1\n", new
        client.close()
        clocks = "monotonic clocks a week ahead, and " if has_namespace else ""
        return f"taken over with {clocks}a wall clock a day back; no variable lost, no session expired"
    finally:
        service.stop()


FAULTS = {"full disk": full_disk, "damaged database": damaged_database, "clock jump": clock_jump}
