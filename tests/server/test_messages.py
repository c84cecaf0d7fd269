"""Anthropic's API, /infill, and counts of tokens: with the conversations that their clients send."""

import json

import httpx2
import pytest
from running_server import running, with_tools
from test_structured_answers import says as says  # a fixture

from edgeformer.runtime import load
from edgeformer.runtime.text.fill_in import fill_in_prompt, find_marks
from edgeformer.runtime.text.tokenizer import Tokenizer
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import read_body
from edgeformer.server.schema.message_bodies import MessagesBody

QUESTION = {"role": "user", "content": "What is 345 + 278?"}
TOOL = {
    "name": "weather", "description": "Tells the weather.", "cache_control": {"type": "ephemeral"},
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
}  # fmt: skip
TURNS = [
    QUESTION,
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "let me look", "signature": "x"}, {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"},
         "caller": {"type": "direct"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False,
         "content": [{"type": "text", "text": "sun"}]},
        {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}}]},
]  # fmt: skip


def read(**fields):
    return read_body(MessagesBody, json.dumps({"max_tokens": 9, "messages": [QUESTION]} | fields).encode())


@pytest.fixture(scope="module")
def server(tiny_llama_bundle, tmp_path_factory):
    folder = with_tools(tiny_llama_bundle, tmp_path_factory.mktemp("tools") / "tiny-llama")
    with running([folder], api_key="secret") as server:
        yield server


def post(server, path="/v1/messages", **body):
    fields = {"model": "tiny-llama", "max_tokens": 60, "messages": [QUESTION]} | body
    return httpx2.post(f"{server.url}{path}", json=fields, headers={"x-api-key": "secret"}, timeout=60)


def test_a_conversation_is_read_as_the_chat_that_it_is():
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    body = read(messages=TURNS, system=system, tools=[TOOL], stop_sequences=["x"], metadata={"user_id": "a"},
                tool_choice={"type": "any", "disable_parallel_tool_use": True},
                context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                thinking={"type": "disabled"}).as_chat()  # fmt: skip
    assert [message.role for message in body.messages] == ["system", "user", "assistant", "tool", "user"]
    answer, result, said = body.messages[2:]
    assert (answer.content, answer.reasoning_content) == ("I look.", "let me look")
    assert json.loads(answer.tool_calls[0].function.arguments) == {"city": "Rome"}
    assert (result.content, result.tool_call_id, said.content) == ("sun", "toolu_1", "And now?")
    assert (body.tool_choice, body.parallel_tool_calls, body.stop) == ("required", False, ["x"])
    assert (
        not body.continue_final_message
        and read(messages=[QUESTION, {"role": "assistant", "content": "3"}]).as_chat().continue_final_message
    )


REFUSED = {
    "a document": ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
        "messages.0.content.0.type", "is 'document'; messages have blocks of these types: text, image, tool_use"),
    "an image without a source": ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "messages.0.content.0.source", "Field required"),
    "a tool of the server": ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type",
        "is 'web_search_20250305'; tools of clients alone"),
    "no id": ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
        "messages.0.content.0.tool_use_id", "Field required"),
    "a conversation that is changed": ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management.edits.0.type", "a conversation is answered as it is"),
    "no name": ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", "is missing"),
    "an image in a result": ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a",
        "content": [{"type": "thinking"}]}]}]}, "messages.0.content.0.content.0.type", "only texts can stand here"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_named_by_its_path(case):
    fields, path, message = REFUSED[case]
    with pytest.raises(ApiError) as caught:
        read(**fields).as_chat()
    assert caught.value.param == path and message in str(caught.value), caught.value


def test_a_message_is_what_the_model_says_and_says_why_it_ended(server):
    answer = post(server).json()
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert answer["content"] == [{"type": "text", "text": "345 + 278 = 623"}]
    usage = answer["usage"]
    counted = post(server, "/v1/messages/count_tokens").json()
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert post(server, max_tokens=3).json()["stop_reason"] == "max_tokens"
    stopped = post(server, stop_sequences=["Z", "= 6"]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "= 6")
    assert stopped["content"][0]["text"] == "345 + 278 "
    continued = post(server, messages=[QUESTION, {"role": "assistant", "content": "345 + 278"}]).json()
    assert continued["content"][0]["text"] == " = 623"


def events_of(answer) -> list[tuple[str, dict]]:
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def test_a_stream_has_the_events_of_anthropics(server):
    events = events_of(post(server, stream=True))
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"] and all(name == data["type"] for name, data in events)
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    assert text == "345 + 278 = 623"
    assert events[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2][1]["usage"]["output_tokens"] > 5


def test_calls_are_blocks_whether_forced_or_free(server, says):
    forced = post(server, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}).json()
    [call] = forced["content"]
    assert (forced["stop_reason"], call["type"], call["name"]) == ("tool_use", "tool_use", "weather")
    assert call["input"]["city"] in ("Rome", "Oslo")
    says('Look: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>')
    text, call = post(server, tools=[TOOL]).json()["content"]
    assert text == {"type": "text", "text": "Look: "} and call["input"] == {"city": "Rome"}
    events = events_of(post(server, tools=[TOOL], stream=True))
    starts = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
    assert starts == ["text", "tool_use"]
    deltas = [data["delta"] for _, data in events if data.get("delta", {}).get("type") == "input_json_delta"]
    assert json.loads("".join(each["partial_json"] for each in deltas)) == {"city": "Rome"} and len(deltas) > 2


