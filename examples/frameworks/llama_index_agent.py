"""An agent of LlamaIndex: `python llama_index_agent.py URL`, or with a command in place of the URL.

The client opens a connection for each call, or starts the command for each call. So the URL needs `?session=NAME`, and
the command `--session NAME`.
"""

import asyncio
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec
from scripted import CALLS, show

calls = iter(CALLS)
received = []


def next_call(messages, **_):
    """In place of a real model."""
    received.append(messages[-1].blocks)
    for name, arguments in calls:
        return ChatMessage(blocks=[ToolCallBlock(tool_call_id=name, tool_name=name, tool_kwargs=arguments)])
    return ChatMessage("done", role="assistant")


class Client(BasicMCPClient):
    """Converts results to texts and images. By default, the model sees a printed Python object."""

    async def call_tool(self, *arguments, **options):
        content = (await super().call_tool(*arguments, **options)).content
        texts = [TextBlock(text=block.text) for block in content if block.type == "text"]
        images = [block for block in content if block.type == "image"]
        return [*texts, *(ImageBlock(image=block.data, image_mimetype=block.mime_type) for block in images)]


async def main(target: str, *arguments: str) -> None:
    tools = await McpToolSpec(Client(target, list(arguments))).to_tool_list_async()
    model = MockFunctionCallingLLM(response_generator=next_call)
    await FunctionAgent(tools=tools, llm=model, streaming=False).run("What is 41 + 1?")
    for blocks in received[1:]:
        text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
        show(text, [block.image_mimetype for block in blocks if isinstance(block, ImageBlock)])


asyncio.run(main(*sys.argv[1:]))
