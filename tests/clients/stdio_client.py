"""A real MCP client that starts a server by the command line it is given, and uses it.

Prints the server's name, the number of its tools, and what its `echo` tool answers.
"""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(command: str, *args: str) -> None:
    server = StdioServerParameters(command=command, args=list(args))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        started = await session.initialize()
        tools = await session.list_tools()
        answer = await session.call_tool("echo", {"message": "through the ring fence"})
        print(started.serverInfo.name, len(tools.tools), answer.content[0].text, sep="\n")


asyncio.run(main(*sys.argv[1:]))
