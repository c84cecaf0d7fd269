"""Logprobs, JSON schemas and tool calls through OpenAI's client, against the real engine.

The model is tiny-llama under a chat template with tools, which it never learned: a call that it must make is held to
the schema, and one that it makes by itself is put into its mouth by a logits processor.
"""

import functools
import json
import re

import httpx2
import jsonschema
import numpy as np
import openai
import pytest
from running_server import running, with_tools
from test_tool_calls import ODD
from thinking_bundles import Script

from edgeformer.errors import RequestError
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.tool_calls.table import FORMATS

ASK = [{"role": "user", "content": "How is the weather in Rome?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "<|im_end|>", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time", "parameters": PARAMETERS}},
]
CALL = 'Look: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def server(tiny_llama_bundle, tmp_path_factory):
    folder = with_tools(tiny_llama_bundle, tmp_path_factory.mktemp("tools") / "tiny-llama")
    with running([folder]) as server:
        yield server


@pytest.fixture(scope="module")
def create(server):
    with server.openai() as client:
        yield functools.partial(client.chat.completions.create, model="tiny-llama", messages=ASK, max_tokens=120)


@pytest.fixture
def says(server, monkeypatch):
    """Return a function that makes the model generate the tokens of a text, and end."""
    served = server.models.find(None)
    original = served.engine.submit

    def say(text):
        tokens = [*served.tokenizer.encode(text, add_special_tokens=False), served.model.manifest.tokens.eos[0]]

        def submit(prompt, **options):
            def forced(ids, logits):
                kept = np.full_like(logits, -np.inf)
                kept[tokens[len(ids) - len(prompt)]] = 0
                return kept

            return original(prompt, logits_processors=[forced], **options)

        monkeypatch.setattr(served.engine, "submit", submit)

    return say


def test_logprobs_are_those_of_the_tokens_and_of_the_likeliest(create, server):
    answer = create(logprobs=True, top_logprobs=3, max_tokens=6)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.logprob == entry.top_logprobs[0].logprob <= 0, "greedy"
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
    chunks = list(create(logprobs=True, max_tokens=6, stream=True))
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    # The second answer starts from the prefix that the first one left, so its last bits may be others.
    np.testing.assert_allclose([entry.logprob for entry in streamed], [entry.logprob for entry in entries], atol=1e-5)
    with server.openai() as client:
        old = client.completions.create(model="tiny-llama", prompt="Once upon", max_tokens=4, logprobs=2)
    assert len(old.choices[0].logprobs.token_logprobs) == 4 and len(old.choices[0].logprobs.top_logprobs[0]) == 2


def test_a_bias_bans_a_token(create, server):
    first = create(max_tokens=1, logprobs=True).choices[0].logprobs.content[0]
    token = server.post("/tokenize", {"prompt": first.token, "add_special_tokens": False}).json()["tokens"][0]
    other = create(max_tokens=1, logprobs=True, logit_bias={str(token): -100}).choices[0].logprobs.content[0]
    assert other.token != first.token


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_follows_its_schema(create, seed):
    schema = {"name": "forecast", "strict": True, "schema": PARAMETERS}
    answer = create(response_format={"type": "json_schema", "json_schema": schema}, temperature=1.0, seed=seed)
    jsonschema.validate(json.loads(answer.choices[0].message.content), PARAMETERS)
    assert answer.choices[0].finish_reason == "stop"


