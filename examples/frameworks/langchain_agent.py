"""An agent of LangChain: `python langchain_agent.py URL`, or with a command in place of the URL.

The adapter opens a connection for each call, or starts the command for each call. So the URL needs `?session=NAME`, and
the command `--session NAME`.
"""

import asyncio
import sys

from langchain.agents import create_agent
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from scripted import CALLS, show


class ScriptedModel(FakeMessagesListChatModel):
    """In place of a real model."""

    def bind_tools(self, tools, **_):
        return self


turns = [AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}]) for name, args in CALLS]
model = ScriptedModel(responses=[*turns, AIMessage("done")])


async def main(target: str, *arguments: str) -> None:
    if target.startswith("http"):
        connection = {"transport": "streamable_http", "url": target}
    else:
        connection = {"transport": "stdio", "command": target, "args": list(arguments)}
    agent = create_agent(model, await MultiServerMCPClient({"ringfence": connection}).get_tools())
    reply = await agent.ainvoke({"messages": [{"role": "user", "content": "What is 41 + 1?"}]})
    for message in reply["messages"]:
        if isinstance(message, ToolMessage):
            text = "\n".join(block["text"] for block in message.content_blocks if block["type"] == "text")
            show(text, [block["mime_type"] for block in message.content_blocks if block["type"] == "image"])


asyncio.run(main(*sys.argv[1:]))
