r"""Calls that are JSON objects, each with a name and arguments, behind a mark.

    Hermes, Qwen    <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>
    Llama 3         {"name": "f", "parameters": {…}}, perhaps behind <|python_tag|>; several divided by ;
    Granite 3       <|tool_call|>[{"name": "f", "arguments": {…}}]
    Phi-4-mini      <|tool_call|>[{"name": "f", "arguments": {…}}]<|/tool_call|>
    Apertus         <|tools_prefix|>[{"f": {…}}]<|tools_suffix|>
    Hunyuan         <tool_calls>[{"name": "f", "arguments": {…}}]</tool_calls>
    Command-R7B     <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {…}}]<|END_ACTION|>

Where one of them stands, a list and several objects are read alike, and so are the names of the others' keys.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.server.tool_calls.format import Block, Call, ToolFormat, Tools, call
from edgeformer.server.tool_calls.lark import Lark, any_schema, part_of
from edgeformer.server.tool_calls.source import ARGUMENTS, IDS, NAMES, NotACall, Reading, Source


@dataclass(frozen=True, kw_only=True)
class JsonObjects(ToolFormat):
    """Calls as JSON objects.

    Attributes:
        closings: marks behind calls, which a model may leave out.
        bare: whether a call may begin an answer without a mark.
        before: what stands in an object before the name, in a grammar.
        name_key, arguments_key: keys of the name and of the arguments, in a grammar.
        by_name: whether an object has the arguments by the name, in place of both keys.
    """

    closings: tuple[str, ...] = ()
    bare: bool = False
    before: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    by_name: bool = False

    @property
    def marks(self) -> set[str]:
        """All marks, of which some may be special tokens."""
        return super().marks | set(self.closings)

    def starts(self, tools: Tools) -> Sequence[str]:
        """Return texts that begin a call where an answer begins."""
        return ("{", "[") if self.bare else ()

    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read objects, in a list or one behind the other."""
        fence = ""
        if self.openings and (yield from source.take(*self.openings)):
            yield from source.skip_space()
            fence = yield from source.take("```json", "```")
            yield from source.skip_space()
        value = yield from source.json(is_call=True, by_name=self.by_name)
        calls = list(map(self._call_of, value if isinstance(value, list) else [value]))
        while True:
            end = source.at
            yield from source.skip_space()
            if (yield from source.take(",", ";")):
                yield from source.skip_space()
            if (yield from source.peek()) != "{":
                source.at = end
                break
            calls.append(self._call_of((yield from source.json(is_call=True, by_name=self.by_name))))
        yield from source.skip_space()
        if fence and (yield from source.take("```")):
            end = source.at
            yield from source.skip_space()
        if not (self.closings and (yield from source.take(*self.closings))):
            source.at = end
        return Block(calls)

    def _call_of(self, value: Any) -> Call:
        if self.by_name and isinstance(value, dict) and len(value) == 1:
            [(name, arguments)] = value.items()
            return call(name, arguments)
        return call_of(value)

    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of an object."""
        begin = f"{{{json.dumps(name)}: " if self.by_name else self._beginning(name)
        return f"{lark.text(begin)} {lark.json(parameters)} {lark.text('}')}"

    def _beginning(self, name: str) -> str:
        return f'{{{self.before}"{self.name_key}": {json.dumps(name)}, "{self.arguments_key}": '

    def grammar(
        self,
        functions: Sequence[Mapping[str, Any]],
        special: Mapping[str, int],
        *,
        forced: bool,
        answer_schema: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a grammar of answers. A call without a mark is told from JSON of a schema by one schema of both."""
        if not self.bare or answer_schema is None:
            return super().grammar(functions, special, forced=forced, answer_schema=answer_schema)
        lark = Lark(special)
        return lark.grammar(lark.json(any_schema([*map(self._call_schema, functions), answer_schema])))

    def _call_schema(self, function: Mapping[str, Any]) -> dict[str, Any]:
        parameters = function.get("parameters") or {}
        moved = part_of(parameters, parameters)
        properties = {"name": {"const": function["name"]}, self.arguments_key: moved}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
            "$defs": moved.pop("$defs"),
        }


def call_of(value: Any) -> Call:
    """Return the call that an object stands for. Raises NotACall."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = {key: value[key] for key in IDS if key in value} | value["function"]
    if not isinstance(value, dict):
        raise NotACall
    name, arguments, id = (next((value[key] for key in keys if key in value), None) for keys in (NAMES, ARGUMENTS, IDS))
    return call(name, arguments, id)
