"""An MCP server on standard streams with one tool: `run` executes Python code, and returns what it prints."""

import contextlib
import io
import json
import sys
import traceback

SCHEMA = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
variables = {}


def run(code):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            exec(code, variables)
        except Exception:
            traceback.print_exc(file=output)
    return output.getvalue()


def respond(method, params):
    match method:
        case "initialize":
            server = {"name": "evaluator", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": [{"name": "run", "description": "Run code.", "inputSchema": SCHEMA}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": run(params["arguments"]["code"])}]}
        case _:
            return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = respond(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
