"""An agent of smolagents: `python smolagents_agent.py URL`."""

import sys

from scripted import CALLS, show
from smolagents import ToolCallingAgent
from smolagents.mcp_client import MCPClient
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model

calls = iter([*CALLS, ["final_answer", {"answer": "done"}]])
# smolagents makes models pass every argument. ringfence treats these values like missing ones.
EMPTY = {"string": "", "number": 0, "integer": 0, "array": []}


class ScriptedModel(Model):
    """In place of a real model."""

    def generate(self, messages, tools_to_call_from, **_):
        name, arguments = next(calls)
        [tool] = [tool for tool in tools_to_call_from if tool.name == name]
        arguments = {name: EMPTY.get(schema["type"]) for name, schema in tool.inputs.items()} | arguments
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        return ChatMessage(MessageRole.ASSISTANT, tool_calls=[ChatMessageToolCall(function, "call", "function")])


def attach_images(step, agent):
    """Shows images to the model. By default, smolagents only stores them in the state of the agent."""
    if image := agent.state.pop("image.png", None):
        step.observations_images = [image.to_raw()]


def main(url: str) -> None:
    with MCPClient({"url": url}, structured_output=False) as tools:
        agent = ToolCallingAgent(tools, ScriptedModel(), step_callbacks=[attach_images], verbosity_level=0)
        agent.run("What is 41 + 1?")
    for step in agent.memory.steps[1 : len(CALLS) + 1]:
        images = step.observations_images or []
        show(step.observations or str(step.error), [image.get_format_mimetype() for image in images])


main(*sys.argv[1:])
