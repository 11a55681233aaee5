"""The client of fastmcp: `python fastmcp_client.py URL`."""

import asyncio
import sys

from fastmcp import Client
from scripted import CALLS, show_blocks


async def main(url: str) -> None:
    async with Client(url) as client:
        for name, arguments in CALLS:
            # By default, an error is raised as a ToolError with the first text of the result.
            result = await client.call_tool(name, arguments, raise_on_error=False)
            show_blocks(result.content)


asyncio.run(main(*sys.argv[1:]))