CLAUDE = {
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}, "speed": "standard",
    "output_config": {"effort": "high"}, "metadata": {"user_id": "x"}, "service_tier": "auto",
}  # fmt: skip


def test_requests_as_clients_of_anthropic_send_them_to_any_model(server):
    """LiteLLM names a length of 128,000 tokens, and others ask for thinking, whatever the model is."""
    answer = post(server, max_tokens=128_000, **CLAUDE)
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"] == [{"type": "text", "text": "345 + 278 = 623"}]
    said = answer.headers["x-edgeformer-warning"]
    assert "'tiny-llama' does not think" in said and "effort is left out" in said and "lowered to 10" in said
    counted = post(server, "/v1/messages/count_tokens", max_tokens=None, **CLAUDE).json()
    assert counted == post(server, "/v1/messages/count_tokens").json()


def test_an_answer_follows_the_schema_of_output_config(server):
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    answer = post(server, output_config={"format": {"type": "json_schema", "schema": schema}}).json()
    assert json.loads(answer["content"][0]["text"])["x"] in (1, 2)
    error = post(server, output_config={"format": {"type": "regex"}}).json()["error"]
    assert error["param"] == "output_config.format.type"


def test_a_client_is_told_to_send_the_whole_conversation(server):
    """Anthropic's own client goes on without a thread where the error has this form."""
    answer = post(server, thread={"type": "create"})
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == {
        "error_code": "thread_unsupported_request", "unsupported": ["thread"]
    }  # fmt: skip


def test_errors_have_the_form_that_anthropics_clients_read(server):
    answer = post(server, model="claude")
    assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (
        404,
        "error",
        "not_found_error",
    )
    wrong = httpx2.post(f"{server.url}/v1/messages", json={}, headers={"x-api-key": "other"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")


def test_inputs_of_responses_are_counted(server):
    count = post(
        server, "/v1/responses/input_tokens", input="What is 345 + 278?", messages=None, max_tokens=None
    ).json()
    assert count == {"object": "response.input_tokens"} | post(server, "/v1/messages/count_tokens").json()


MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")


@pytest.fixture(scope="module")
def filling(tiny_llama_bundle, tmp_path_factory):
    """tiny-llama, whose spare special tokens are called as those of Qwen2.5-Coder. It never learned to fill in."""
    folder = with_tools(tiny_llama_bundle, tmp_path_factory.mktemp("fill") / "tiny-llama")
    data = json.loads((folder / "tokenizer.json").read_text())
    used = {token["id"] for token in data["added_tokens"]}
    rare = [id for id in sorted(data["model"]["vocab"].values(), reverse=True) if id not in used][: len(MARKS)]
    gone = {text for text, id in data["model"]["vocab"].items() if id in rare}
    merges = [pair for pair in data["model"]["merges"] if not gone & {*pair, "".join(pair)}]
    vocab = {text: id for text, id in data["model"]["vocab"].items() if text not in gone}
    data["model"] |= {"merges": merges, "vocab": vocab}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    data["added_tokens"] += [{"id": id, "content": mark} | flags for id, mark in zip(rare, MARKS, strict=True)]
    text = json.dumps(data)
    (folder / "tokenizer.json").write_text(text)
    manifest = json.loads((folder / "edgeformer.json").read_text())
    manifest["files"]["tokenizer.json"]["bytes"] = len(text.encode())
    (folder / "edgeformer.json").write_text(json.dumps(manifest))
    return folder


def test_a_middle_is_asked_for_by_the_marks_of_the_tokenizer(filling):
    tokenizer = Tokenizer(filling)
    spelled = "".join((MARKS[3], "a.py\nb\n", MARKS[0], "def f(", MARKS[1], "): pass", MARKS[2]))
    ids = tokenizer.backend.encode(spelled).ids
    assert fill_in_prompt(tokenizer, "def f(", "): pass", [("a.py", "b")]) == ids
    injected = fill_in_prompt(tokenizer, f"def {MARKS[2]}", "): pass")
    assert injected.count(tokenizer.backend.token_to_id(MARKS[2])) == 1, "what a text spells stays text"
    assert tokenizer.decode(injected) == f"def {MARKS[2]}): pass"


def test_infill_answers_as_llama_cpps_server(filling, server):
    solo = load(filling, "cpu", 1)
    ids = fill_in_prompt(solo.tokenizer, "def f(", "): pass")
    text = solo.generate(ids, max_new_tokens=6).text
    body = {"input_prefix": "def f(", "input_suffix": "): pass", "n_predict": 6, "cache_prompt": True, "id_slot": -1}
    with running([filling]) as running_server:
        answer = running_server.post("/infill", body).json()
        assert (answer["content"], answer["stop"], answer["tokens_predicted"]) == (text, True, 6)
        lines = [line for line in running_server.post("/infill", body | {"stream": True}).text.split("\n") if line]
        pieces = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert "".join(piece["content"] for piece in pieces) == text and pieces[-1]["stop_type"] == "limit"
    error = post(server, "/infill", **body, messages=None, max_tokens=None).json()["error"]
    assert "does not fill in the middle" in error["message"] and error["param"] == "model"


def test_tokenizers_without_marks_do_not_fill_in(tiny_llama_bundle):
    assert find_marks(Tokenizer(tiny_llama_bundle)) is None
