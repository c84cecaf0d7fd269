"""Grammars of tool calls, in llguidance's variant of Lark.

A JSON schema of a grammar is a document of its own: pointers in it (`#/$defs/Point`) lead to the schema that a tool
came with, and never to one that it was put into.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

WHITESPACE = r" |\n[ \t]{0,20}"
"""White space between the parts of a JSON text, as the runtime bounds it for `json_schema`."""

DATA = ("const", "enum", "default", "examples")
"""Keywords of JSON schemas whose values are data, in which no pointers are."""

MAX_OPTIONS = 1000
"""Parts of a schema that are looked at for its types, at most; they may lead back to each other."""

MAX_FORMS, MAX_NESTED = 64, 8
"""Forms of an object that a grammar tells apart, and options within options that are looked at, at most."""

ANNOTATIONS = (
    "allOf", "$comment", "default", "deprecated", "description", "examples", "nullable", "readOnly", "title",
    "writeOnly",
)  # fmt: skip
"""Keywords beside which an `allOf` of one schema means that schema, as generators of schemas write a `$ref`."""

IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
"""Names of arguments that no schema names."""

UNREAD = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")
"""Looks around and references back, which patterns of JavaScript have, and grammars do not."""

NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by names that may be anything."""


WHOLE = re.compile(r"\^(\(\?:.*\)|[^|]*)(?<!\\)\$", re.DOTALL)
"""Patterns of a whole text."""

UNESCAPED_SLASH = re.compile(r"(?<!\\)/")


class Lark:
    """The rules of a grammar. special: token ids of marks that are special tokens."""

    def __init__(self, special: Mapping[str, int]):
        self._special = special
        self._marks = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
        self._bodies: dict[str, str] = {}  # of rules, by their names
        self._names: dict[str, str] = {}  # of rules, by their bodies

    def grammar(self, start: str) -> str:
        """Return the whole grammar. start: the expression of an answer."""
        return "\n".join([f"start: {start}", *(f"{name}{body}" for name, body in self._bodies.items())])

    def text(self, text: str) -> str:
        """Return the expression of a text, whose special tokens are meant as such."""
        parts, place = [], 0
        for match in self._marks.finditer(text):
            parts += [json.dumps(text[place : match.start()]), f"<[{self._special[match.group()]}]>"]
            place = match.end()
        return " ".join(part for part in [*parts, json.dumps(text[place:])] if part != '""')

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return the rule of JSON that follows a schema."""
        options = {"whitespace_pattern": WHITESPACE, "coerce_one_of": True}
        return self._rule(f": %json {json.dumps({'x-guidance': options} | dict(schema))}")

    def any_of(self, expressions: Sequence[str]) -> str:
        """Return the rule of one of several expressions."""
        return self._rule(f": {' | '.join(expressions)}")

    def text_until(self, closing: str, letters: str = r"(\n|.)*") -> str:
        """Return the rule of any text up to a closing mark, which it includes."""
        special = self._marks.search(closing)
        if special:  # a line break before it may be a part of the text
            return f"{self._rule(f': /{letters}/')} {self.text(closing[special.start() :])}"
        return self._rule(f"[suffix={json.dumps(closing)}]: /{letters}/")

    def pattern(self, pattern: object) -> str | None:
        """Return the rule of a text by the pattern of its schema; None for one that is not of the whole text."""
        whole = WHOLE.fullmatch(pattern) if isinstance(pattern, str) else None
        if whole is None:
            return None
        expression = UNESCAPED_SLASH.sub(r"\\/", whole[1]).replace("\n", r"\n")
        return self._rule(f": /{expression}/", "TEXT")

    def free_text(self, *, unless: Sequence[str] = (), without: str = "") -> str:
        """Return the rule of any text. unless: what it does not begin with. without: a mark that it does not hold."""
        refused = [f"[ \\n]*({'|'.join(map(_escaped, unless))})(\\n|.)*"] if unless else []
        refused += [f"(\\n|.)*{_escaped(without)}(\\n|.)*"] if without and without not in self._special else []
        terms = ["/(\\n|.)*/", *(f"~/{each}/" for each in refused)]
        return self._rule(f": {' & '.join(terms)}", "TEXT")

    def named(self, key: str, body: Callable[[], str]) -> str:
        """Return the rule of a key. body: returns its expression, which may lead back to the rule."""
        if key not in self._names:
            name = self._names[key] = f"rule_{len(self._names)}"
            self._bodies[name] = f": {body()}"
        return self._names[key]

    def keywords(self, required: Sequence[str], optional: Sequence[str], divider: str, extra: str = "") -> str:
        """Return the expression of keywords divided by a text: all required ones, then any of the optional ones.

        All stand in their order. extra: the expression of further keywords; empty for none.
        """
        # What follows an optional keyword: any of those behind it.
        rest = self._rule(f": ({self.text(divider)} {extra})*") if extra else ""
        alternatives = [f"{extra} {rest}"] if extra else []
        for each in reversed(optional):
            alternatives.append(f"{each} {rest}".strip())
            rest = self._rule(f": ({self.text(divider)} {each})? {rest}".rstrip())
        if required:
            return f" {self.text(divider)} ".join(required) + f" {rest}"
        return f"({' | '.join(alternatives)})?" if alternatives else '""'

    def _rule(self, body: str, kind: str = "rule") -> str:
        name = self._names.setdefault(body, f"{kind}_{len(self._names)}")
        self._bodies[name] = body
        return name


def _escaped(text: str) -> str:
    """Return a text as a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/").replace("\n", "n")


