"""Calls in Gemma's notation: keys without quotes, and texts between marks that are special tokens.

FunctionGemma   <start_function_call>call:f{city:<escape>Rome<escape>,days:2}<end_function_call>
Gemma 4         <|tool_call>call:f{city:<|"|>Rome<|"|>,days:2}<tool_call|>
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgeformer.server.tool_calls.format import Block, ToolFormat, Tools, call, json_text
from edgeformer.server.tool_calls.lark import IDENTIFIER, Lark, ObjectForm, objects_of, part_of, resolved, types_of
from edgeformer.server.tool_calls.source import MAX_DEPTH, BegunCall, NotACall, Reading, Source, decode

KEY = re.compile(r"[^:,{}\[\]\"]*")
SCALAR = re.compile(r"[^,{}\[\]]*")
PLAIN = {"integer", "number", "boolean", "null"}
"""Types that are written as in JSON."""


@dataclass(frozen=True, kw_only=True)
class Gemma(ToolFormat):
    """Calls in Gemma's notation. quote: the mark before and behind a text. closing: the mark behind a call."""

    quote: str
    closing: str

    @property
    def marks(self) -> set[str]:
        """All marks, of which some may be special tokens."""
        return super().marks | {self.quote, self.closing}

    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read one call."""
        yield from source.expect(*self.openings)
        yield from source.skip_space()
        yield from source.expect("call:")
        name = yield from source.name()
        arguments = yield from self._entries(source, 1, source.begin(name))
        end = source.at
        yield from source.skip_space()
        if not (yield from source.take(self.closing)):
            source.at = end
        return Block([call(name, arguments)])

    def _entries(self, source: Source, depth: int, begun: BegunCall | None = None) -> Reading[dict[str, Any]]:
        yield from source.expect("{")
        entries: dict[str, Any] = {}
        while True:
            yield from source.skip_space()
            if (yield from source.take("}")):
                return entries
            if (yield from source.take(self.quote)):
                key = yield from source.until(self.quote)
            elif (yield from source.take('"')):
                key = yield from source.until('"', [":"])
            else:
                key = (yield from source.take_all(KEY)).strip()
            yield from source.skip_space()
            yield from source.expect(":")
            entries[key] = yield from self._value(source, depth + 1)
            if begun is not None:
                begun.add(key, json_text(entries[key]))
            yield from source.skip_space()
            if (yield from source.expect(",", "}")) == "}":
                return entries

    def _value(self, source: Source, depth: int) -> Reading[Any]:
        if depth > MAX_DEPTH:
            raise NotACall
        yield from source.skip_space()
        if (yield from source.take(self.quote)):
            return (yield from source.until(self.quote))
        first = yield from source.peek()
        if first == "{":
            return (yield from self._entries(source, depth))
        if first == "[":
            return (yield from self._items(source, depth))
        if first == '"':
            source.at += 1
            return (yield from source.until('"', [",", "}", "]"]))
        text = (yield from source.take_all(SCALAR)).strip()
        try:
            return decode(text)
        except NotACall:
            if not text:
                raise
            return {"None": None}.get(text, text)

    def _items(self, source: Source, depth: int) -> Reading[list[Any]]:
        yield from source.expect("[")
        items: list[Any] = []
        while True:
            yield from source.skip_space()
            if (yield from source.take("]")):
                return items
            items.append((yield from self._value(source, depth + 1)))
            yield from source.skip_space()
            if (yield from source.expect(",", "]")) == "]":
                return items

    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of a call."""
        begin = lark.text(f"call:{name}{{")
        return f"{begin} {self._entries_rule(lark, parameters, parameters)} {lark.text('}')}"

    def _entries_rule(self, lark: Lark, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        def entries(form: ObjectForm) -> str:
            rules = {
                key: f"{lark.text(f'{key}:')} {self._rule(lark, each, root)}" for key, each in form.properties.items()
            }
            extra = f'/{IDENTIFIER}/ ":" {self._rule(lark, form.extra, root)}' if form.extra is not False else ""
            needed, others = ([rules[key] for key in names] for names in (form.needed, form.others))
            return lark.keywords(needed, others, ",", extra)

        return lark.any_of(list(map(entries, objects_of(schema, root))))

    def _rule(self, lark: Lark, schema: Any, root: Mapping[str, Any]) -> str:
        """Return the rule of a value. Rules of schemas that hold themselves lead back to themselves."""
        found = resolved(schema, root)
        key = f"value of {json.dumps(found, sort_keys=True)}"
        return lark.named(key, lambda: self._body(lark, found, root))

    def _body(self, lark: Lark, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        options = schema.get("anyOf", schema.get("oneOf"))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return " | ".join(lark.text(self.write(value)) for value in values)
        if isinstance(options, list) and options:
            return " | ".join(self._rule(lark, option, root) for option in options)
        types = types_of(schema, root) or PLAIN | {"string", "array", "object"}
        rules = []
        if types & PLAIN:
            rules.append(lark.json(part_of(dict(schema) | {"type": sorted(types & PLAIN)}, root)))
        if "string" in types:
            followed = lark.pattern(schema.get("pattern"))
            text = lark.text_until(self.quote) if followed is None else f"{followed} {lark.text(self.quote)}"
            rules.append(f"{lark.text(self.quote)} {text}")
        if "array" in types:
            rules.append(self._items_rule(lark, schema, root))
        if "object" in types:
            is_open = not {"properties", "additionalProperties", "patternProperties", "allOf"} & schema.keys()
            free = {**schema, "additionalProperties": {}} if is_open else schema
            rules.append(f"{lark.text('{')} {self._entries_rule(lark, free, root)} {lark.text('}')}")
        return " | ".join(rules)

    def _items_rule(self, lark: Lark, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        first, more = schema.get("prefixItems"), schema.get("items", {})
        begin = [self._rule(lark, each, root) for each in first] if isinstance(first, list) else []
        item = "" if more is False else self._rule(lark, more, root)
        if begin:
            rest = f'("," {item})*' if item else ""
            return '"[" ' + ' "," '.join(begin) + f' {rest} "]"'
        if not item:
            return '"[]"'
        items = f'"[" {item} ("," {item})* "]"'
        return items if schema.get("minItems") else f'{items} | "[]"'

    def write(self, value: Any) -> str:
        """Return a value in the notation."""
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{self.write(each)}" for key, each in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self.write, value)) + "]"
        return json.dumps(value)
