"""Results of tools as plain Python values.

The value is `structuredContent` if there is any, otherwise the content: None for no part, the value of a single part,
or a list. A text is parsed if it is a JSON object or array; any other text stays a string, so that the type of a result
such as `123` does not depend on its digits. Images, audio and binary resources are `Blob`s.
"""

import binascii

from kernel_imports import import_stdlib
from mcp_bridge_calls import MCPError


class Blob(bytes):
    """Bytes with a `mime_type` and possibly a `uri`. `display()` shows an image."""

    __module__ = "mcp.runtime"

    def __new__(cls, data, mime_type="application/octet-stream", uri=None):
        blob = super().__new__(cls, data)
        blob.mime_type, blob.uri = mime_type, uri
        return blob

    def __reduce__(self):
        return Blob, (bytes(self), self.mime_type, self.uri)

    def __repr__(self):
        return f"<{self.mime_type}, {len(self)} bytes>"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.mime_type: bytes(self)} if self.mime_type.startswith("image/") else None


def convert(result, server, tool):
    """Returns the value of a tool's result; raises MCPError if the result is an error."""
    if not isinstance(result, dict):
        return result
    parts = result.get("content")
    parts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if result.get("isError"):
        raise MCPError(describe_error(result, parts), kind="tool", server=server, tool=tool, data=result)
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    if len(parts) == 1:
        return convert_part(parts[0])
    return [convert_part(part) for part in parts] or None


def describe_error(result, parts):
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    if texts:
        return "\n".join(texts)
    content = result.get("structuredContent")
    if content is None:
        return "the tool reported an error without a message"
    return import_stdlib("json").dumps(content)


def convert_part(part):
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return parse(part["text"])
    if kind in ("image", "audio"):
        return decode(part, part.get("data"), part.get("mimeType"), None)
    if kind == "resource" and isinstance(part.get("resource"), dict):
        resource = part["resource"]
        if isinstance(resource.get("text"), str):
            return parse(resource["text"])
        return decode(part, resource.get("blob"), resource.get("mimeType"), resource.get("uri"))
    return part  # a link, or a type that is not known here


def parse(text):
    if text[:256].lstrip()[:1] not in ("{", "["):
        return text
    try:
        return import_stdlib("json").loads(text)
    except (ValueError, RecursionError):
        return text


def decode(part, data, mime_type, uri):
    try:
        return Blob(binascii.a2b_base64(data), mime_type or "application/octet-stream", uri)
    except (TypeError, ValueError):
        return part  # not valid base64
