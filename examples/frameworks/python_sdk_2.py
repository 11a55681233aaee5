"""The Python SDK of MCP, version 2: `python python_sdk_2.py URL`, or with a command in place of the URL."""

import asyncio
import sys

from mcp import Client, StdioServerParameters
from scripted import CALLS, show_blocks


async def main(target: str, *arguments: str) -> None:
    server = target if target.startswith("http") else StdioServerParameters(command=target, args=list(arguments))
    async with Client(server) as client:
        for name, arguments in CALLS:
            show_blocks((await client.call_tool(name, arguments)).content)


asyncio.run(main(*sys.argv[1:]))
