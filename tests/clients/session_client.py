"""A real MCP client that uses sandbox sessions like an agent.

`session_client.py stdio COMMAND ARGS…` or `session_client.py http URL`. Creates a session, sets a variable, reads it
back, receives an image, reaches a time limit, reads the variable again, and gets a refusal. Prints the results.
"""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

IMAGE = """
class Picture:
    def _repr_png_(self):
        return b"\\x89PNG\\r\\n\\x1a\\n and so on"
display(Picture())
"""


async def use(session) -> None:
    print("protocol:", (await session.initialize()).protocolVersion)
    print("offered:", "execute_code" in [tool.name for tool in (await session.list_tools()).tools])
    created = await session.call_tool("execute_code", {"code": "x = 41"})
    handle = created.structuredContent["session_id"]
    print("created:", created.structuredContent["session_created"])

    async def run(code: str, **options):
        return await session.call_tool("execute_code", {"code": code, "session_id": handle, **options})

    print("result:", (await run("x + 1")).structuredContent["result"])
    images = [item for item in (await run(IMAGE)).content if item.type == "image"]
    print("image:", images[0].mimeType)
    late = await run("while True: pass", timeout=1)
    print("late:", late.isError, late.structuredContent["status"])
    print("after:", (await run("print(x)")).structuredContent["stdout"].strip())
    command = await session.call_tool("execute_command", {"command": "echo $((6 * 7)) | cat; exit 3", "session_id": handle})
    print("command:", command.structuredContent["stdout"].strip(), command.structuredContent["exit_code"])
    refused = await run("1", template="cobol")
    print("refused:", refused.isError, refused.structuredContent["error_code"], "use one of those" in refused.content[0].text)
    stopped = await session.call_tool("stop_session", {"session_id": handle})
    print("stopped:", not stopped.isError)


async def main(transport: str, *where: str) -> None:
    if transport == "stdio":
        connection = stdio_client(StdioServerParameters(command=where[0], args=list(where[1:])))
    else:
        connection = streamablehttp_client(where[0])
    async with connection as streams, ClientSession(streams[0], streams[1]) as session:
        await use(session)


asyncio.run(main(*sys.argv[1:]))
