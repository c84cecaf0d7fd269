"""Every format of tool calls: examples, calls by any division into pieces, round trips, and a grammar."""

import json
import random
import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from edgeformer.runtime.text.streaming import TextStream
from edgeformer.runtime.text.tokenizer import Tokenizer
from edgeformer.server.tool_calls.gemma import Gemma
from edgeformer.server.tool_calls.harmony import CALL, Harmony
from edgeformer.server.tool_calls.json_objects import JsonObjects
from edgeformer.server.tool_calls.lark import MAX_FORMS, arguments_schema, objects_of, values_of
from edgeformer.server.tool_calls.named_json import DeepSeek, Mistral, NameAndJson
from edgeformer.server.tool_calls.pythonic import Pythonic
from edgeformer.server.tool_calls.reader import ToolCallReader
from edgeformer.server.tool_calls.table import FORMATS, recognise
from edgeformer.server.tool_calls.xml_parameters import XmlParameters

OPEN = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"name": "weather", "parameters": OPEN}
F = [{"name": name, "parameters": {}} for name in "fg"]
ROME = {"city": "Rome", "days": 2}


def read(format, text, size=1000, functions=(*F, WEATHER)):
    reader, texts, calls, pieces = ToolCallReader(FORMATS[format], functions, in_pieces=True), [], [], []
    for start in range(0, len(text), size):
        piece, found = reader.push(text[start : start + size])
        texts.append(piece)
        calls += found
        pieces += reader.take_pieces()
    rest, found = reader.finish()
    calls += found
    check_pieces([*pieces, *reader.take_pieces()], calls)
    return "".join(texts) + rest, [(call.name, json.loads(call.arguments)) for call in calls]


def check_pieces(pieces, calls):
    """Check that the pieces of calls are the calls, one behind the other, and that others are never JSON."""
    written = {}
    for piece in pieces:
        assert piece.begins == (piece.place not in written) and piece.place >= max(written, default=0)
        written.setdefault(piece.place, []).append(piece)
    ended = {place: each for place, each in written.items() if each[-1].ends}
    told = [(each[0].id, each[0].name, json.loads("".join(p.arguments for p in each))) for each in ended.values()]
    assert sorted(told, key=str) == sorted(((c.id, c.name, json.loads(c.arguments)) for c in calls), key=str)
    for place in written.keys() - ended.keys():
        with pytest.raises(ValueError):
            json.loads("".join(piece.arguments for piece in written[place]))


LONG = {"city": 'Rome, where all the roads lead to, é \n and "quoted"', "days": 20}


@pytest.mark.parametrize("format", FORMATS)
def test_arguments_come_while_they_are_written(format):
    """Text by text as JSON, by whole values in the other notations; a call that breaks off is never JSON."""
    text = FORMATS[format].begin + write(FORMATS[format], "weather", LONG) + FORMATS[format].end
    reader, pieces = ToolCallReader(FORMATS[format], [WEATHER], in_pieces=True), []
    for letter in text:
        _, calls = reader.push(letter)
        pieces += reader.take_pieces()
        if calls:
            break
    _, last = reader.finish()
    check_pieces([*pieces, *reader.take_pieces()], calls + last)
    is_json = isinstance(FORMATS[format], Harmony | JsonObjects | Mistral | DeepSeek | NameAndJson)
    assert len(pieces) > (40 if is_json else 1)
    for end in range(0, len(text), 5):
        read(format, text[:end], 3)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("format", FORMATS)
def test_the_example_of_a_format_is_one_call_in_any_pieces(format, size):
    example = FORMATS[format].example
    assert read(format, example, size) == ("", [("weather", ROME)])
    other = example.replace("weather", "whether")
    text, calls = read(format, other, size)
    assert calls == [] and "whether" in text, "the name is none of the tools'"


INFINITE = '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>'
DRAFT = "<think>maybe <tool_call> x</think>"
THOUGHT = '<think><tool_call>{"name": "f"}</tool_call></think>No.'
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
CUT = '<tool_call>{"name": "f", "arguments": {'
LLAMA_BEHIND_TEXT = 'It is {"name": "f", "parameters": {}}'

