"""/v1/responses through OpenAI's client: items, events, tools and structured output."""

import json
import re

import jsonschema
import openai
import pytest
from running_server import running, with_tools

from edgeformer.runtime import load
from edgeformer.server.schema.custom_tools import InputPieces, input_of

QUESTION = "What is 345 + 278?"
ANSWER = "345 + 278 = 623"
SCHEMA = {
    "type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False,
}  # fmt: skip
CITY = {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS = [{"type": "function", "name": "weather", "parameters": CITY, "strict": True}]


@pytest.fixture(scope="module")
def server(tiny_llama_bundle, tmp_path_factory):
    tools = with_tools(tiny_llama_bundle, tmp_path_factory.mktemp("tools") / "tools")
    with running([tiny_llama_bundle, tools]) as server:
        yield server


@pytest.fixture(scope="module")
def create(server):
    with server.openai() as client:
        yield client.responses.create


def test_an_answer_is_that_of_a_chat(create):
    answer = create(model="tiny-llama", input=QUESTION)
    assert (answer.output_text, answer.status, answer.error) == (ANSWER, "completed", None)
    [message] = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 20
    short = create(model="tiny-llama", input=QUESTION, max_output_tokens=3)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert short.output[0].status == "incomplete" and short.usage.output_tokens == 3


def test_a_conversation_is_sent_back_as_it_was_returned(create, tiny_llama_bundle):
    first = create(model="tiny-llama", input=QUESTION)
    turns = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "Tell me a story."}]
    second = create(model="tiny-llama", input=turns, instructions="Be short.", max_output_tokens=12)
    alone = load(tiny_llama_bundle, "cpu", 1).chat(
        [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": ANSWER},
            {"role": "user", "content": "Tell me a story."},
        ],
        max_new_tokens=12,
    )
    assert second.output_text == alone.finish().text


