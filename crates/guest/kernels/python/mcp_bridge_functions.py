"""Tools as Python functions, with name, signature and docstring from the server's description."""

from kernel_imports import import_stdlib
from mcp_bridge_calls import MCPError

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


class Parameter:
    """One property of a tool's input schema."""

    def __init__(self, key, name, schema, is_required):
        self.key, self.name, self.is_required = key, name, is_required
        self.schema = schema if isinstance(schema, dict) else {}

    @property
    def types(self):
        """The JSON types that the value may have; empty if the schema is not that simple."""
        kinds = self.schema.get("type")
        if kinds is None:
            options = self.schema.get("anyOf") or self.schema.get("oneOf")
            options = options if isinstance(options, list) else []
            kinds = [option.get("type") for option in options if isinstance(option, dict)]
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return kinds if all(isinstance(kind, str) for kind in kinds) else []

    @property
    def annotation(self):
        """A class, a union as text, or None."""
        found = [TYPES[kind] for kind in self.types if kind in TYPES]
        if len(found) == 1:
            return found[0]
        return " | ".join(kind.__name__ for kind in found) or None

    @property
    def takes_null(self):
        return "null" in self.types or not self.types

    def describe(self):
        kind = self.annotation
        kind = getattr(kind, "__name__", kind) or "any"
        if isinstance(self.schema.get("enum"), list):
            kind = "one of " + ", ".join(map(repr, self.schema["enum"]))
        notes = [kind, "required" if self.is_required else "optional"]
        if "default" in self.schema:
            notes.append(f"default {self.schema['default']!r}")
        text = f"{self.name} ({', '.join(notes)})"
        description = self.schema.get("description")
        return f"{text}: {description}" if isinstance(description, str) and description else text


def parameters_of(tool):
    """Returns the parameters of a tool under names that are valid in Python, the required ones first."""
    schema = tool.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    required = set(map(str, required)) if isinstance(required, list) else set()
    taken = {key for key in properties if is_name(key)}
    found = []
    for key, value in properties.items():
        name = key if is_name(key) else make_name(key)
        if name != key and name in taken:
            continue  # can be passed in a dict
        taken.add(name)
        found.append(Parameter(key, name, value, key in required))
    found.sort(key=lambda parameter: not parameter.is_required)
    return found


def is_name(text):
    return text.isidentifier() and not import_stdlib("keyword").iskeyword(text)


def make_name(text):
    name = "".join(character if f"_{character}".isidentifier() else "_" for character in text) or "_"
    name = f"_{name}" if name[0].isdigit() else name
    return name if is_name(name) else f"{name}_"


def make_function(server, proxy_name, module_name, tool, invoke):
    """Creates an async function that passes the arguments of `tool` to `invoke`."""
    parameters = parameters_of(tool)
    signature = make_signature(parameters)
    name = tool["alias"]
    known = {parameter.name: parameter for parameter in parameters}
    keys = {parameter.key for parameter in parameters}
    is_closed = isinstance(tool.get("inputSchema"), dict) and tool["inputSchema"].get("additionalProperties") is False

    def refuse(problem):
        message = f"{name}() {problem}: {name}{signature}"
        return MCPError(message, kind="invalid", server=server, tool=tool["name"])

    def collect(given, named):
        if len(given) > 1 or (given and not isinstance(given[0], dict)):
            raise refuse("takes keyword arguments, or one dict")
        arguments = dict(given[0]) if given else {}
        for key, value in named.items():
            parameter = known.get(key)
            if parameter is None and is_closed and key not in keys:
                raise refuse(f"has no argument {key!r}{suggest(key, known)}")
            if value is None and parameter and not parameter.is_required and not parameter.takes_null:
                continue  # treated as absent
            arguments[parameter.key if parameter else key] = value
        missing = [p.name for p in parameters if p.is_required and p.key not in arguments]
        if missing:
            raise refuse(f"is missing {', '.join(missing)}")
        return arguments

    async def function(*given, **named):
        return await invoke(tool["name"], collect(given, named))

    function.__name__, function.__qualname__ = name, f"{proxy_name}.{name}"
    function.__module__ = module_name
    function.__doc__ = make_doc(tool, parameters)
    function.__signature__ = signature
    return function


def make_signature(parameters):
    inspect = import_stdlib("inspect")
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(
                parameter.name,
                kinds.KEYWORD_ONLY,
                default=kinds.empty if parameter.is_required else None,
                annotation=kinds.empty if parameter.annotation is None else parameter.annotation,
            )
            for parameter in parameters
        ]
    )


def make_doc(tool, parameters):
    description = tool.get("description")
    description = description.strip() if isinstance(description, str) else ""
    lines = [description or f"The tool {tool['name']}."]
    if parameters:
        lines += ["", "Arguments:", *(f"    {parameter.describe()}" for parameter in parameters)]
    if tool.get("outputSchema"):
        lines += ["", f"Returns a value of this schema: {import_stdlib('json').dumps(tool['outputSchema'])}"]
    return "\n".join(lines)


def suggest(name, known):
    """Returns “; did you mean …?”, or nothing if no name is similar."""
    near = import_stdlib("difflib").get_close_matches(str(name), [str(candidate) for candidate in known], 3, 0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""
