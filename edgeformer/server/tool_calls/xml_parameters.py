r"""Calls with a tag for every parameter.

    Qwen3-Coder, 3.5   <tool_call>\n<function=f>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>
    Seed-OSS           <seed:tool_call>\n<function=f>\n<parameter=city>Rome</parameter>\n</function>\n</seed:tool_call>
    GLM-4.5, GLM-4.6   <tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>

Values are text as it is where the tool's schema says that the parameter is text, and JSON elsewhere. A value may hold
its closing tag: it ends at one that a further tag, or the end of the call, follows.
"""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgeformer.server.tool_calls.format import Block, ToolFormat, Tools, call, json_text
from edgeformer.server.tool_calls.lark import (
    IDENTIFIER,
    Lark,
    ObjectForm,
    objects_of,
    part_of,
    resolved,
    types_of,
    values_of,
)
from edgeformer.server.tool_calls.source import BegunCall, NotACall, Reading, Source, decode

WORDS = {"True": True, "False": False, "None": None}
"""Values as templates write them that were made for Python."""


@dataclass(frozen=True, kw_only=True)
class XmlParameters(ToolFormat):
    """Calls whose parameters have tags.

    Attributes:
        name_tag: text before and behind the name of the function.
        key_tag: text before and behind the name of a parameter.
        value_tag: text before and behind its value.
        closings: marks behind the last parameter, of which the first that comes ends the call.
        lines: whether values stand on lines of their own.
    """

    name_tag: tuple[str, str]
    key_tag: tuple[str, str]
    value_tag: tuple[str, str]
    closings: tuple[str, ...]
    lines: bool = False

    @property
    def marks(self) -> set[str]:
        """All marks, of which some may be special tokens."""
        tags = {part for tag in (self.name_tag, self.key_tag, self.value_tag) for part in tag if len(part) > 1}
        return super().marks | tags | set(self.closings)

    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read one call."""
        before, behind = self.name_tag
        if (yield from source.take(*self.openings)) != before:
            yield from source.skip_space()
            if before:
                yield from source.expect(before)
        name = yield from source.name()
        if behind:
            yield from source.expect(behind)
        if name not in tools:
            raise NotACall
        begun = source.begin(name)
        arguments = yield from self._arguments(source, tools[name], begun)
        yield from source.expect(*self.closings)
        while True:
            end = source.at
            yield from source.skip_space()
            if not (yield from source.take(*self.closings)):
                source.at = end
                return Block([call(name, arguments)])

    def _arguments(self, source: Source, schema: Mapping[str, Any], begun: BegunCall | None) -> Reading[dict[str, Any]]:
        """Read parameters and the white space behind them."""
        properties = {key: each for form in objects_of(schema, schema) for key, each in form.properties.items()}
        arguments: dict[str, Any] = {}
        yield from source.skip_space()
        while (yield from source.take(self.key_tag[0])):
            key = (yield from source.until(self.key_tag[1])).strip()
            before, behind = self.value_tag
            if before:
                yield from source.skip_space()
                yield from source.expect(before)
            text = yield from source.until(behind, [self.key_tag[0], *self.closings])
            if self.lines:
                text = text.removeprefix("\n").removesuffix("\n")
            arguments[key] = value_of(text, properties.get(key), schema)
            if begun is not None:
                begun.add(key, json_text(arguments[key]))
            yield from source.skip_space()
        return arguments

    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of a call."""

        def arguments(form: ObjectForm) -> str:
            written = {
                key: self._argument_rule(lark, lark.text(key), schema, parameters)
                for key, schema in form.properties.items()
            }
            parts = [*(written[key] for key in form.needed), *(f"({written[key]})?" for key in form.others)]
            if form.extra is not False:
                parts.append(f"({self._argument_rule(lark, f'/{IDENTIFIER}/', form.extra, parameters)})*")
            return " ".join(parts) or '""'

        begin = lark.text(f"{self.name_tag[0]}{name}{self.name_tag[1]}\n")
        return f"{begin} {lark.any_of(list(map(arguments, objects_of(parameters, parameters))))}"

    def _argument_rule(self, lark: Lark, key: str, schema: Any, root: Mapping[str, Any]) -> str:
        """Return the expression of an argument. key: that of its name."""
        line = "\n" if self.lines else ""
        between = "\n" if self.value_tag[0] else ""
        behind = lark.text(f"{self.key_tag[1]}{between}{self.value_tag[0]}{line}")
        begin = f"{lark.text(self.key_tag[0])} {key} {behind}"
        end = f"{line}{self.value_tag[1]}"
        found = resolved(schema, root)
        if types_of(schema, root) != {"string"}:
            return f"{begin} {lark.json(part_of(schema, root))} {lark.text(end)} {lark.text(chr(10))}"
        texts = values_of(schema, root)
        if texts:
            values = lark.any_of([lark.text(str(each)) or '""' for each in texts])
            return f"{begin} {values} {lark.text(end)} {lark.text(chr(10))}"
        if (followed := lark.pattern(found.get("pattern"))) is not None:
            return f"{begin} {followed} {lark.text(end)} {lark.text(chr(10))}"
        return f"{begin} {lark.text_until(end)} {lark.text(chr(10))}"


def value_of(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the value that a text stands for, by the schema of its parameter.

    Text that is no JSON of an allowed type is a string, as for a parameter without a schema.
    """
    types = types_of(schema, root)
    if types == {"string"}:
        return text
    try:
        value = WORDS[text.strip()] if text.strip() in WORDS else decode(text.strip())
    except NotACall:
        return _python(text) if text.strip()[:1] in ("{", "[") else text
    if types and isinstance(value, str) and "string" in types:
        return text
    kind = {bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", str: "string"}
    allowed = not types or kind.get(type(value), "object") in types or (type(value) is int and "number" in types)
    return value if allowed or "string" not in types else text


def _python(text: str) -> Any:
    """Return the value of a literal of Python; the text itself, if it is none."""
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return text
    return value