CASES = {
    "closing mark in an argument": (
        "hermes", '<tool_call>\n{"name": "f", "arguments": {"t": "a </tool_call> b"}}\n</tool_call>',
        "", [("f", {"t": "a </tool_call> b"})],
    ),
    "the other key": ("hermes", '<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', "", [("f", {"x": 1})]),
    "text before": (
        "hermes", 'Hm.\n<tool_call>\n{"name": "f", "arguments": {"x": "é<"}}\n</tool_call>', "Hm.\n",
        [("f", {"x": "é<"})],
    ),
    "two of Hermes": (
        "hermes", '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "g", "arguments": {"y": [1]}}</tool_call>',
        "", [("f", {}), ("g", {"y": [1]})],
    ),
    "no call": ("hermes", "a < b and <tool_kit> is no call", "a < b and <tool_kit> is no call", []),
    "not well formed": ("hermes", "<tool_call>{oops}</tool_call>!", "<tool_call>{oops}</tool_call>!", []),
    "cut in the arguments": ("hermes", CUT, CUT, []),
    "no closing": ("hermes", '<tool_call>{"name": "f", "arguments": {}}', "", [("f", {})]),
    "no closings": ("hermes", '<tool_call>\n{"name": "f"}\n\n<tool_call>\n{"name": "g"}\n', "", [("f", {}), ("g", {})]),
    "a draft while thinking": (
        "hermes", f'{DRAFT}\n<tool_call>\n{{"name": "f", "arguments": {{"x": 1}}}}\n</tool_call>', DRAFT,
        [("f", {"x": 1})],
    ),
    "a call while thinking": ("hermes", THOUGHT, THOUGHT, []),
    "a line break": (
        "hermes", '<tool_call>{"name": "f", "arguments": {"x": "a\nb"}}</tool_call>', "", [("f", {"x": "a\nb"})],
    ),
    "null": ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", {})]),
    "empty": ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", [("f", {})]),
    "JSON text": ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", {"x": 1})]),
    "infinite": ("hermes", INFINITE, INFINITE, []),
    "cut": ("hermes", '<tool_call>{"name": "f", "arg', '<tool_call>{"name": "f", "arg', []),
    "MiniCPM3": (
        "lfm2", '<|tool_call_start|>\n```python\nf(x=1)\ng()\n```\n<|tool_call_end|>Ok', "Ok",
        [("f", {"x": 1}), ("g", {})],
    ),
    "two of Apertus": (
        "apertus", 'Ok<|tools_prefix|>[{"f": {"x": 1}}, {"g": {}}]<|tools_suffix|>', "Ok", [("f", {"x": 1}), ("g", {})],
    ),
    "Apertus with both keys": (
        "apertus", '<|tools_prefix|>[{"name": "f", "arguments": {"x": 1}}]<|tools_suffix|>', "", [("f", {"x": 1})],
    ),
    "a list of Mistral": (
        "mistral", 'Ok[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', "Ok",
        [("f", {"x": 1}), ("g", {})],
    ),
    "one of Mistral": ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}', "", [("f", {"x": 1})]),
    "two of Mistral": (
        "mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{"y": 2}', "", [("f", {"x": 1}), ("g", {"y": 2})],
    ),
    "none of Mistral": ("mistral", "[TOOL_CALLS] none", "[TOOL_CALLS] none", []),
    "prose behind": ("mistral", '[TOOL_CALLS]f{"x": 1}\n\nLet me see.', "\n\nLet me see.", [("f", {"x": 1})]),
    "an id": ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"x": 1}', "", [("f", {"x": 1})]),
    "behind a line break": ("llama3", '\n{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
    "two of Llama": (
        "llama3", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "", [("f", {}), ("g", {})],
    ),
    "python tag": ("llama3", '<|python_tag|>{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
    "JSON that is no call": ("llama3", '{"answer": 42}', '{"answer": 42}', []),
    "behind text": ("llama3", LLAMA_BEHIND_TEXT, LLAMA_BEHIND_TEXT, []),
    "channels": (
        "gpt-oss", f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>Hi.<|return|>", "<think>Hm.</think>Hi.", [],
    ),
    "a fence": (
        "command-r", 'Action: ```json\n[{"tool_name": "f", "parameters": {"x": 1}}]\n```', "", [("f", {"x": 1})],
    ),
    "a fence within marks": (
        "hermes", '<tool_call>\n```\n{"name": "f"}\n```\n</tool_call>', "", [("f", {})],
    ),
    "a recipient without its namespace": (
        "gpt-oss", '<|channel|>commentary to=f <|constrain|>json<|message|>{"x": 1}<|call|>', "", [("f", {"x": 1})],
    ),
    "another recipient": ("gpt-oss", "<|channel|>commentary to=python<|message|>1 + 1<|call|>", "1 + 1", []),
    "quotes as templates write them": (
        "lfm2", "<|tool_call_start|>[f(t='it's', n=None)]<|tool_call_end|>", "", [("f", {"t": "it's", "n": None})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("case", CASES)
def test_calls_as_models_really_write_them(case, size):
    format, answer, text, calls = CASES[case]
    assert read(format, answer, size) == (text, calls)


@pytest.mark.parametrize("format", FORMATS)
def test_no_piece_of_a_mark_behind_a_call_is_text(format):
    example = FORMATS[format].example
    found = [read(format, example[:end], size) for end in range(len(example) + 1) for size in (1, 1000)]
    assert [text for text, calls in found if calls and text] == []
    assert any(calls for _, calls in found)


TEMPLATES = {
    "{% if tools %}{{ tools | tojson }} within <tool_call></tool_call>{% endif %}": "hermes",
    "{% if xml_tools %}{{ xml_tools }} within <tool_call></tool_call>{% endif %}": "hermes",
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}{{ '[TOOL_CALLS]' }}": "mistral",
    """<|start_header_id|>{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}""": "llama3",
    "{% if tools %}{{ tools | tojson }}<tool_call><function=name><parameter=x>{% endif %}": "qwen3-coder",
    "{% for message in messages %}{{ message['tools'] }}<|tool|>{% endfor %}": "phi4",
    "{% for message in messages %}<tool_call>{{ message | tojson }}{% endfor %}": None,
    "{% if tools %}{{ tools }}{% endif %}": None,
    "": None,
}
SIGNS = [(" ".join(signs), format.name) for format in FORMATS.values() for signs in format.signs]


@pytest.mark.parametrize(
    ("template", "format"),
    [*TEMPLATES.items(), *((f"{{{{ tools }}}}{signs}", name) for signs, name in SIGNS)],
)
def test_a_format_is_recognised_by_the_template(template, format):
    found = recognise(template)
    assert (found.name if found else None) == format


def test_text_is_not_held_back_longer_than_a_call_could_begin():
    reader = ToolCallReader(FORMATS["hermes"], F)
    assert reader.push("a <tool") == ("a ", [])
    assert reader.push("s") == ("<tools", [])


def test_ids_of_calls_are_as_templates_of_mistral_want_them():
    reader = ToolCallReader(FORMATS["hermes"], F)
    _, [call] = reader.push('<tool_call>{"name": "f"}</tool_call>.')
    assert len(call.id) == 9 and call.id.isalnum()


def test_marks_that_are_special_tokens_are_read(tiny_llama_bundle):
    tokenizer = Tokenizer(tiny_llama_bundle)
    tokenizer.backend.add_special_tokens(["<tool_call>", "</tool_call>"])
    tokens = tokenizer.encode(f"Look: {FORMATS['hermes'].example}", add_special_tokens=False)
    marks = {tokenizer.backend.token_to_id(mark): mark for mark in ("<tool_call>", "</tool_call>")}
    assert marks.keys() < set(tokens)
    spelled = TextStream(tokenizer, spelled=marks)
    text = "".join(map(spelled.push, tokens)) + spelled.flush()
    assert read("hermes", text, 1) == ("Look: ", [("weather", ROME)])


PIECES = (*"a \n\té'{}<>,:", '"', "\\", "😀", "[1]", "</b>", "it's", "()", "null")
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"street": {"type": "string"}}},
    },
}
NAMES = ("find", "files.write-all", "get_2")


