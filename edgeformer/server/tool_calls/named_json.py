r"""Calls that are a name and a JSON object of arguments.

Mistral       [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]    Mistral 7B v0.3, Nemo, Small 3.1
              [TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{…}            Small 3.2; each call with its own [TOOL_CALLS]
              [TOOL_CALLS]f[ARGS]{…}                              Devstral, Magistral 1.1, Ministral 3
DeepSeek      <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{…}\n```<｜tool▁call▁end｜>…
              <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>  V3.1
GLM-4         f\n{…}                                              the whole answer
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.server.tool_calls.format import Block, Call, ToolFormat, Tools, call
from edgeformer.server.tool_calls.json_objects import call_of
from edgeformer.server.tool_calls.lark import Lark
from edgeformer.server.tool_calls.source import ID_LENGTH, ID_LETTERS, NotACall, Reading, Source

TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


@dataclass(frozen=True, kw_only=True)
class Mistral(ToolFormat):
    """The formats of Mistral, which are read alike. with_id: whether a grammar writes an id. listed: or a list."""

    listed: bool = False
    with_id: bool = False

    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read a list of objects, or a name with arguments."""
        yield from source.expect(TOOL_CALLS)
        yield from source.skip_space()
        if (yield from source.peek()) in ("[", "{"):
            value = yield from source.json(is_call=True)
            return Block([call_of(each) for each in (value if isinstance(value, list) else [value])])
        name, id = (yield from source.name()), None
        if (yield from source.take(CALL_ID)):
            id = yield from source.name()
        yield from source.take(ARGS)
        yield from source.skip_space()
        return Block([call(name, (yield from source.json(begins=source.begin(name, id))), id)])

    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of a call."""
        arguments = lark.json(parameters)
        if self.listed:
            begin = f'{{"name": {json.dumps(name)}, "arguments": '
            return f"{lark.text(begin)} {arguments} {lark.text('}')}"
        id = f"{lark.text(CALL_ID)} /[{ID_LETTERS}]{{{ID_LENGTH}}}/" if self.with_id else ""
        return f"{lark.text(name)} {id} {lark.text(ARGS)} {arguments}"


@dataclass(frozen=True, kw_only=True)
class DeepSeek(ToolFormat):
    """The formats of DeepSeek. fenced: whether a grammar writes arguments within a fence, as before V3.1."""

    fenced: bool = False

    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read calls up to the mark behind all of them, or as far as there are any."""
        yield from source.take(CALLS_BEGIN)
        calls: list[Call] = []
        while True:
            end = source.at
            yield from source.skip_space()
            if not (yield from source.take(CALL_BEGIN)):
                break
            calls.append((yield from self._call(source)))
        if not calls:
            raise NotACall
        if not (yield from source.take(CALLS_END)):
            source.at = end
        return Block(calls)

    def _call(self, source: Source) -> Reading[Call]:
        name = yield from source.name()
        yield from source.expect(SEPARATOR)
        yield from source.skip_space()
        if (yield from source.peek()) not in ("{", "`"):  # the first name was the type of the tool
            name = yield from source.name()
            yield from source.skip_space()
        yield from source.take("```json")
        yield from source.skip_space()
        arguments = yield from source.json(begins=source.begin(name))
        end = source.at
        yield from source.skip_space()
        yield from source.take("```")
        yield from source.skip_space()
        if not (yield from source.take(CALL_END)):
            source.at = end
        return call(name, arguments)

    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of a call."""
        begin, end = (f"function{SEPARATOR}{name}\n```json\n", "\n```") if self.fenced else (f"{name}{SEPARATOR}", "")
        return f"{lark.text(CALL_BEGIN + begin)} {lark.json(parameters)} {lark.text(end + CALL_END)}"


@dataclass(frozen=True, kw_only=True)
class NameAndJson(ToolFormat):
    """A name, a line break and arguments, which are a whole answer."""

    def starts(self, tools: Tools) -> Sequence[str]:
        """Return the names of the tools: an answer that begins with one may be a call."""
        return tuple(tools)

    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read calls, one behind the other."""
        calls: list[Call] = []
        while True:
            end = source.at
            yield from source.skip_space()
            if calls and not (yield from source.peek()):
                break
            try:
                name = yield from source.name()
                yield from source.expect("\n")
                calls.append(call(name, (yield from source.json(begins=source.begin(name)))))
            except NotACall:
                if not calls:
                    raise
                source.at = end
                break
        return Block(calls)

    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of a call."""
        return f"{lark.text(f'{name}' + chr(10))} {lark.json(parameters)}"
