"""A real MCP client that starts a server with the given command line, and uses it.

Prints the name of the server, the number of its tools, and the result of its `echo` tool.
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
        result = await session.call_tool("echo", {"message": "through the ring fence"})
        print(started.serverInfo.name, len(tools.tools), result.content[0].text, sep="\n")


asyncio.run(main(*sys.argv[1:]))
