"""Starts an endpoint where an agent can run code, and stops it at the end of the run.

    python3 examples/orchestrator.py [path of ringfence]

It needs only the standard library of Python.
"""

import json
import subprocess
import sys
import urllib.request

EX_TEMPFAIL = 75


def start(program):
    """Starts the endpoint, and waits until it has passed its preflight; returns its URL."""
    command = [program, "up", "--port", "0", "--expect-tool", "execute_code"]
    supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = json.loads(supervisor.stdout.readline() or "{}")
    if "endpoint" not in line or "reason" in line:
        supervisor.wait()
        raise SystemExit(f"no endpoint: {line.get('error', 'ringfence printed nothing')}")
    return supervisor, line["endpoint"]


def call(endpoint, tool, arguments):
    """Calls a tool. If the error says that the call may have run, only the caller knows whether a retry is safe."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    request = urllib.request.Request(
        endpoint, json.dumps(message).encode(), {"Content-Type": "application/json", "Accept": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        reply = json.load(response)
    if "error" in reply:
        raise RuntimeError(reply["error"]["message"])
    return reply["result"]["structuredContent"]


def main():
    supervisor, endpoint = start(sys.argv[1] if len(sys.argv) > 1 else "ringfence")
    try:
        print("the endpoint:", endpoint)
        first = call(endpoint, "execute_code", {"code": "x = 41"})
        # The session keeps its variables, even if the server behind the endpoint is replaced between the calls.
        second = call(endpoint, "execute_code", {"code": "x + 1", "session_id": first["session_id"]})
        print("the result:", second["result"])
    finally:
        supervisor.terminate()
        code = supervisor.wait(timeout=15)
    if code == EX_TEMPFAIL:
        raise SystemExit(f"ringfence gave up the endpoint: {supervisor.stdout.read()}")
    return code


if __name__ == "__main__":
    sys.exit(main())