def make_text(numbers, format):
    """Return a text with marks of the format in it, but for what could not be told from the end of the text."""
    pieces = [*PIECES, *sorted(format.marks)]
    if isinstance(format, Gemma):  # the notation has no escapes
        pieces.remove(format.quote)
    text = "".join(numbers.choices(pieces, k=numbers.randrange(12)))
    if isinstance(format, XmlParameters):
        ends = "|".join(map(re.escape, (format.key_tag[0], *format.closings)))
        return "x" if re.search(rf"{re.escape(format.value_tag[1])}\s*(?:{ends}|$)", text) else text
    return text


def make_arguments(numbers, format):
    values = {
        "text": make_text(numbers, format),
        "count": numbers.randrange(-9, 10**12),
        "share": numbers.choice([0.5, -2e-7, 1e21]),
        "on": numbers.random() < 0.5,
        "tags": [make_text(numbers, format) for _ in range(numbers.randrange(3))],
        "place": {"street": make_text(numbers, format)},
    }
    return {key: values[key] for key in numbers.sample(sorted(values), numbers.randrange(len(values) + 1))}


def write(format, name, arguments):
    """Return a call as models of the format write it, without what stands before and behind all calls."""
    text = json.dumps(arguments, ensure_ascii=False)
    if isinstance(format, JsonObjects) and format.by_name:
        return f'{{"{name}": {text}}}'
    if isinstance(format, JsonObjects):
        return f'{{{format.before}"{format.name_key}": "{name}", "{format.arguments_key}": {text}}}'
    if isinstance(format, Mistral):
        if format.listed:
            return f'{{"name": "{name}", "arguments": {text}}}'
        return f"{name}{'[CALL_ID]abcdef123' if format.with_id else ''}[ARGS]{text}"
    if isinstance(format, DeepSeek):
        begin = f"function<｜tool▁sep｜>{name}\n```json\n" if format.fenced else f"{name}<｜tool▁sep｜>"
        end = "\n```" if format.fenced else ""
        return f"<｜tool▁call▁begin｜>{begin}{text}{end}<｜tool▁call▁end｜>"
    if isinstance(format, NameAndJson):
        return f"{name}\n{text}"
    if isinstance(format, Harmony):
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}<|call|>"
    if isinstance(format, Gemma):
        return f"call:{name}{format.write(arguments)}"
    if isinstance(format, Pythonic):
        return f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})"
    assert isinstance(format, XmlParameters)
    line, between = "\n" if format.lines else "", "\n" if format.value_tag[0] else ""
    parts = [f"{format.name_tag[0]}{name}{format.name_tag[1]}\n"]
    for key, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        parts.append(f"{format.key_tag[0]}{key}{format.key_tag[1]}{between}")
        parts.append(f"{format.value_tag[0]}{line}{written}{line}{format.value_tag[1]}\n")
    return "".join(parts)


