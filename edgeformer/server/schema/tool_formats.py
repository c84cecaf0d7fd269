"""Formats of tool calls: how models write them, by what their chat templates tell them, and how they are read back.

    Hermes, Qwen      <tool_call>{"name": "f", "arguments": {…}}</tool_call>   any number, text around them
    Mistral           [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]         or [TOOL_CALLS]f[ARGS]{…}
    Llama 3           {"name": "f", "parameters": {…}}                         the whole answer; several divided by ;

A call that is not well formed stays text: the client sees what the model wrote.
"""

import json
import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ID_LETTERS = string.ascii_letters + string.digits
ID_LENGTH = 9
"""Letters and digits of a call's id: the templates of Mistral refuse any other length."""


@dataclass(frozen=True)
class ToolFormat:
    """A format of tool calls.

    signs: a template with all of these has the format. unless: and with none of these. opening: text before a call.
    closing: text behind it, or empty where the call goes to the end. arguments: the key of the arguments. in_list:
    whether a list of calls follows the opening.
    """

    name: str
    signs: tuple[str, ...]
    opening: str
    closing: str = ""
    unless: tuple[str, ...] = ()
    arguments: str = "arguments"
    in_list: bool = False
    forced_opening: str = ""

    def schema(self, functions: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the JSON schema of one call of one of the functions, as it follows `forced_opening`."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": each["name"]},
                    self.arguments: each.get("parameters") or {"type": "object"},
                },
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for each in functions
        ]
        call = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return {"type": "array", "items": call, "minItems": 1, "maxItems": 1} if self.in_list else call


FORMATS = (
    ToolFormat(
        "hermes",
        signs=("<tool_call>", "tojson"),
        unless=("<function=", "<arg_key>"),
        opening="<tool_call>",
        closing="</tool_call>",
        forced_opening="<tool_call>\n",
    ),
    ToolFormat("mistral", signs=("[TOOL_CALLS]",), opening="[TOOL_CALLS]", in_list=True, forced_opening="[TOOL_CALLS]"),
    ToolFormat("llama3", signs=('"parameters"', "<|start_header_id|>", "tools"), opening="{", arguments="parameters"),
)
"""All formats. The first whose signs a template has is taken."""


def recognise(template: str) -> ToolFormat | None:
    """Return the format that a chat template asks the model for; None for one without tools, or of another format."""
    if not re.search(r"\btools\b", template):
        return None
    for each in FORMATS:
        if all(sign in template for sign in each.signs) and not any(sign in template for sign in each.unless):
            return each
    return None


@dataclass(frozen=True)
class Call:
    """A call of a function. arguments: JSON text. id: which the answer of the tool names."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH)))

    def as_json(self) -> dict[str, Any]:
        """Return it as OpenAI's API has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def read_calls(text: str, format: ToolFormat) -> list[Call] | None:
    """Return the calls in the text between an opening and its closing; None if it is not well formed."""
    named = re.fullmatch(r"\s*([\w.-]+)\s*(?:\[ARGS\])?\s*(\{.*\})\s*", text, re.DOTALL) if format.in_list else None
    try:
        if named:
            return [Call(named[1], json.dumps(json.loads(named[2]), ensure_ascii=False))]
        values = _values(text)
    except (ValueError, RecursionError):
        return None
    values = values[0] if format.in_list and len(values) == 1 and isinstance(values[0], list) else values
    calls = [_call(value, format) for value in values]
    return [call for call in calls if call] if calls and all(calls) else None


def _values(text: str) -> list[Any]:
    """Return the JSON values in a text that are divided by white space or semicolons."""
    decoder, values, place = json.JSONDecoder(), [], 0
    while rest := text[place:].lstrip(" \t\r\n;"):
        place = len(text) - len(rest)
        value, place = decoder.raw_decode(text, place)
        values.append(value)
    return values


def _call(value: Any, format: ToolFormat) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get(format.arguments, value.get("arguments", {}))
    if isinstance(arguments, str):  # JSON text inside of JSON, as some models write it
        return Call(value["name"], arguments)
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


class ToolCallReader:
    """Divides an answer, piece by piece, into text and calls. No piece of a call is ever returned as text.

    forced: the answer is one call whose opening the prompt holds already.
    """

    def __init__(self, format: ToolFormat, *, forced: bool = False):
        self._format = format
        self._held = ""
        self._forced = forced
        self._in_call = forced
        self._at_start = True

    def push(self, piece: str) -> tuple[str, list[Call]]:
        """Add text; return the text and the calls that are complete now."""
        self._held += piece
        text = ""
        calls: list[Call] = []
        while True:
            if self._in_call:
                body, closing, rest = self._held.partition(self._format.closing or "\0")
                if not closing or self._forced:
                    return text, calls
                found = read_calls(body, self._format)
                calls += found or []
                text += "" if found else f"{self._format.opening}{body}{closing}"
                self._held, self._in_call = rest, False
            if not self._find_opening():
                kept = self._possible_opening()
                settled = self._held[: len(self._held) - kept]
                self._held = self._held[len(settled) :]
                return text + settled, calls
            before, _, self._held = self._held.partition(self._format.opening)
            if self._format.opening == "{":
                self._held = "{" + self._held
            text, self._in_call = text + before, True

    def finish(self) -> tuple[str, list[Call]]:
        """Return the rest."""
        held, self._held = self._held, ""
        if not self._in_call:
            return held, []
        found = read_calls(held, self._format)
        opening = "" if self._forced or self._format.opening == "{" else self._format.opening
        return ("", found) if found else (opening + held, [])

    def _find_opening(self) -> bool:
        """Return whether the held text has an opening; a brace opens a call only where an answer begins."""
        if self._format.opening != "{":
            return self._format.opening in self._held
        start = self._held.lstrip()
        found = self._at_start and start.startswith("{")
        self._at_start = self._at_start and not start
        return found

    def _possible_opening(self) -> int:
        """Return the length of the longest end of the held text that an opening may begin with."""
        opening = self._format.opening
        if opening == "{":
            return len(self._held) if self._at_start else 0
        lengths = range(min(len(opening) - 1, len(self._held)), 0, -1)
        return next((length for length in lengths if opening.startswith(self._held[-length:])), 0)
