"""An agent of Pydantic AI: `python pydantic_ai_agent.py URL`."""

import asyncio
import sys

from pydantic_ai import Agent, BinaryContent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from scripted import CALLS, show

calls = iter(CALLS)


def next_call(messages, _):
    """In place of a real model."""
    name, arguments = next(calls, (None, None))
    return ModelResponse([ToolCallPart(name, arguments) if name else TextPart("done")])


async def main(url: str) -> None:
    # By default, the run ends at the second failed call of a tool, which includes code that raises an exception.
    toolset = MCPToolset(url, tool_error_behavior="failed")
    async with Agent(FunctionModel(next_call), toolsets=[toolset]) as agent:
        result = await agent.run("What is 41 + 1?")
    for part in (part for message in result.all_messages() for part in message.parts):
        if isinstance(part, ToolReturnPart):
            show(part.model_response_str(), [file.media_type for file in part.files if isinstance(file, BinaryContent)])


asyncio.run(main(*sys.argv[1:]))