CUTS = (3, 8, 21, 55, 10_000)
"""Sizes of pieces in characters, of which a call of many is read in one."""


def round_trips(name, count):
    format, numbers = FORMATS[name], random.Random(f"calls of {name}")
    functions = [{"name": each, "parameters": SCHEMA} for each in NAMES]
    for index in range(count):
        several = 1 if isinstance(format, Harmony) else numbers.randrange(1, 4)
        calls = [(numbers.choice(NAMES), make_arguments(numbers, format)) for _ in range(several)]
        answer = format.begin + format.between.join(write(format, *call) for call in calls) + format.end
        prose = numbers.choice(["", "Let me see. "]) if format.begin and format.openings else ""
        # In pieces of one character a call takes the longest, and every boundary is met within few calls.
        for size in [1, numbers.randrange(2, 9)] if index < 20 else [numbers.choice(CUTS)]:
            assert read(name, prose + answer, size, functions) == (prose, calls), index


@pytest.mark.parametrize("format", FORMATS)
def test_calls_come_back_as_they_were_written(format):
    round_trips(format, 20)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_ten_thousand_calls_come_back_as_they_were_written(format):
    round_trips(format, 10_000)


TREE = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}},
    "required": ["city", "days"],
    "$defs": {
        "City": {"enum": ["Rome", "Oslo"]},
        "Node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}},
    },
}
STRICT = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
}
PATTERN = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^R[a-z]+$"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
ODD = {
    "no object": {"type": "string"},
    "unknown type": {"type": "king"},
    "property that is true": {"type": "object", "properties": {"x": True}},
    "properties in a list": {"type": "object", "properties": []},
    "required text": {"type": "object", "properties": {"x": {}}, "required": "x"},
    "no options": {"type": "object", "properties": {"x": {"anyOf": []}}},
    "no values": {"type": "object", "properties": {"x": {"enum": []}}},
    "odd items": {"type": "object", "properties": {"x": {"type": "array", "items": [{}], "minItems": -1}}},
    "a property that is itself": {"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}},
    "a pointer to nothing": {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}},
    "an odd pointer": {"type": "object", "properties": {"x": {"$ref": 7}}},
    "keys of any letters": {"type": "object", "properties": {'a"b\n/<|im_end|>': {"type": "string"}, "": {}}},
}


