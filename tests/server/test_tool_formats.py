"""Tool calls are recognised by what templates say, and read back from any division of an answer into pieces."""

import json

import pytest

from edgeformer.server.schema.tool_formats import FORMATS, ToolCallReader, recognise

HERMES, MISTRAL, LLAMA3 = FORMATS

TEMPLATES = {
    "{% if tools %}{{ tools | tojson }} within <tool_call></tool_call>{% endif %}": HERMES,
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}{{ '[TOOL_CALLS]' }}": MISTRAL,
    """<|start_header_id|>{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}""": LLAMA3,
    "{% for message in messages %}<tool_call>{{ message | tojson }}{% endfor %}": None,
    "{% if tools %}{{ tools | tojson }}<tool_call><function=name><parameter=x>{% endif %}": None,
    "{% if tools %}{{ tools }}{% endif %}": None,
    "": None,
}

ANSWERS = [
    (HERMES, 'Hm.\n<tool_call>\n{"name": "f", "arguments": {"x": "é<"}}\n</tool_call>', "Hm.\n", [("f", {"x": "é<"})]),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "g", "arguments": {"y": [1]}}</tool_call>',
     "\n", [("f", {}), ("g", {"y": [1]})]),
    (HERMES, "a < b and <tool_kit> is no call", "a < b and <tool_kit> is no call", []),
    (HERMES, "<tool_call>{oops}</tool_call>!", "<tool_call>{oops}</tool_call>!", []),
    (HERMES, '<tool_call>{"name": "f", "arguments": {', '<tool_call>{"name": "f", "arguments": {', []),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}}', "", [("f", {})]),
    (MISTRAL, 'Ok[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', "Ok",
     [("f", {"x": 1}), ("g", {})]),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": 1}', "", [("f", {"x": 1})]),
    (MISTRAL, "[TOOL_CALLS] none", "[TOOL_CALLS] none", []),
    (LLAMA3, '\n{"name": "f", "parameters": {"x": 1}}', "\n", [("f", {"x": 1})]),
    (LLAMA3, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "", [("f", {}), ("g", {})]),
    (LLAMA3, '{"answer": 42}', '{"answer": 42}', []),
    (LLAMA3, 'It is {"name": "f", "parameters": {}}', 'It is {"name": "f", "parameters": {}}', []),
]  # fmt: skip


@pytest.mark.parametrize(("template", "format"), TEMPLATES.items())
def test_a_format_is_recognised_by_the_template(template, format):
    assert recognise(template) is format


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(("format", "answer", "text", "calls"), ANSWERS, ids=range(len(ANSWERS)))
def test_calls_are_read_from_pieces_of_any_size(format, answer, text, calls, size):
    reader, texts, found = ToolCallReader(format), [], []
    for start in range(0, len(answer), size):
        piece, complete = reader.push(answer[start : start + size])
        texts.append(piece)
        found += complete
    rest, complete = reader.finish()
    assert "".join(texts) + rest == text
    assert [(call.name, json.loads(call.arguments)) for call in found + complete] == calls


def test_text_is_not_held_back_longer_than_a_call_could_begin():
    reader = ToolCallReader(HERMES)
    assert reader.push("a <tool") == ("a ", [])
    assert reader.push("s") == ("<tools", [])


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_forced_call_is_the_whole_answer(format):
    call = {"name": "f", format.arguments: {"x": "</tool_call>"}}
    reader = ToolCallReader(format, forced=True)
    assert reader.push(json.dumps([call] if format.in_list else call)) == ("", [])
    text, calls = reader.finish()
    assert (text, [(each.name, json.loads(each.arguments)) for each in calls]) == ("", [("f", {"x": "</tool_call>"})])


def test_the_schema_of_a_call_names_the_functions_and_their_parameters():
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    one = HERMES.schema([{"name": "f", "parameters": parameters}])
    assert one["properties"] == {"name": {"const": "f"}, "arguments": parameters}
    two = LLAMA3.schema([{"name": "f"}, {"name": "g"}])
    assert [each["properties"]["name"]["const"] for each in two["anyOf"]] == ["f", "g"]
    assert MISTRAL.schema([{"name": "f"}])["type"] == "array"


def test_ids_of_calls_are_as_templates_of_mistral_want_them():
    reader = ToolCallReader(HERMES)
    _, [call] = reader.push('<tool_call>{"name": "f"}</tool_call>')
    assert len(call.id) == 9 and call.id.isalnum()
