"""Requests as clients send them: what means nothing passes, what changes the answer is done or refused by its path."""

import json
import math

import httpx2
import pytest
from fields_of_servers import FIELDS_OF_SERVERS
from pydantic import ValidationError
from running_server import running

from edgeformer.runtime import load
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    RerankBody,
    TokenizeBody,
    read_body,
)
from edgeformer.server.schema.fields import FIELDS, MESSAGE_FIELDS, PARTS
from edgeformer.server.schema.response_bodies import ResponseBody
from edgeformer.server.service.prompts import as_template_message

USER = {"role": "user", "content": "What is 345 + 278?"}
ANSWER = "345 + 278 = 623"
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}


def read(kind, **fields):
    return read_body(kind, json.dumps(fields).encode())


def chat(*messages, **fields):
    return read(ChatBody, messages=[USER, *messages], **fields)


NOTHING_MEANT = {
    "what model_dump of OpenAI's client writes": [{"role": "assistant", "content": "x", "refusal": None,
        "annotations": [], "audio": None, "function_call": None, "tool_calls": None}, USER],
    "the index of a stream": [{"role": "assistant", "content": None, "tool_calls": [{"index": 0} | CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "1"}],
    "arguments as an object": [{"role": "assistant", "tool_calls": [
        CALL | {"function": {"name": "f", "arguments": {"x": 1}}}]}],
    "hints about caches": [{"role": "user", "cache_control": {"type": "ephemeral"}, "content": [
        {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}],
    "parts of answers": [{"role": "assistant", "content": [
        {"type": "output_text", "text": "hi", "annotations": []}, {"type": "refusal", "refusal": "no"}]}],
    "what a model thought": [{"role": "assistant", "content": "x", "reasoning_content": "r"},
        {"role": "assistant", "content": "x", "reasoning": "r"}, {"role": "assistant", "content": "x",
        "reasoning_content": None}],
    "what a model thought, as parts": [{"role": "assistant", "content": [
        {"type": "thinking", "thinking": [{"type": "text", "text": "r"}]}, {"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "r"}]},
        {"role": "assistant", "content": "x", "thinking_blocks": [{"type": "thinking", "thinking": "r"}]}],
    "fields that are empty": [{"role": "assistant", "content": "x", "images": [], "extra": {}, "note": ""}],
    "an old role": [{"role": "function", "name": "f", "content": "1"}],
    "what Google's servers keep": [{"role": "assistant", "content": None, "extra_content": {"google": {}}, "tool_calls":
        [CALL | {"extra_content": {"google": {"thought_signature": "x"}}}]}],
    "what a model thought, as LangChain has it": [{"role": "assistant", "content": [
        {"type": "reasoning", "reasoning": "r"}, {"type": "text", "text": "x"}]}],
    "no prefix, of Mistral's client": [{"role": "assistant", "content": "x", "prefix": False}, USER],
}  # fmt: skip


@pytest.mark.parametrize("case", NOTHING_MEANT)
def test_messages_may_have_what_clients_keep_in_them(case):
    body = chat(*NOTHING_MEANT[case])
    assert len(body.messages) == 1 + len(NOTHING_MEANT[case])


def test_what_a_model_thought_and_objects_of_arguments_are_kept():
    first, second = chat(*NOTHING_MEANT["what a model thought"]).messages[1:3]
    assert first.reasoning_content == second.reasoning_content == "r"
    [call] = chat(*NOTHING_MEANT["arguments as an object"]).messages[1].tool_calls
    assert call.function.arguments == '{"x": 1}'
    assert "".join(part.text for part in chat(*NOTHING_MEANT["parts of answers"]).messages[1].content) == "hino"
    first, second, _ = chat(*NOTHING_MEANT["what a model thought, as parts"]).messages[1:]
    assert as_template_message(first) == {
        "role": "assistant", "content": [{"type": "text", "text": "x"}], "reasoning_content": "r",
    }  # fmt: skip
    assert second.reasoning_content == "r"


FIELDS_THAT_PASS = {
    "stop": None, "tools": [], "top_k": -1, "max_tokens": -1, "n_predict": 5, "repeat_penalty": 1.1, "best_of": 1,
    "functions": [], "function_call": None, "echo": False, "add_generation_prompt": True, "previous_response_id": None,
    "cache_prompt": True, "id_slot": 0, "priority": 3, "grammar": "", "mirostat": 0, "min_keep": 0, "tfs_z": 1.0,
    "use_beam_search": False, "length_penalty": 1.0, "include_stop_str_in_output": False, "suffix": None,
    "stream_options": {"include_usage": None, "continuous_usage_stats": False}, "truncation": "auto",
    "verbosity": "low", "metadata": {"a": "b"}, "prompt_logprobs": None, "dry_multiplier": 0.8, "seed": None,
    "stop_token_ids": [2], "skip_special_tokens": False, "guided_json": SCHEMA, "guided_choice": ["a"],
    "structured_outputs": {}, "response_format": {"type": "json_object", "schema": SCHEMA}, "audio": None,
    "tool_choice": {"type": "auto"}, "random_seed": 3, "safe_prompt": False, "chat_id": "x", "top_p": 0,
    "n": 1.0, "max_completion_tokens": 16.0, "extra_body": {}, "my_label": "",
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS_THAT_PASS)
def test_fields_that_change_nothing_or_are_done_pass(name):
    chat(**{name: FIELDS_THAT_PASS[name]})
    chat(**{name: None})


def test_a_turn_with_a_prefix_is_continued():
    body = chat({"role": "assistant", "content": "It is", "prefix": True})
    assert body.continue_final_message is True and body.messages[1].content == "It is"
    with pytest.raises(ApiError, match="'messages.1.prefix' is not supported: only a last message"):
        chat({"role": "assistant", "content": "It is", "prefix": True}, USER)


def test_whole_numbers_may_have_a_point_and_forms_be_empty():
    assert (
        chat(max_tokens=16.0, response_format={}).max_tokens == 16 and chat(response_format={}).response_format is None
    )
    with pytest.raises(ApiError, match="max_tokens: Input should be a valid integer"):
        chat(max_tokens=16.5)


def test_the_number_of_choices_is_as_good_as_a_best_of():
    assert chat(n=3, best_of=3).n == 3
    with pytest.raises(ApiError, match="'best_of' is not supported: answers are not ranked; use n"):
        chat(n=2, best_of=3)


REFUSED = {
    "a part": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video_url",
        "video_url": {}}]}]}, "messages.0.content.1.type", "is 'video_url'; messages have parts that are texts"),
    "a picture without a URL": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content.0", "a part of the type image_url has image_url"),
    "too many": ({"stop": ["a"] * 17}, "stop", "stop has 17 entries; 16 are allowed"),
    "a type": ({"stop": 5}, "stop", "it must be a text or a list"),
    "an entry": ({"stop": ["a", 5]}, "stop.1", "valid string"),
    "a name": ({"tools": [{"type": "function", "function": {"name": "mcp:f"}}]}, "tools.0.function.name",
        "is 'mcp:f'; models call names of 1 to 128 letters, digits"),
    "a tool": ({"tools": [{"type": "web_search"}]}, "tools.0.type", "is 'web_search'; functions alone can be called"),
    "inside": ({"messages": [USER | {"colour": 1}]}, "messages.0.colour", "is no field of this request"),
    "a schema": ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
    "a legacy field": ({"functions": [{"name": "f"}]}, "functions", "deprecated by OpenAI; use tools"),
    "an audio": ({"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "messages.0.audio", "answers are text"),
    "a role": ({"messages": [{"role": "king", "content": "a"}]}, "messages.0.role", "Input should be 'system'"),
    "no role": ({"messages": [{"content": "a"}]}, "messages.0.role", "Field required"),
    "by its other name": ({"n_predict": "5"}, "max_tokens", "valid integer"),
    "nothing to answer": ({"messages": []}, "messages", "messages is empty"),
    "a form": ({"response_format": {"type": "regex", "regex": "a+"}}, "response_format.type", "is 'regex'; an answer"),
    "a thought of a user": ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "r"}]}]},
        "messages.0.content.0.type", "is 'thinking'; messages have parts that are texts"),
    "behind a thought": ({"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "r"},
        {"type": "video_url"}]}]}, "messages.0.content.1.type", "is 'video_url'"),
    "no mode": ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [TOOL]}}},
        "tool_choice.allowed_tools.mode", "required"),
    "a hidden class": ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "required"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named_by_its_path_in_the_request(case):
    fields, path, message = REFUSED[case]
    with pytest.raises(ApiError) as caught:
        read(ChatBody, **{"messages": [USER]} | fields)
    assert caught.value.param == path and message in str(caught.value), str(caught.value)
    assert not isinstance(caught.value.__cause__, ValidationError)


