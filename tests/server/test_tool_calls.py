"""Every format of tool calls: examples, calls by any division into pieces, and a grammar."""

import json

import pytest

from edgeformer.server.tool_calls.reader import ToolCallReader
from edgeformer.server.tool_calls.table import FORMATS, recognise

WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
F = [{"name": name, "parameters": {}} for name in "fg"]


def read(format, text, size=1000, functions=(*F, WEATHER), **options):
    reader, texts, calls = ToolCallReader(FORMATS[format], functions, **options), [], []
    for start in range(0, len(text), size):
        piece, found = reader.push(text[start : start + size])
        texts.append(piece)
        calls += found
    rest, found = reader.finish()
    return "".join(texts) + rest, [(call.name, json.loads(call.arguments)) for call in calls + found]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("format", FORMATS)
def test_the_example_of_every_format_is_one_call_in_pieces_of_any_size(format, size):
    example = FORMATS[format].example
    assert read(format, example, size) == ("", [("weather", {"city": "Rome", "days": 2})])
    other = example.replace("weather", "whether")
    text, calls = read(format, other, size)
    assert calls == [] and "whether" in text, "the name is none of the tools'"


CASES = {
    "closing mark in an argument": ("hermes", '<tool_call>\n{"name": "f", "arguments": {"t": "a </tool_call> b"}}\n</tool_call>',
        "", [("f", {"t": "a </tool_call> b"})]),
    "the other key": ("hermes", '<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', "", [("f", {"x": 1})]),
    "two of Mistral": ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{"y": 2}', "", [("f", {"x": 1}), ("g", {"y": 2})]),
    "prose behind": ("mistral", '[TOOL_CALLS]f{"x": 1}\n\nLet me see.', "\n\nLet me see.", [("f", {"x": 1})]),
    "an id": ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"x": 1}', "", [("f", {"x": 1})]),
    "no closings": ("hermes", '<tool_call>\n{"name": "f"}\n\n<tool_call>\n{"name": "g"}\n', "", [("f", {}), ("g", {})]),
    "a draft while thinking": ("hermes", '<think>maybe <tool_call> x</think>\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        "<think>maybe <tool_call> x</think>", [("f", {"x": 1})]),
    "a call while thinking": ("hermes", '<think><tool_call>{"name": "f"}</tool_call></think>No.', '<think><tool_call>{"name": "f"}</tool_call></think>No.', []),
    "a line break": ("hermes", '<tool_call>{"name": "f", "arguments": {"x": "a\nb"}}</tool_call>', "", [("f", {"x": "a\nb"})]),
    "null": ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", {})]),
    "empty": ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", [("f", {})]),
    "infinite": ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', []),
    "cut": ("hermes", '<tool_call>{"name": "f", "arg', '<tool_call>{"name": "f", "arg', []),
    "python tag": ("llama3", '<|python_tag|>{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
    "JSON that is no call": ("llama3", '{"answer": 42}', '{"answer": 42}', []),
    "channels": ("gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>", "<think>Hm.</think>Hi.", []),
    "quotes as templates write them": ("lfm2", "<|tool_call_start|>[f(t='it's', n=None)]<|tool_call_end|>", "", [("f", {"t": "it's", "n": None})]),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("case", CASES)
def test_calls_as_models_really_write_them(case, size):
    format, answer, text, calls = CASES[case]
    assert read(format, answer, size) == (text, calls)


def test_a_format_is_recognised_by_the_template():
    assert recognise("{% if tools %}{{ tools | tojson }} within <tool_call></tool_call>{% endif %}").name == "hermes"
    assert recognise("{% if tools %}<|tool_call_start|>{% endif %}").name == "lfm2"
    assert recognise("{% if tools %}{{ tools }}{% endif %}") is None
    assert recognise("<tool_call>{{ message | tojson }}") is None


def test_text_is_not_held_back_longer_than_a_call_could_begin():
    reader = ToolCallReader(FORMATS["hermes"], F)
    assert reader.push("a <tool") == ("a ", [])
    assert reader.push("s") == ("<tools", [])


def test_ids_of_calls_are_as_templates_of_mistral_want_them():
    reader = ToolCallReader(FORMATS["hermes"], F)
    _, [call] = reader.push('<tool_call>{"name": "f"}</tool_call>.')
    assert len(call.id) == 9 and call.id.isalnum()
