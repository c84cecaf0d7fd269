"""Custom tools of /v1/responses: functions of one text, which clients send and get without JSON around it."""

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError

from edgeformer.server.schema.bodies import Function, NamedFunction, ToolName
from edgeformer.server.schema.body import Body
from edgeformer.server.schema.fields import PARTS

TOOL_TYPES = (
    ("function", "custom"),
    "functions and custom tools alone can be called, and the server runs no tools of its own",
)
"""Types of tools of /v1/responses, and why there are no others."""

INPUT = "input"
"""The parameter of the function that a custom tool is for a model."""

BEGINNING = re.compile(rf'\{{\s*"{INPUT}"\s*:\s*"')
CHARACTERS = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[\da-fA-F]{4}|\\u[dD][89abAB][\da-fA-F]{2}\\u[\da-fA-F]{4})*'
)
"""Whole characters of a string of JSON."""


class FunctionTool(Function):
    """A function that the model may call."""

    FIELDS = PARTS["tool"]
    TYPES = TOOL_TYPES

    type: str


class InputFormat(Body):
    """The form of a custom tool's input: any text, or one that follows a grammar."""

    TYPES: ClassVar = (("text", "grammar"), "an input is any text, or follows a grammar")

    type: str
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None

    @model_validator(mode="after")
    def _check_grammar(self) -> "InputFormat":
        missing = next((name for name in ("syntax", "definition") if getattr(self, name) is None), None)
        if self.type == "grammar" and missing is not None:
            raise PydanticCustomError("missing_schema", "is missing, and the type is grammar", {"field": missing})
        return self


class CustomTool(Body):
    """A tool that the model may call with a text."""

    FIELDS = PARTS["tool"]

    type: str
    name: ToolName
    description: str | None = None
    format: InputFormat | None = None

    @property
    def has_lark(self) -> bool:
        """Whether a grammar of Lark says what its input is."""
        return self.format is not None and self.format.syntax == "lark"

    def as_function(self) -> Function:
        """Return it as a function of one text. A regular expression is followed; models are shown a grammar of Lark."""
        text: dict[str, Any] = {"type": "string"}
        description = self.description
        if self.format is not None and self.format.syntax == "regex":
            text["pattern"] = f"^(?:{self.format.definition})$"
        elif self.format is not None and self.has_lark:
            grammar = f"The input follows this grammar of Lark:\n{self.format.definition}"
            description = f"{description}\n\n{grammar}" if description else grammar
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        strict = "pattern" in text or None
        return Function(name=self.name, description=description, parameters=parameters, strict=strict)


def _kind(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "custom" if kind == "custom" else "function"


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[CustomTool, Tag("custom")], Discriminator(_kind)
]


class NamedResponseTool(NamedFunction):
    """The function or custom tool that has to be called."""

    TYPES = TOOL_TYPES

    type: str


def input_of(arguments: str) -> str:
    """Return the input of a custom tool, by the JSON text of the arguments that a model wrote.

    Some name the parameter otherwise: one text is the input, and anything else is its JSON.
    """
    values = json.loads(arguments)
    value = values[INPUT] if INPUT in values else next(iter(values.values())) if len(values) == 1 else values
    return value if isinstance(value, str) else arguments


class InputPieces:
    """The input of a custom tool, piece by piece, out of the JSON text of its arguments."""

    def __init__(self) -> None:
        self._arguments = ""
        self._at = 0
        self.text = ""

    def push(self, arguments: str) -> str:
        """Add text of the arguments; return what it adds to the input."""
        self._arguments += arguments
        if not self._at:
            begins = BEGINNING.match(self._arguments)
            self._at = begins.end() if begins else 0
        if not self._at:
            return ""
        found = CHARACTERS.match(self._arguments, self._at)
        assert found is not None
        self._at = found.end()
        return self._add(json.loads(f'"{found.group()}"', strict=False))

    def finish(self) -> str:
        """Return the rest of the input of a call that is whole."""
        whole = input_of(self._arguments)
        return self._add(whole[len(self.text) :])

    def _add(self, piece: str) -> str:
        self.text += piece
        return piece