def test_a_document_is_named_without_a_class_of_python():
    assert read(RerankBody, query="q", documents=[{"text": "a", "title": "b"}]).documents[0].text == "a"
    with pytest.raises(ApiError, match=r"'documents\.0\.colour' is no field"):
        read(RerankBody, query="q", documents=[{"text": "a", "colour": "b"}])


RESPONSES = {
    "input": [
        USER, {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": None, "content": [
            {"type": "output_text", "text": "yo", "annotations": [], "logprobs": []}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "a", "output": "1", "id": None, "status": None}],
    "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "medium"}, "truncation": "auto", "client_metadata": {"a": "b"},
    "store": False, "parallel_tool_calls": True, "prompt_cache_key": "x", "previous_response_id": None,
    "background": False, "top_logprobs": 0, "stream_options": {"include_obfuscation": False},
    "tools": [{"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}],
}  # fmt: skip


def test_only_some_of_the_tools_may_be_called():
    tools = [{"type": "function", "name": name} for name in "fg"]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    of_chat = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "g"}}]}}  # fmt: skip
    body = read(ResponseBody, input="hi", tools=tools, tool_choice=choice).as_chat()
    assert body.tool_choice == chat(tool_choice=of_chat).tool_choice
    assert chat(tool_choice="any").tool_choice == chat(tool_choice={"type": "any"}).tool_choice == "required"
    assert chat(random_seed=3).seed == 3