def arguments_schema(parameters: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Return the schema that arguments of a call follow: an object of the parameters that a function has.

    Objects that name their properties have no others unless they say so, as in the API of OpenAI; small models would
    write on to the limit. strict: whether keywords that cannot be followed are refused, or else left out.
    """
    closed = {key: value for key, value in parameters.items() if value is not None or key == "properties"}
    if not {"type", "$ref", "anyOf", "oneOf", "allOf"} & closed.keys():
        closed = {"type": "object", "properties": {}} | closed
    return followed_schema(closed, strict=strict)


def followed_schema(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return a schema as grammars follow it: objects that name their properties have no others.

    strict: whether keywords that cannot be followed are refused, or else left out.
    """
    closed: dict[str, Any] = _closed(schema, strict, frozenset(_tags(schema, schema)))
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    options = {"whitespace_pattern": WHITESPACE, "coerce_one_of": True, "lenient": not strict}
    return {"x-guidance": options} | closed


SAYS_NOTHING: dict[str, tuple[Any, ...]] = {
    "dependentRequired": ({},), "dependentSchemas": ({},), "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedItems": (True, {}), "unevaluatedProperties": (True, {}), "uniqueItems": (False,),
}  # fmt: skip
"""Values of keywords that no grammar follows, at which there is nothing to follow. Zod writes one of every record."""


def says_nothing(key: str, value: object) -> bool:
    """Return whether a keyword allows everything."""
    return any(value == each and type(value) is type(each) for each in SAYS_NOTHING.get(key, ()))


def is_unread(pattern: object) -> bool:
    """Return whether a pattern has what no grammar follows."""
    return isinstance(pattern, str) and UNREAD.search(pattern) is not None


def _tags(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of properties by which options of a schema are told apart: constants that all of them have."""
    if isinstance(schema, list):
        for each in schema:
            yield from _tags(each, root)
    elif isinstance(schema, Mapping):
        for key in ("anyOf", "oneOf"):
            listed = _list(schema.get(key))
            found = [resolved(option, root).get("properties") for option in listed]
            options = [each for each in found if isinstance(each, Mapping)]
            if len(listed) == len(options) > 1:
                yield from (name for name in options[0] if all(_is_constant(each.get(name)) for each in options))
        for key, value in schema.items():
            if key not in DATA:
                yield from _tags(list(value.values()) if key in NAMED and isinstance(value, Mapping) else value, root)


def names_are_followed(names: object) -> bool:
    """Return whether a `propertyNames` lists names or has a pattern, which other keywords can say."""
    if not isinstance(names, Mapping):
        return False
    listed = names.get("enum", [names.get("const")])
    texts = isinstance(listed, list) and bool(listed) and all(isinstance(each, str) for each in listed)
    pattern = isinstance(names.get("pattern"), str) and not is_unread(names["pattern"])
    return texts or (pattern and names.keys() <= {"pattern", "type"})


def _by_name(closed: dict[str, Any]) -> dict[str, Any]:
    """Return an object's schema with its names in `properties` or `patternProperties`, not in `propertyNames`."""
    names, value = closed["propertyNames"], closed.get("additionalProperties", {})
    rest = {key: each for key, each in closed.items() if key != "propertyNames"} | {"additionalProperties": False}
    if "enum" in names or "const" in names:
        return rest | {"properties": dict.fromkeys(names.get("enum", [names.get("const")]), value)}
    return rest | {"patternProperties": {names["pattern"]: value}}


def _closed(schema: Any, strict: bool, tags: frozenset[str], inside_all_of: bool = False) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in DATA:
            closed[key] = value
        elif says_nothing(key, value):
            continue
        elif key == "pattern" and is_unread(value) and (not strict or isinstance(schema.get("format"), str)):
            continue  # of an e-mail address, say, which its format describes as well
        elif value is None:  # as servers of tools in Go write what they have not
            closed |= {"properties": {}} if key == "properties" else {}
        elif key in NAMED and isinstance(value, Mapping):
            closed[key] = {name: _closed(each, strict, tags) for name, each in value.items()}
        elif isinstance(value, list):
            closed[key] = [_closed(each, strict, tags, inside_all_of or key == "allOf") for each in value]
        else:
            closed[key] = _closed(value, strict, tags)
    if names_are_followed(closed.get("propertyNames")) and not (
        closed.get("properties") or "patternProperties" in closed
    ):
        return _by_name(closed)
    properties = closed.get("properties")
    combined = inside_all_of or {"allOf", "anyOf", "oneOf", "$ref", "patternProperties"} & closed.keys()
    if isinstance(properties, dict) and not combined and "additionalProperties" not in closed:
        missing = [name for name in _list(closed.get("required")) if isinstance(name, str) and name not in properties]
        closed |= {"properties": properties | {name: {} for name in missing}, "additionalProperties": False}
    if isinstance(properties, dict) and (told := [name for name in tags if _is_constant(properties.get(name))]):
        closed["required"] = list(dict.fromkeys([*_list(closed.get("required")), *told]))
    return closed


def _is_constant(schema: Any) -> bool:
    return isinstance(schema, Mapping) and ("const" in schema or len(_list(schema.get("enum"))) == 1)


def part_of(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a schema as a document of its own, whose pointers lead where they led before."""
    part = _moved(schema, "tool") if isinstance(schema, Mapping) else {}
    options = {key: value for key, value in root.items() if key == "x-guidance"}
    return options | part | {"$defs": {"tool": _moved(root, "tool")}}


def any_schema(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema of values that follow one of several, each a document with pointers of its own."""
    moved = {f"option_{index}": _moved(each, f"option_{index}") for index, each in enumerate(schemas)}
    return {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in moved], "$defs": moved}


def _moved(schema: Any, name: str) -> Any:
    """Return a schema whose pointers begin at the definition of a name."""
    if isinstance(schema, list):
        return [_moved(each, name) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = f"#/$defs/{name}{value[1:]}"
        elif key in NAMED and isinstance(value, Mapping):
            moved[key] = {each: _moved(part, name) for each, part in value.items()}
        elif key != "x-guidance":
            moved[key] = value if key in DATA else _moved(value, name)
    return moved


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that a `$ref` leads to; any other schema as it is, and {} for one that is none.

    An `allOf` of one schema is that schema.
    """
    seen = set()
    while isinstance(schema, Mapping):
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and all(key in ANNOTATIONS for key in schema):
            schema = parts[0]
            continue
        if not isinstance(schema.get("$ref"), str):
            break
        pointer = schema["$ref"]
        if pointer in seen or not pointer.startswith("#"):
            return {}
        seen.add(pointer)
        schema = root
        for step in pointer[1:].strip("/").split("/") if pointer.strip("#/") else ():
            step = step.replace("~1", "/").replace("~0", "~")
            schema = schema.get(step) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def types_of(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """Return the types of JSON that a schema allows; none where it does not say."""
    types: set[str] = set()
    left, seen = [schema], 0
    while left and (seen := seen + 1) < MAX_OPTIONS:
        each = resolved(left.pop(), root)
        named = each.get("type")
        values = [each["const"]] if "const" in each else each.get("enum")
        if isinstance(named, str | list):
            types.update([named] if isinstance(named, str) else [name for name in named if isinstance(name, str)])
        elif isinstance(values, list):
            types.update(_type_of(value) for value in values)
        else:
            left += [option for key in ("anyOf", "oneOf", "allOf") for option in _list(each.get(key))]
            types |= {"object"} if "properties" in each else set()
    return types


def values_of(
    schema: Any, root: Mapping[str, Any], depth: int = 0, visits: Iterator[int] | None = None
) -> list[Any] | None:
    """Return the values that a schema names, also by several options; None where it names none.

    visits: the schemas that may still be looked at, for options may lead back to each other.
    """
    visits = iter(range(MAX_OPTIONS)) if visits is None else visits
    if next(visits, None) is None:
        return None
    found = resolved(schema, root)
    if "const" in found:
        return [found["const"]]
    if isinstance(found.get("enum"), list):
        return list(found["enum"]) or None
    options = _list(found.get("anyOf", found.get("oneOf")))
    parts = [values_of(option, root, depth + 1, visits) for option in options] if depth < MAX_NESTED else []
    return None if not parts or None in parts else [value for part in parts for value in part or ()]


@dataclass(frozen=True)
class ObjectForm:
    """A form that an object may have.

    properties: schemas by name. needed: names of the required ones. extra: the schema of others; False for none.
    """

    properties: Mapping[str, Any]
    needed: Sequence[str]
    extra: Any = False

    @property
    def others(self) -> list[str]:
        """Names of properties that are not required."""
        return [name for name in self.properties if name not in self.needed]

    def __and__(self, other: "ObjectForm") -> "ObjectForm":
        """Return the form of objects that have both."""
        needed = dict.fromkeys([*self.needed, *other.needed])
        return ObjectForm({**self.properties, **other.properties}, list(needed), self.extra or other.extra)


def objects_of(
    schema: Any, root: Mapping[str, Any], depth: int = 0, visits: Iterator[int] | None = None
) -> list[ObjectForm]:
    """Return the forms that an object may have: one for each option of `anyOf` and `oneOf`; parts of `allOf` are one.

    root: the schema that pointers lead into. visits: as in `values_of`.
    """
    visits = iter(range(MAX_OPTIONS)) if visits is None else visits
    found = resolved(schema, root)
    properties = found.get("properties")
    properties = dict(properties) if isinstance(properties, Mapping) else {}
    needed = [name for name in properties if name in _list(found.get("required"))]
    patterns = found.get("patternProperties")
    named = list(patterns.values()) if isinstance(patterns, Mapping) else []
    extra = {"anyOf": named} if len(named) > 1 else named[0] if named else found.get("additionalProperties", False)
    forms = [ObjectForm(properties, needed, extra)]
    if depth >= MAX_NESTED or next(visits, None) is None:
        return forms
    for part in _list(found.get("allOf")):
        forms = [form & each for form in forms for each in objects_of(part, root, depth + 1, visits)]
        del forms[MAX_FORMS:]
    for key in ("anyOf", "oneOf"):
        listed = _list(found.get(key))
        found_in = (each for option in listed for each in objects_of(option, root, depth + 1, visits))
        options = list(islice(found_in, MAX_FORMS))
        forms = [form & each for form in forms for each in options][:MAX_FORMS] or forms
    return forms


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type_of(value: Any) -> str:
    names = {bool: "boolean", str: "string", int: "integer", float: "number", type(None): "null", list: "array"}
    return names.get(type(value), "object")
