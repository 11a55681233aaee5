"""An agent of the OpenAI Agents SDK: `python openai_agent.py URL`."""

import asyncio
import sys

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from agents.testing import ScriptedModel, assistant_message, function_call
from scripted import CALLS, show

# In place of a real model.
turns = [[function_call(*call, call_id=f"call-{number}")] for number, call in enumerate(CALLS)]
model = ScriptedModel([*turns, [assistant_message("done")]])


async def main(url: str) -> None:
    async with MCPServerStreamableHttp({"url": url}) as ringfence:
        agent = Agent("analyst", mcp_servers=[ringfence], model=model)
        result = await Runner.run(agent, "What is 41 + 1?")
    for item in result.to_input_list():
        if item.get("type") == "function_call_output":
            text = "\n".join(block["text"] for block in item["output"] if block["type"] == "input_text")
            images = [block["image_url"] for block in item["output"] if block["type"] == "input_image"]
            show(text, [url.removeprefix("data:").split(";")[0] for url in images])


set_tracing_disabled(True)
asyncio.run(main(*sys.argv[1:]))