def test_responses_are_read_as_codex_and_agents_ask():
    body = read(ResponseBody, **RESPONSES).as_chat()
    assert [message.role for message in body.messages] == ["user", "assistant", "tool"]
    assert body.messages[1].tool_calls and body.messages[1].content == "yo"


@pytest.mark.parametrize("kind", ["web_search", "namespace", "local_shell", "shell", "apply_patch", "mcp"])
def test_tools_of_other_types_are_refused_by_their_names(kind):
    with pytest.raises(ApiError, match=f"tools.0.type is '{kind}'; functions and custom tools alone can be called"):
        read(ResponseBody, input="hi", tools=[{"type": kind, "name": "x", "tools": []}])


def test_items_that_a_server_has_stored_are_refused():
    with pytest.raises(ApiError, match="input.1.type is 'item_reference'; nothing is stored, so send the item itself"):
        read(ResponseBody, input=[USER, {"type": "item_reference", "id": "msg_1"}])


@pytest.mark.parametrize("server_name", FIELDS_OF_SERVERS)
def test_no_field_of_another_server_is_unknown(server_name):
    """Every one is done, or ignored or refused with a reason; and what passes for no field passes."""
    fields = {name for route in FIELDS_OF_SERVERS[server_name].values() for name in route}
    assert fields - (FIELDS | MESSAGE_FIELDS).keys() == set()
    chat(**dict.fromkeys(fields - {"messages"}))
    for name in fields:
        for value in FIELDS[name].neutral if name in FIELDS and FIELDS[name].status == "refused" else ():
            chat(**{name: value})


