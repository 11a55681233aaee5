"""An agent of Google ADK: `python google_adk_agent.py URL`."""

import asyncio
import base64
import sys

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.genai import types
from scripted import CALLS, show

calls = iter(CALLS)
received = []


class ScriptedModel(BaseLlm):
    """In place of a real model."""

    async def generate_content_async(self, llm_request, stream=False):
        received.append(llm_request.contents[-1].parts[0])
        name, args = next(calls, (None, None))
        part = types.Part.from_function_call(name=name, args=args) if name else types.Part.from_text(text="done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def convert(tool, args, tool_context, tool_response):
    """Converts results to texts and images. By default, images are base64 text, and texts are repeated as fields."""
    texts, images = [], []
    for block in tool_response["content"]:
        if block["type"] == "text":
            texts.append(block["text"])
        elif block["type"] == "image":
            data = base64.b64decode(block["data"])
            images.append(types.Part.from_bytes(data=data, mime_type=block["mimeType"]))
    return {"text": "\n".join(texts), "images": images}


async def main(url: str) -> None:
    tools = McpToolset(connection_params=StreamableHTTPConnectionParams(url=url))
    agent = LlmAgent(name="analyst", model=ScriptedModel(model="scripted"), tools=[tools], after_tool_callback=convert)
    await InMemoryRunner(agent).run_debug("What is 41 + 1?", quiet=True)
    await tools.close()
    for response in (part.function_response for part in received[1:]):
        show(response.response["text"], [part.inline_data.mime_type for part in response.parts or []])


asyncio.run(main(*sys.argv[1:]))
