"""Calls as Python writes them, with keywords.

    LFM2                <|tool_call_start|>[f(city="Rome", days=2), g()]<|tool_call_end|>
    Gemma 3             [f(city="Rome", days=2)]                         the whole answer
    OLMo 3              <function_calls>\\nf(city="Rome", days=2)\\n</function_calls>

Values are literals of Python or of JSON. Templates write texts between quotes as they are (`'it's'`), so a quote ends a
text only where a value may end.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.server.tool_calls.format import Block, Call, ToolFormat, Tools, call, json_text
from edgeformer.server.tool_calls.json_objects import call_of
from edgeformer.server.tool_calls.lark import IDENTIFIER, Lark, ObjectForm, objects_of, part_of
from edgeformer.server.tool_calls.source import MAX_DEPTH, NotACall, Reading, Source, decode

WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
SCALAR = re.compile(r"[^\s,()\[\]{}=:]*")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
ENDS = ",)]}:"
"""Characters of which one follows a value, after white space."""


@dataclass(frozen=True, kw_only=True)
class Pythonic(ToolFormat):
    """Calls as Python writes them.

    Attributes:
        closings: marks behind calls, which a model may leave out.
        bare: whether a list of calls may begin an answer without a mark.
        listed: whether calls stand in a list.
    """

    closings: tuple[str, ...] = ()
    bare: bool = False
    listed: bool = True

    @property
    def marks(self) -> set[str]:
        """All marks, of which some may be special tokens."""
        return super().marks | set(self.closings)

    def starts(self, tools: Tools) -> Sequence[str]:
        """Return texts that begin a call where an answer begins."""
        return ("[",) if self.bare else ()

    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read a list of calls, or one behind the other."""
        if self.openings:
            yield from source.take(*self.openings)
        yield from source.skip_space()
        fence = yield from source.take("```python", "```")
        yield from source.skip_space()
        in_list = bool((yield from source.take("[")))
        calls: list[Call] = []
        while True:
            end = source.at
            yield from source.skip_space()
            following = yield from source.peek()
            if following == "{":  # as some templates write calls of earlier turns
                calls.append(call_of((yield from source.json(is_call=True))))
            elif following and (following.isalpha() or following == "_"):
                calls.append((yield from _call(source)))
            else:
                break
            end = source.at
            yield from source.skip_space()
            if not (yield from source.take(",", ";")) and in_list:
                break
        if in_list:
            yield from source.expect("]")
            end = source.at
        if not calls:
            raise NotACall
        yield from source.skip_space()
        if fence and (yield from source.take("```")):
            end = source.at
            yield from source.skip_space()
        if not (self.closings and (yield from source.take(*self.closings))):
            source.at = end
        return Block(calls)

    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of a call; values are written as JSON."""

        def keywords(form: ObjectForm) -> str:
            rules = {
                key: f"{lark.text(f'{key}=')} {lark.json(part_of(schema, parameters))}"
                for key, schema in form.properties.items()
            }
            extra = (
                f'/{IDENTIFIER}/ "=" {lark.json(part_of(form.extra, parameters))}' if form.extra is not False else ""
            )
            needed, others = ([rules[key] for key in names] for names in (form.needed, form.others))
            return lark.keywords(needed, others, ", ", extra)

        forms = lark.any_of(list(map(keywords, objects_of(parameters, parameters))))
        return f"{lark.text(f'{name}(')} {forms} {lark.text(')')}"


def _call(source: Source) -> Reading[Call]:
    """Read a call of Python, such as `weather(city="Rome")`."""
    name = yield from source.name()
    yield from source.skip_space()
    yield from source.expect("(")
    begun = source.begin(name)
    arguments: dict[str, Any] = {}
    while True:
        yield from source.skip_space()
        if (yield from source.take(")")):
            return call(name, arguments)
        key = yield from source.name()
        yield from source.skip_space()
        yield from source.expect("=")
        arguments[key] = yield from _value(source, 1)
        if begun is not None:
            begun.add(key, json_text(arguments[key]))
        yield from source.skip_space()
        if (yield from source.expect(",", ")")) == ")":
            return call(name, arguments)


def _value(source: Source, depth: int) -> Reading[Any]:
    """Read a literal of Python or of JSON."""
    if depth > MAX_DEPTH:
        raise NotACall
    yield from source.skip_space()
    first = yield from source.peek()
    if first in ("'", '"'):
        return (yield from _text(source))
    if first in ("[", "("):
        return (yield from _items(source, depth))
    if first == "{":
        return (yield from _mapping(source, depth))
    text = yield from source.take_all(SCALAR)
    return WORDS[text] if text in WORDS else decode(text)


def _items(source: Source, depth: int) -> Reading[list[Any]]:
    closing = "]" if (yield from source.expect("[", "(")) == "[" else ")"
    items: list[Any] = []
    while True:
        yield from source.skip_space()
        if (yield from source.take(closing)):
            return items
        items.append((yield from _value(source, depth + 1)))
        yield from source.skip_space()
        if (yield from source.expect(",", closing)) == closing:
            return items


def _mapping(source: Source, depth: int) -> Reading[dict[str, Any]]:
    yield from source.expect("{")
    entries: dict[str, Any] = {}
    while True:
        yield from source.skip_space()
        if (yield from source.take("}")):
            return entries
        key = yield from _text(source)
        yield from source.skip_space()
        yield from source.expect(":")
        entries[key] = yield from _value(source, depth + 1)
        yield from source.skip_space()
        if (yield from source.expect(",", "}")) == "}":
            return entries


def _text(source: Source) -> Reading[str]:
    """Read a text between quotes."""
    quote = yield from source.expect("'", '"')
    parts: list[str] = []
    while True:
        letter = yield from source.peek()
        if not letter:
            raise NotACall
        source.at += 1
        if letter == "\\":
            parts.append((yield from _escape(source)))
        elif letter == quote and (yield from _ends(source)):
            return _joined("".join(parts))
        else:
            parts.append(letter)


def _ends(source: Source) -> Reading[bool]:
    """Return whether a value may end here."""
    at = source.at
    yield from source.skip_space()
    following = yield from source.peek()
    source.at = at
    return not following or following in ENDS


def _escape(source: Source) -> Reading[str]:
    """Read what follows a backslash; unknown escapes stay as they are, as in Python."""
    letter = yield from source.peek()
    source.at += len(letter)
    if letter in HEX_DIGITS:
        digits = yield from source.peek(HEX_DIGITS[letter])
        if len(digits) != HEX_DIGITS[letter] or not re.fullmatch("[0-9a-fA-F]+", digits) or int(digits, 16) > 0x10FFFF:
            raise NotACall
        source.at += len(digits)
        return chr(int(digits, 16))
    if letter in ("\\", "'", '"', "/"):
        return letter
    return ESCAPES.get(letter, f"\\{letter}")


def _joined(text: str) -> str:
    """Return a text whose pairs of surrogates, as JSON escapes rare characters, are characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