def test_budgets_of_thinking_have_the_names_of_other_servers():
    for name in ("thinking_token_budget", "reasoning_budget_tokens"):
        assert chat(**{name: 5}).thinking_budget == 5 and chat(**{name: -1}).thinking_budget is None


def test_every_field_is_in_the_table():
    bodies = (ChatBody, CompletionBody, ResponseBody, EmbeddingBody, RerankBody, TokenizeBody, DetokenizeBody)
    names = {field.alias or name for kind in bodies for name, field in kind.model_fields.items()}
    missing = names - {name for name, field in FIELDS.items() if field.status == "done"}
    assert missing == set()
    for field in [*FIELDS.values(), *(field for part in PARTS.values() for field in part.values())]:
        assert field.status == "done" or len(field.note) > 8, field


@pytest.fixture(scope="module")
def server(tiny_llama_bundle):
    with running([tiny_llama_bundle], {"max_queue": 4}) as server:
        yield server


@pytest.fixture(scope="module")
def solo(tiny_llama_bundle):
    return load(tiny_llama_bundle, "cpu", 1)


def complete(server, **fields):
    answer = server.post("/v1/completions", fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def test_an_echo_with_logprobs_scores_the_prompt(server, solo):
    text = "Once upon a time, there was a little girl"
    [choice] = complete(server, prompt=text, max_tokens=0, echo=True, logprobs=2)
    ids = solo.tokenizer.encode(text)
    logits = solo.forward(ids).astype("float64")
    wanted = [
        float(row[id] - row.max() - math.log(sum(math.e ** (row - row.max()))))
        for row, id in zip(logits, ids[1:], strict=False)
    ]
    scores = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (text, "length")
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    assert scores["token_logprobs"][1:] == pytest.approx(wanted, abs=1e-4)
    assert [len(top) for top in scores["top_logprobs"][1:]] == [2] * (len(ids) - 1)
    assert "".join(scores["tokens"]) == text
    assert [
        text[start:].startswith(token) for start, token in zip(scores["text_offset"], scores["tokens"], strict=True)
    ]


def test_prompt_scores_come_before_those_of_the_answer(server, solo):
    """As lm-evaluation-harness asks: a batch of ids, one new token, which it leaves out."""
    prompts = [solo.tokenizer.encode("The dog ran home."), solo.tokenizer.encode("Tom is a cat")]
    choices = complete(server, prompt=prompts, max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234)
    for ids, choice in zip(prompts, choices, strict=True):
        scores = choice["logprobs"]
        assert len(scores["token_logprobs"]) == len(scores["top_logprobs"]) == len(ids) + 1
        assert all(math.isfinite(each) for each in scores["token_logprobs"][1:])
    stream = server.post(
        "/v1/completions", {"prompt": prompts[0], "max_tokens": 1, "logprobs": 1, "echo": True, "stream": True}
    )
    assert '"token_logprobs":[null,' in stream.text and stream.text.endswith("data: [DONE]\n\n")
    answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 0})
    assert "it needs echo to be true" in answer.json()["error"]["message"]


@pytest.mark.parametrize("temperature", [1e-320, 5e-324, 1e-9, 1e308, 1.7e308])
def test_temperatures_beyond_all_measure_are_greedy_or_even(server, temperature, capfd):
    """The coldest is greedy; at the hottest, every token that the filters leave is as likely as the others."""
    plain = complete(server, prompt="Once upon a time", max_tokens=8)[0]["text"]
    [drawn] = complete(server, prompt="Once upon a time", max_tokens=8, temperature=temperature, seed=1)
    assert (drawn["text"] == plain) == (temperature < 1)
    [first] = complete(server, prompt="Once upon a time", max_tokens=8, temperature=temperature, top_k=1, seed=2)
    assert first["text"] == plain
    assert complete(server, prompt="Once upon a time", max_tokens=8, top_p=0, temperature=1.5)[0]["text"] == plain
    assert "Warning" not in capfd.readouterr().err


