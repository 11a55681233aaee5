"""The calls of the scripted models in this directory, and the output of what such a model receives."""

import json
import pathlib

# Pairs of the name of a tool and its arguments.
CALLS = json.loads(pathlib.Path(__file__).with_name("calls.json").read_text())


def show(text: str, images: list[str]) -> None:
    """Prints the text of a tool result and the media types of its images as a line of JSON."""
    print(json.dumps({"text": text, "images": images}))


def show_blocks(blocks: list) -> None:
    """The same for content blocks of MCP."""
    text = "\n".join(block.text for block in blocks if block.type == "text")
    show(text, [block.model_dump(by_alias=True)["mimeType"] for block in blocks if block.type == "image"])
