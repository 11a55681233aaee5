"""The Python SDK of MCP, version 1: `python python_sdk_1.py URL`, or with a command in place of the URL."""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from scripted import CALLS, show_blocks


async def main(target: str, *arguments: str) -> None:
    if target.startswith("http"):
        connection = streamable_http_client(target)
    else:
        connection = stdio_client(StdioServerParameters(command=target, args=list(arguments)))
    async with connection as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        for name, arguments in CALLS:
            show_blocks((await session.call_tool(name, arguments)).content)


asyncio.run(main(*sys.argv[1:]))