def test_a_stop_that_is_a_special_token_stops_at_its_id(server, solo):
    text = "Hi <|im_start|> there"
    ids = solo.tokenizer.encode(text, add_special_tokens=False)
    special = solo.tokenizer.backend.token_to_id("<|im_start|>")
    assert special in ids
    biased = {"prompt": "Hi", "max_tokens": 3, "logit_bias": {str(special): 100}}
    [choice] = complete(server, **biased)
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    for stop in ({"stop": ["<|im_start|>"]}, {"stop": "<|im_start|>\n"}, {"stop_token_ids": [special]}):
        answer = server.post("/v1/completions", biased | stop).json()
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("stop", 1)
    answer = server.post("/v1/completions", biased | {"stop_token_ids": [99999]}).json()
    assert answer["error"]["param"] == "stop_token_ids"


def test_special_tokens_are_shown_where_the_request_wants_them(server, solo):
    special = solo.tokenizer.backend.token_to_id("<|im_start|>")
    wanted = {"max_tokens": 2, "logit_bias": {str(special): 100}, "skip_special_tokens": False}
    assert complete(server, prompt="Hi", **wanted)[0]["text"] == "<|im_start|><|im_start|>"
    answer = server.post("/v1/chat/completions", {"messages": [USER], **wanted}).json()
    assert answer["choices"][0]["message"]["content"] == "<|im_start|><|im_start|>"
    answer = server.post("/v1/chat/completions", {"messages": [USER], "skip_special_tokens": False}).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER


def test_the_last_message_is_continued_where_the_request_says_so(server, solo):
    messages = [USER, {"role": "assistant", "content": "345 + 278"}]
    answer = server.post("/v1/chat/completions", {"messages": messages, "continue_final_message": True,
                                                  "add_generation_prompt": False}).json()  # fmt: skip
    assert answer["choices"][0]["message"]["content"] == " = 623"
    ids = solo.tokenizer.encode_chat(messages, continue_final_message=True)
    whole = solo.tokenizer.render_chat(messages)
    assert (
        solo.tokenizer.decode(ids, skip_special_tokens=False)
        == whole[: whole.index("345 + 278", whole.index("assistant")) + 9]
    )


def test_schemas_come_in_the_spellings_of_other_servers(server):
    ways = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA}, {"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA}},
    ]  # fmt: skip
    for way in ways:
        answer = server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 40, **way}).json()
        assert json.loads(answer["choices"][0]["message"]["content"])["x"] in (1, 2), way
        assert json.loads(complete(server, prompt="Hi", max_tokens=40, **way)[0]["text"])["x"] in (1, 2), way
    for way in ({"guided_choice": ["yes", "n.o"]}, {"structured_outputs": {"choice": ["yes", "n.o"]}}):
        assert complete(server, prompt="Hi", **way)[0]["text"] in ("yes", "n.o")
    assert complete(server, prompt="Hi", guided_regex="[ab]{3}c")[0]["text"].endswith("c")


LOOSE = {
    "uniqueItems": {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "maxItems": 2},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": False},
    "format 'int32'": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9},
    "format 'password'": {"type": "string", "format": "password", "maxLength": 3},
    "not": {"type": "integer", "not": {"const": 3}, "minimum": 1, "maximum": 9},
    "else, if, then": {"enum": [1, 6], "if": {"minimum": 5}, "then": {"maximum": 7}, "else": {}},
}  # fmt: skip