def test_a_bad_schema_is_the_fault_of_the_request(create):
    schema = {"name": "x", "schema": {"type": "king"}}
    with pytest.raises(openai.BadRequestError):
        create(response_format={"type": "json_schema", "json_schema": schema})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_must_come_follows_the_schema(create, choice, stream):
    answer = create(tools=TOOLS, tool_choice=choice, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
        (name, arguments), reason = called(chunks), chunks[-1].finish_reason
    else:
        assert answer.choices[0].message.content is None
        [call], reason = answer.choices[0].message.tool_calls, answer.choices[0].finish_reason
        name, arguments = call.function.name, call.function.arguments
    assert reason == "tool_calls"
    assert name in ({"weather", "time"} if choice == "required" else {"time"})
    jsonschema.validate(json.loads(arguments), PARAMETERS)


def called(chunks):
    """Return the name and the arguments of the one call of a stream, which comes in pieces."""
    pieces = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert {piece.index for piece in pieces} == {0} and len(pieces) > 3
    assert pieces[0].id and all(piece.id is None and piece.function.name is None for piece in pieces[1:])
    return pieces[0].function.name, "".join(piece.function.arguments for piece in pieces)


def test_a_call_that_comes_by_itself_is_read(create, says):
    says(CALL)
    message = create(tools=TOOLS).choices[0].message
    assert (message.content, message.tool_calls[0].function.name) == ("Look: ", "weather")
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome", "days": 2}
    chunks = [chunk.choices[0] for chunk in create(tools=TOOLS, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Look: "
    assert called(chunks) == ("weather", '{"city": "Rome", "days": 2}') and chunks[-1].finish_reason == "tool_calls"
    plain = create(tools=TOOLS, tool_choice="none").choices[0].message
    assert plain.tool_calls is None and plain.content == CALL
    back = [*ASK, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny."}]
    assert create(messages=back, tools=TOOLS).choices[0].finish_reason == "tool_calls"


def test_what_a_tool_returned_may_be_parts_of_text(create):
    """The template refuses calls without a city, so that its form of a tool's turn is not found by trying one."""
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    plain, parts = (
        create(messages=[*turns, {"role": "tool", "tool_call_id": "a", "content": content}], max_tokens=2).usage
        for content in ("Sunny.", [{"type": "text", "text": "Sunny."}])
    )
    assert plain.prompt_tokens == parts.prompt_tokens


def test_tools_are_in_the_prompt_as_text(create, server):
    tokens = create(tools=TOOLS, max_tokens=1).usage.prompt_tokens
    without = create(max_tokens=1).usage.prompt_tokens
    assert tokens > without + 50
    tokenizer = server.models.find(None).tokenizer
    end = tokenizer.backend.token_to_id("<|im_end|>")
    assert tokenizer.encode_chat(ASK, tools=TOOLS).count(end) == 2, "of the tools' message and the user's"
    assert tokenizer.encode_chat(ASK, tools=TOOLS, allow_special=True).count(end) == 3


def test_choices_of_tools_that_do_not_exist_are_refused(create):
    with pytest.raises(openai.BadRequestError, match="names 'none', which is none of the tools"):
        create(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "none"}})
    with pytest.raises(openai.BadRequestError, match="asks for a call, but there are no tools"):
        create(tool_choice="required")


def tool(parameters, name="weather", **fields):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


NESTED = {
    "type": "object",
    "properties": {"trip": {"$ref": "#/$defs/Trip"}},
    "required": ["trip"],
    "$defs": {
        "City": {"enum": ["Rome", "Oslo"]},
        "Trip": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
        },
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("others", [[], [tool(NESTED, "time")]], ids=["alone", "with another"])
def test_parameters_with_pointers_are_followed(create, choice, others):
    message = create(tools=[tool(NESTED), *others], tool_choice=choice).choices[0].message
    jsonschema.validate(json.loads(message.tool_calls[0].function.arguments), NESTED)


def test_only_the_tools_that_are_allowed_are_called(create, says):
    def allowed(mode, *names):
        named = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}

    [call] = create(tools=TOOLS, tool_choice=allowed("required", "time")).choices[0].message.tool_calls
    assert call.function.name == "time"
    with pytest.raises(openai.BadRequestError, match="names 'king', which is none of the tools"):
        create(tools=TOOLS, tool_choice=allowed("auto", "time", "king"))
    says(CALL)
    assert create(tools=TOOLS, tool_choice=allowed("auto", "time")).choices[0].message.content == CALL
    assert create(tools=TOOLS, tool_choice=allowed("auto", "weather")).choices[0].message.content == "Look: "


def test_keywords_that_are_null_are_none(create):
    """Servers of tools that are written in Go send `null` for a list that they have not."""
    city = {"enum": ["Rome", "Oslo"], "description": None, "items": None}
    parameters = {"type": "object", "properties": {"city": city}, "required": None, "$defs": None, "not": None}
    for schema in (parameters | {"required": ["city"]}, parameters | {"properties": None}):
        [call] = create(tools=[tool(schema)], tool_choice="required").choices[0].message.tool_calls
        assert json.loads(call.function.arguments).get("city") in (["Rome", "Oslo"] if schema["required"] else [None])
    answer = create(response_format={"type": "json_object", "schema": parameters | {"required": ["city"]}})
    assert json.loads(answer.choices[0].message.content)["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize("format", FORMATS)
def test_a_required_call_follows_the_schema_in_every_format(create, server, format, monkeypatch):
    served = server.models.find(None)
    monkeypatch.setitem(served.__dict__, "tool_format", FORMATS[format])
    monkeypatch.setitem(served.__dict__, "special_marks", {})
    answer = create(tools=TOOLS, tool_choice="required", max_tokens=250).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    jsonschema.validate(json.loads(answer.message.tool_calls[0].function.arguments), PARAMETERS)


def test_strict_tools_hold_every_call_to_its_schema(create, says):
    tools = [tool(PARAMETERS, strict=True)]
    for seed in range(3):
        answer = create(tools=tools, temperature=1.0, seed=seed).choices[0]
        for call in answer.message.tool_calls or ():
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    says(CALL)
    message = create(tools=tools).choices[0].message
    assert (message.content, message.tool_calls[0].function.name) == ("Look: ", "weather")


def test_an_answer_with_a_schema_and_tools_is_one_or_the_other(create, says):
    wanted = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": PARAMETERS}}
    message = create(tools=TOOLS, response_format=wanted).choices[0].message
    values = [call.function.arguments for call in message.tool_calls or ()] or [message.content]
    for value in values:
        jsonschema.validate(json.loads(value), PARAMETERS)
    says('{"city": "Oslo", "days": 3}')
    message = create(tools=TOOLS, response_format=wanted).choices[0].message
    assert message.tool_calls is None and json.loads(message.content) == {"city": "Oslo", "days": 3}
    says(CALL.removeprefix("Look: "))
    [call] = create(tools=TOOLS, response_format=wanted).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome", "days": 2}


DEEP = functools.reduce(lambda inner, _: {"type": "object", "properties": {"x": inner}}, range(300), {})
REFUSED = {
    "itself": ({"$ref": "#"}, "are a \\$ref to '#', which leads to no schema"),
    "nothing": ({"$ref": "#/$defs/X"}, "are a \\$ref to '#/\\$defs/X', which leads to no schema"),
    "deep": (DEEP, "nests objects and lists more than 64 deep"),
    "beyond JSON": ({"properties": {"x": {"maximum": float("inf")}}}, "number beyond the range of JSON"),
    "half a character": ({"properties": {"x": {"enum": ["\ud800"]}}}, "half of a character"),
    "unknown type": (
        {"type": "object", "properties": {"x": {"type": "king"}}},
        "of a tool cannot be followed",
    ),
}


def ask(server, parameters, **fields):
    body = {"messages": ASK, "tools": [tool(parameters, **fields)], "tool_choice": "required", "max_tokens": 30}
    content = json.dumps(body).replace("Infinity", "1e999")
    return httpx2.post(f"{server.url}/v1/chat/completions", content=content, timeout=60)


@pytest.mark.parametrize("case", REFUSED)
def test_parameters_that_cannot_be_followed_are_refused(server, case):
    parameters, message = REFUSED[case]
    answer = ask(server, parameters, strict=True)
    assert answer.status_code == 400 and re.search(message, answer.json()["error"]["message"]), answer.text
    assert answer.json()["error"]["param"].startswith("tools") and len(answer.text) < 600


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("odd", ODD)
def test_odd_parameters_are_no_failure_of_the_server(server, odd, strict):
    answer = ask(server, ODD[odd], strict=strict)
    assert answer.status_code in (200, 400), answer.text
    assert "error" not in answer.json() or len(answer.text) < 600


def test_a_format_of_tool_calls_can_be_named(tiny_llama_bundle, tmp_path):
    folder = with_tools(tiny_llama_bundle, tmp_path / "tiny-llama")
    with running([folder], tool_format="mistral") as server:
        assert server.models.find(None).tool_format is FORMATS["mistral"]
        answer = ask(server, PARAMETERS).json()["choices"][0]
        assert answer["message"].get("tool_calls") or answer["finish_reason"] == "length"
    with pytest.raises(RequestError, match="tool_format is 'latin'; it must be one of gpt-oss, "):
        ServerOptions(tool_format="latin")


def test_marks_that_are_special_tokens_are_read_over_http(tiny_llama_bundle, tmp_path):
    """Both marks of Hermes are special tokens, which no text has: every route finds calls, whole and streamed."""
    folder = with_tools(tiny_llama_bundle, tmp_path / "special")
    manifest = json.loads((folder / "edgeformer.json").read_text())
    manifest["tokens"]["eos"] = [2]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (
            (folder / name).read_text().replace("<|endoftext|>", "<tool_call>").replace("<|im_start|>", "</tool_call>")
        )
        (folder / name).write_text(text)
        manifest["files"][name]["bytes"] = len(text.encode())
    (folder / "edgeformer.json").write_text(json.dumps(manifest))
    two = f"{CALL}\n{CALL.removeprefix('Look: ')}"
    with running([folder]) as server:
        served = server.models.find(None)
        original = served.engine.submit
        assert served.special_marks.keys() == {"<tool_call>", "</tool_call>"}
        served.engine.submit = lambda prompt, **options: original(
            prompt, logits_processors=[Script(served.tokenizer, two)], **options
        )
        chat = {"messages": ASK, "tools": TOOLS, "max_tokens": 200}
        message = server.post("/v1/chat/completions", chat).json()["choices"][0]["message"]
        assert message["content"] == "Look: " and len(message["tool_calls"]) == 2
        with server.openai() as client:
            with client.chat.completions.stream(model="special", messages=ASK, tools=TOOLS) as stream:
                said = stream.get_final_completion().choices[0].message
            flat = [{"type": "function"} | tool["function"] for tool in TOOLS]
            items = client.responses.create(model="special", input="How is the weather?", tools=flat).output
            *_, last = client.responses.create(model="special", input="Hm?", tools=flat, stream=True)
        assert [json.loads(call.function.arguments)["city"] for call in said.tool_calls] == ["Rome", "Rome"]
        for each in (items, last.response.output):
            assert [item.type for item in each] == ["message", "function_call", "function_call"]
            assert all(json.loads(item.arguments) == {"city": "Rome", "days": 2} for item in each[1:])
        tools = [{"name": "weather", "input_schema": PARAMETERS}]
        blocks = server.post("/v1/messages", {"messages": ASK, "tools": tools, "max_tokens": 200}).json()["content"]
        assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_use"]


def test_a_call_that_breaks_off_is_never_json_in_a_stream(create, says):
    says(CALL)
    length, begun = create(tools=TOOLS).usage.completion_tokens, 0
    for cut in range(length - 16, length - 2, 2):
        chunks = [chunk.choices[0] for chunk in create(tools=TOOLS, stream=True, max_tokens=cut)]
        pieces = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
        if not pieces or chunks[-1].finish_reason == "tool_calls":  # before the arguments, or behind them
            continue
        begun += 1
        assert chunks[-1].finish_reason == "length" and pieces[0].function.name == "weather"
        with pytest.raises(ValueError, match="Expecting|Unterminated"):
            json.loads("".join(piece.function.arguments for piece in pieces))
        whole = create(tools=TOOLS, max_tokens=cut).choices[0].message
        assert whole.tool_calls is None and "<tool_call>" in whole.content
    assert begun
