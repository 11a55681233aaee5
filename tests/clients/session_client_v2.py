"""The same steps as session_client.py, with the client of the 2.x SDK, which negotiates the protocol version.

`session_client_v2.py stdio COMMAND ARGS…` or `session_client_v2.py http URL`.
"""

import asyncio
import sys

from mcp import Client, StdioServerParameters

IMAGE = """
class Picture:
    def _repr_png_(self):
        return b"\\x89PNG\\r\\n\\x1a\\n and so on"
display(Picture())
"""


async def use(client: Client) -> None:
    print("protocol:", client.protocol_version)
    print("offered:", "execute_code" in [tool.name for tool in (await client.list_tools()).tools])
    created = await client.call_tool("execute_code", {"code": "x = 41"})
    handle = created.structured_content["session_id"]
    print("created:", created.structured_content["session_created"])

    async def run(code: str, **options):
        return await client.call_tool("execute_code", {"code": code, "session_id": handle, **options})

    print("result:", (await run("x + 1")).structured_content["result"])
    images = [item for item in (await run(IMAGE)).content if item.type == "image"]
    print("image:", images[0].mime_type)
    late = await run("while True: pass", timeout=1)
    print("late:", late.is_error, late.structured_content["status"])
    print("after:", (await run("print(x)")).structured_content["stdout"].strip())
    command = await client.call_tool("execute_command", {"command": "echo $((6 * 7)) | cat; exit 3", "session_id": handle})
    print("command:", command.structured_content["stdout"].strip(), command.structured_content["exit_code"])
    refused = await run("1", template="cobol")
    text = refused.content[0].text
    print("refused:", refused.is_error, refused.structured_content["error_code"], "use one of those" in text)
    stopped = await client.call_tool("stop_session", {"session_id": handle})
    print("stopped:", not stopped.is_error)


async def main(transport: str, *where: str) -> None:
    server = where[0] if transport == "http" else StdioServerParameters(command=where[0], args=list(where[1:]))
    async with Client(server) as client:
        await use(client)


asyncio.run(main(*sys.argv[1:]))