@pytest.mark.parametrize("keywords", LOOSE)
def test_keywords_that_no_grammar_follows_are_named_in_a_header(server, keywords):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": LOOSE[keywords]}}
    answer = server.post("/v1/chat/completions", {"messages": [USER], "response_format": form, "max_tokens": 60})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-edgeformer-warning"] == f"the schema of the answer is not followed in: {keywords}"
    form["json_schema"]["strict"] = True
    answer = server.post("/v1/chat/completions", {"messages": [USER], "response_format": form, "max_tokens": 60})
    assert answer.status_code in (200, 400) and len(answer.text) < 700
    if answer.status_code == 400:
        assert answer.json()["error"]["param"] == "response_format"


def test_a_union_whose_tag_has_a_default_is_followed(server):
    cat, dog = ({"type": "object", "properties": {"kind": {"const": kind, "default": kind}, "x": {"enum": [1]}},
                 "required": ["x"]} for kind in ("cat", "dog"))  # fmt: skip
    schema = {"type": "object", "properties": {"pet": {"oneOf": [cat, dog]}}, "required": ["pet"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    answer = server.post("/v1/chat/completions", {"messages": [USER], "response_format": form, "max_tokens": 60}).json()
    assert json.loads(answer["choices"][0]["message"]["content"])["pet"]["x"] == 1


def test_schemas_that_cannot_be_followed_are_refused(server):
    for schema in ({"$ref": "#"}, {"$ref": "#/$defs/x"}, {"type": "king"}, {"enum": [["x"] * 3] * 10**5, "type": 5}):
        form = {"type": "json_schema", "json_schema": {"schema": schema, "strict": True}}
        answer = server.post("/v1/chat/completions", {"messages": [USER], "response_format": form, "max_tokens": 5})
        assert answer.status_code == 400 and len(answer.text) < 600, answer.text
        assert answer.json()["error"]["param"].startswith("response_format")


def test_a_prompt_can_be_cut_to_its_last_tokens(server, solo):
    long = "dog " * 3000 + "Once upon a time"
    [choice] = complete(server, prompt=long, truncate_prompt_tokens=5, max_tokens=8, echo=True)
    ids = solo.tokenizer.encode(long)[-5:]
    assert choice["text"] == solo.tokenizer.decode(ids) + solo.generate(ids, max_new_tokens=8).text
    [choice] = complete(server, prompt=solo.tokenizer.encode(long), truncate_prompt_tokens=5, max_tokens=8, echo=True)
    assert choice["text"].endswith(solo.generate(ids, max_new_tokens=8).text)


def test_lengths_beyond_the_context_have_the_known_code(server):
    error = server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 5000}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "max_tokens is 5000, but the model's context is 1024 tokens" in error["message"]
    [choice] = complete(server, prompt="The end.", max_tokens=-1, stop_token_ids=list(range(2048)))
    assert choice["finish_reason"] == "stop"


def test_more_choices_than_the_queue_holds_are_refused(server):
    answer = server.post("/v1/chat/completions", {"messages": [USER], "n": 5, "temperature": 1.0})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert "asks for 5 answers, and the queue of this server holds 4" in answer.text


ODD = [
    {"logit_bias": {"9" * 5000: 1}}, {"temperature": 1e-320}, {"temperature": 1e308},
    {"response_format": {"type": "json_schema", "schema": {"enum": ["\ud800"]}}}, {"stop": ["\ud800"]},
    {"guided_regex": "("}, {"guided_regex": "a{1000000}" * 50}, {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"guided_choice": ["\ud800"]}, {"stop_token_ids": [2**70]}, {"dry_multiplier": 1e308, "dry_base": 1e308},
]  # fmt: skip


@pytest.mark.parametrize("fields", ODD, ids=range(len(ODD)))
def test_odd_values_are_no_failure_of_the_server(server, fields):
    body = json.dumps({"prompt": "Hi hi hi hi hi", "max_tokens": 3} | fields)  # ASCII, which has half of a character
    answer = httpx2.post(f"{server.url}/v1/completions", content=body, timeout=60)
    assert answer.status_code in (200, 400) and len(answer.text) < 900, answer.text
