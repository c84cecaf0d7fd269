"""/v1/responses through OpenAI's client: items, events, tools and structured output."""

import json

import jsonschema
import openai
import pytest
from running_server import running, with_tools

from edgeformer.runtime import load

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


REFUSED = [
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