def accepts(grammar, text):
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


def grammar_of(format, parameters=STRICT, **options):
    function = {"name": "weather", "parameters": arguments_schema(parameters)}
    return FORMATS[format].grammar([function], {}, **{"forced": True} | options)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("parameters", [OPEN, STRICT, TREE, PATTERN], ids=["open", "strict", "pointers", "pattern"])
def test_the_grammar_of_a_format_accepts_its_example_only(format, parameters):
    example = FORMATS[format].example.removesuffix(CALL)
    assert accepts(grammar_of(format, parameters, forced=False), example)
    grammar = grammar_of(format, parameters)
    assert accepts(grammar, example)
    assert not accepts(grammar, example.replace("weather", "time")), "none of the functions"
    assert not accepts(grammar, re.sub(r"\b2\b", '"two"', example))
    if parameters is not OPEN:
        assert not accepts(grammar, example.replace("Rome", "Bonn"))


def of(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


KIND = {"E": {"enum": ["x", "y"], "title": "E", "type": "string"}}
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
SHAPES = {
    "a pointer in allOf": (of(a={"allOf": [{"$ref": "#/$defs/E"}], "default": "x"}) | {"$defs": KIND}, "y", "z"),
    "options that name values": (of(a={"anyOf": [{"enum": ["x"]}, {"const": "y"}]}), "y", "z"),
    "a map": (of(a={"type": "object", "additionalProperties": {"type": "integer"}}), {"k": 1}, {"k": "x"}),
    "a map, as Zod writes it": (of(a={"type": "object", "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "integer"}}), {"k": 1}, {"k": "x"}),
    "a map whose names are listed": (of(a={"type": "object", "propertyNames": {"enum": ["k", "l"]}, "properties": {},
        "additionalProperties": {"type": "integer"}}), {"l": 1}, {"m": 1}),
    "options told apart by a tag with a default": (of(a={"oneOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/D"}]}) | {
        "$defs": {
            "C": {"type": "object", "properties": {"kind": {"const": "c", "default": "c"}, "n": {"type": "integer"}}},
            "D": {"type": "object", "properties": {"kind": {"const": "d", "default": "d"}, "n": {"type": "integer"}}}}},
        {"kind": "d", "n": 1}, {"n": 1}),
    "items that may be the same": (of(a={"type": "array", "items": {"type": "integer"}, "uniqueItems": False}), [1, 1],
        ["x"]),
    "a map of patterns": (of(a={"type": "object", "patternProperties": {"^k": {"type": "integer"}}}), {"k": 1}, 5),
    "a tuple": (of(a={"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False}),
        [1, True], [True, 1]),
    "any value": (of(a={}), {"x": [1, {"y": None}]}, None),
    "any object": (of(a={"type": "object"}), {"x": [1]}, 5),
    "options of objects": ({"anyOf": [of(b={"type": "integer"}), of(a={"type": "integer"})]}, 1, "x"),
    "parts of an object": ({"type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
        1, "x"),
    "what is required and not described": ({"type": "object", "properties": {}, "required": ["a"]}, 1, None),
    "a number that is no name": ({"type": "object", "properties": {"a": {"type": ["integer", "null"]}}}, None, "x"),
    "more than is named": ({"type": "object", "additionalProperties": {"type": "integer"}}, 1, "x"),
    "looks around": (of(a={"type": "string", "pattern": "^(?!x).*$"}), "b", None),
    "an address with looks around": (of(a={"type": "string", "format": "email", "pattern": EMAIL}), "a@b.co", None),
}  # fmt: skip
"""Schemas of parameters as Pydantic, Zod and servers of tools write them; a value of `a` that follows, and one not."""


@pytest.mark.parametrize("shape", SHAPES)
def test_grammars_follow_schemas_as_tools_write_them(shape):
    schema, good, bad = SHAPES[shape]
    for name, format in FORMATS.items():
        parameters = arguments_schema(schema, strict=shape != "looks around")
        grammar = format.grammar([{"name": "weather", "parameters": parameters}], {}, forced=True)
        for value, follows in [(good, True), *([] if bad is None else [(bad, False)])]:
            call = format.begin + write(format, "weather", {"a": value}) + format.end
            assert accepts(grammar, call.removesuffix(CALL)) == follows, (name, value)


@pytest.mark.parametrize("format", FORMATS)
def test_a_grammar_that_forces_no_call_accepts_text(format):
    text = "<|channel|>final<|message|>It is sunny." if isinstance(FORMATS[format], Harmony) else "It is sunny."
    assert accepts(grammar_of(format, forced=False), text)
    assert not accepts(grammar_of(format), text)


@pytest.mark.parametrize("format", FORMATS)
def test_a_grammar_of_a_schema_and_tools_accepts_either(format):
    schema = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
    grammar = grammar_of(format, forced=False, answer_schema=schema)
    begin = "<|channel|>final<|message|>" if isinstance(FORMATS[format], Harmony) else ""
    assert accepts(grammar, f'{begin}{{"sunny": true}}')
    assert accepts(grammar, FORMATS[format].example.removesuffix(CALL))
    assert not accepts(grammar, f"{begin}It is sunny.")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("odd", ODD)
def test_a_grammar_can_be_written_for_any_schema(format, odd):
    for options in ({}, {"forced": False}, {"forced": False, "answer_schema": {"type": "object"}}):
        assert grammar_of(format, ODD[odd], **options).startswith("start: ")


def test_marks_that_are_special_tokens_are_tokens_in_a_grammar():
    functions = [{"name": "weather", "parameters": arguments_schema(STRICT)}]
    grammar = FORMATS["hermes"].grammar(functions, {"<tool_call>": 7, "</tool_call>": 8}, forced=True)
    assert "<[7]>" in grammar and "<[8]>" in grammar and "tool_call" not in grammar


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_options_that_lead_back_to_themselves_take_bounded_steps(keyword):
    """A body of a few hundred bytes may name options that double at each look; without a bound this takes hours."""
    schema = {"$defs": {"a": {keyword: [{"$ref": "#/$defs/a"}] * 40}}, "$ref": "#/$defs/a"}
    assert values_of(schema, schema) is None
    assert len(objects_of(schema, schema)) <= MAX_FORMS
    told_apart = {"anyOf": [{"properties": {name: {}}, "required": [name]} for name in "abc"]}
    assert [form.needed for form in objects_of(told_apart, told_apart)] == [["a"], ["b"], ["c"]]