def test_a_stream_has_an_event_for_each_change(create):
    events = list(create(model="tiny-llama", input=QUESTION, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-4].text == events[-1].response.output_text == ANSWER
    assert events[0].response.id == events[-1].response.id and events[0].response.output == []


def test_an_answer_follows_a_schema(create):
    wanted = {"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA, "strict": True}}
    answer = create(model="tiny-llama", input=QUESTION, text=wanted)
    jsonschema.validate(json.loads(answer.output_text), SCHEMA)
    assert answer.text.format.type == "json_schema"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_call_is_an_item_and_its_answer_goes_back(create, choice):
    ask = {"role": "user", "content": "How is the weather in Rome?"}
    options = {"model": "tools", "tools": TOOLS, "max_output_tokens": 80}
    [call] = create(input=[ask], tool_choice=choice, **options).output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    jsonschema.validate(json.loads(call.arguments), CITY)
    events = list(create(input=[ask], tool_choice=choice, stream=True, **options))
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert done.arguments == call.arguments == events[-1].response.output[0].arguments
    returned = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    after = create(input=[ask, call, returned], **options)
    assert after.usage.input_tokens > events[-1].response.usage.input_tokens, "the call and its answer are read"


ADD = {"type": "custom", "name": "calculate", "description": "Adds."}
SUMS = {"format": {"type": "grammar", "syntax": "regex", "definition": r"[1-9]\+[1-9]\n|a/b \"c\""}}


def test_a_custom_tool_is_called_with_a_text(create):
    ask = {"role": "user", "content": "How much is 1 + 2?"}
    options = {"model": "tools", "tools": [ADD | SUMS], "max_output_tokens": 80}
    for choice in ("required", {"type": "custom", "name": "calculate"}):
        answer = create(input=[ask], tool_choice=choice, **options)
        [call] = answer.output
        assert (call.type, call.name) == ("custom_tool_call", "calculate") and call.id.startswith("ctc_")
        assert re.fullmatch(r'[1-9]\+[1-9]\n|a/b "c"', call.input), call.input
    assert answer.tools[0].format.syntax == "regex" and answer.tool_choice.type == "custom"
    events = list(create(input=[ask], tool_choice="required", stream=True, **options))
    names = [event.type for event in events]
    assert names[2] == "response.output_item.added" and events[2].item.input == ""
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    [done] = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == events[-1].response.output[0].input == call.input
    assert done.item_id == events[2].item.id == events[-2].item.id
    returned = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "It is 3."}
    after = create(input=[ask, call, returned], **options)
    assert after.usage.input_tokens > events[-1].response.usage.input_tokens, "the call and its answer are read"


def test_a_grammar_of_lark_is_shown_and_said_to_be_no_rule(server):
    shown = ADD | {"format": {"type": "grammar", "syntax": "lark", "definition": "start: SUM"}}
    body = {"model": "tools", "input": "1 + 2?", "max_output_tokens": 1}
    answers = [server.post("/v1/responses", body | {"tools": [tool]}) for tool in (ADD, shown)]
    warnings = [answer.headers.get("x-edgeformer-warning", "") for answer in answers]
    assert "grammars of Lark" in warnings[1] and not warnings[0]
    without, with_grammar = (answer.json()["usage"]["input_tokens"] for answer in answers)
    assert with_grammar > without + 5


@pytest.mark.parametrize("key", ["input", "patch"])
def test_the_input_of_a_custom_tool_comes_in_any_pieces(key):
    text = '*** Begin "Patch"\n\\u0041 \t é \u2028 😀 \ud83d/'
    for arguments in (json.dumps({key: text}), json.dumps({key: text[:-2]}, ensure_ascii=False)):
        for size in (1, 2, 3, 7, 1000):
            pieces = InputPieces()
            given = [pieces.push(arguments[place : place + size]) for place in range(0, len(arguments), size)]
            assert "".join(given) + pieces.finish() == json.loads(arguments)[key]
            assert key == "patch" or size > 7 or sum(map(bool, given)) > 5, "it does not wait for the end"
    assert input_of('{"a": 1}') == '{"a": 1}'


@pytest.mark.parametrize("wanted", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
def test_a_text_comes_with_log_probabilities(create, server, wanted):
    chat = {"model": "tiny-llama", "messages": [{"role": "user", "content": QUESTION}], "logprobs": True}
    count = wanted.get("top_logprobs", 0)
    said = server.post("/v1/chat/completions", chat | {"top_logprobs": count}).json()["choices"][0]["logprobs"]
    expected = said["content"][:-1]  # the last one is the end of the turn, which has no text
    answer = create(model="tiny-llama", input=QUESTION, **wanted)
    [part] = answer.output[0].content
    assert [entry.model_dump() for entry in part.logprobs] == expected and answer.top_logprobs == count
    assert "".join(entry.token for entry in part.logprobs) == ANSWER
    events = list(create(model="tiny-llama", input=QUESTION, stream=True, **wanted))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert all("".join(entry.token for entry in event.logprobs) == event.delta for event in deltas)
    done = next(event for event in events if event.type == "response.output_text.done")
    assert [entry.logprob for entry in done.logprobs] == [entry["logprob"] for entry in expected]
    plain = create(model="tiny-llama", input=QUESTION)
    assert plain.output[0].content[0].logprobs == []


LOOKS = {"format": SUMS["format"] | {"definition": "(?!a)b"}}
REFUSED = [
    ({"include": ["message.logprobs"]}, "include", "which no answer has"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "functions and custom tools alone can be called"),
    ({"tools": [ADD | {"format": {"type": "grammar"}}]}, "tools.0.format.syntax", "is missing"),
    (
        {"model": "tools", "tool_choice": "required", "tools": [ADD | LOOKS]},
        "tools",
        "look-around, including look-ahead and look-behind, is not supported",
    ),
    ({"tools": [ADD | {"parameters": {"type": "object"}}]}, "tools.0.parameters", "is no field of this request"),
    ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}, "input.0.input", "Field required"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation as input"),
    ({"background": True}, "background", "an answer belongs to its request"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort", "does not read reasoning_effort"),
    ({"input": [{"type": "reasoning", "id": "rs", "summary": []}]}, "input", "has no message to answer"),
    ({"input": [{"type": "computer_call"}]}, "input.0.type", "is 'computer_call'; a conversation has items of these"),
    ({"input": [{"role": "user"}]}, "input.0.content", "Field required"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input.0.call_id", "Field required"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "is missing"),
    ({"tools": TOOLS}, "tools", "has no tools"),
    ({"extra_body": {"messages": [1]}}, "messages", "is no field of this request"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "param", "message"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(create, change, param, message):
    with pytest.raises(openai.BadRequestError) as caught:
        create(**{"model": "tiny-llama", "input": QUESTION} | change)
    assert (caught.value.param, message in caught.value.body["message"]) == (param, True), caught.value.body


def test_an_error_of_a_stream_is_its_last_event(create, server, monkeypatch):
    served = server.models.find("tiny-llama")
    submit = served.engine.submit

    def failing(prompt, **options):
        def broken(ids, logits):
            raise ZeroDivisionError

        return submit(prompt, logits_processors=[broken], **options)

    monkeypatch.setattr(served.engine, "submit", failing)
    last = list(create(model="tiny-llama", input=QUESTION, stream=True))[-1]
    assert (last.type, last.code) == ("error", "internal_error")
