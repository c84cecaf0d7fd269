"""A format of tool calls: its marks, how a call is read, and how a grammar writes one."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeformer.server.tool_calls.lark import Lark
from edgeformer.server.tool_calls.source import NotACall, Reading, Source, decode, id_of, make_id

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the parameters of all functions, by their names."""

THINK, END_THINK = "<think>", "</think>"
"""Marks around what a model thinks, as most models write them, and as clients get them."""


@dataclass(frozen=True)
class Call:
    """A call of a function. arguments: the text of a JSON object. id: which the answer of the tool names."""

    name: str
    arguments: str
    id: str = field(default_factory=make_id)

    def as_json(self) -> dict[str, Any]:
        """Return it as OpenAI's API has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class CallPiece:
    """A part of a call as it is written.

    place: of the call among those of the answer. arguments: new text of the JSON object. begins: whether it is the
    first part. ends: whether it is the last one, which a call that breaks off does not have.
    """

    place: int
    id: str
    name: str
    arguments: str
    begins: bool
    ends: bool

    def as_json(self) -> dict[str, Any]:
        """Return it as streams of OpenAI's API have it."""
        if not self.begins:
            return {"index": self.place, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.place, "id": self.id, "type": "function", "function": function}


def call(name: Any, arguments: Any, id: Any = None) -> Call:
    """Return a call with arguments as a model wrote them: an object, JSON text of one, or nothing.

    id: the model's own, which is taken if it has the length that templates want. Raises NotACall.
    """
    if isinstance(arguments, str) and arguments.strip():
        arguments = decode(arguments)  # JSON text inside of JSON, as some models write it
    arguments = {} if arguments in (None, "", []) or isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise NotACall
    return Call(name, json_text(arguments), id_of(id))


def json_text(value: Any) -> str:
    """Return a value as JSON, in which half of a character, which UTF-8 does not have, is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        return json.dumps(value)
    return text


@dataclass(frozen=True)
class Block:
    """A part of an answer that an opening mark began: calls, or what the model thinks up to a mark, or nothing."""

    calls: Sequence[Call] = ()
    thinks_until: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolFormat(ABC):
    """A format of tool calls.

    Attributes:
        name: its name, for `--tool-format`.
        models: models that write it, for the reference.
        example: a call of `weather` with {"city": "Rome", "days": 2}, as these models write it.
        signs: texts of chat templates: a template with all of one of these groups asks for the format.
        unless: a template with one of these does not.
        openings: marks that a call begins with, anywhere in an answer.
        inner: other marks of the format, which may be special tokens.
        thinking: marks around what a model thinks, opening and closing.
        silent: marks that are left out of the answer's text.
        begin, between, end: what a grammar writes before, between and behind calls.
    """

    name: str
    models: str
    example: str
    signs: tuple[tuple[str, ...], ...]
    unless: tuple[str, ...] = ()
    openings: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    thinking: Mapping[str, str] = field(default_factory=lambda: {THINK: END_THINK})
    silent: tuple[str, ...] = ()
    begin: str = ""
    between: str = ""
    end: str = ""

    def starts(self, tools: Tools) -> Sequence[str]:
        """Return texts that begin a call where an answer begins, and nowhere else."""
        return ()

    @abstractmethod
    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read a part of an answer from its opening mark on. Raises NotACall."""

    @abstractmethod
    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of a grammar for a call of a function."""

    def is_asked_for_by(self, template: str) -> bool:
        """Return whether a chat template asks for calls in this format."""
        signs = any(all(sign in template for sign in group) for group in self.signs)
        return signs and not any(sign in template for sign in self.unless)

    @property
    def marks(self) -> set[str]:
        """All marks, of which some may be special tokens."""
        return {*self.openings, *self.inner, *self.silent, *self.thinking, *self.thinking.values()}

    def grammar(
        self,
        functions: Sequence[Mapping[str, Any]],
        special: Mapping[str, int],
        *,
        forced: bool,
        answer_schema: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a grammar of answers, in llguidance's variant of Lark.

        functions: that may be called. special: token ids of marks that are special tokens. forced: whether the answer
        is one call; otherwise it is text that calls may follow, or where there is an `answer_schema`, JSON or calls.
        """
        lark = Lark(special)
        one = lark.any_of([self.call_rule(lark, each["name"], each.get("parameters") or {}) for each in functions])
        begin, between, end = (lark.text(part) for part in (self.begin, self.between, self.end))
        if forced:
            return lark.grammar(f"{begin} {one} {end}")
        calls = f"{begin} {one} ({between} {one})* {end}"
        if answer_schema is not None:
            return lark.grammar(f"{calls} | {lark.json(answer_schema)}")
        opening = max((mark for mark in self.openings if self.begin.startswith(mark)), key=len, default="")
        if not opening:  # a call is the whole answer, and text begins with something else
            starts = self.starts({each["name"]: {} for each in functions})
            return lark.grammar(f"{calls} | {lark.free_text(unless=starts)}")
        rest = lark.text(self.begin.removeprefix(opening))
        thinks = f"({lark.text(THINK)} {lark.text_until(END_THINK)})?"
        call_behind_text = f"{lark.text_until(opening)} {rest} {one} ({between} {one})* {end}"
        return lark.grammar(f"{thinks} ({call_behind_text})* {lark.free_text(without=opening)}")
