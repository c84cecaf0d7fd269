"""The official client of OpenAI, unmodified, against a server of the presets."""

import numpy as np
import openai
import pytest
from running_server import running

from edgeformer.runtime import load

QUESTION = [{"role": "user", "content": "What is 345 + 278?"}]
STORY = "Once upon a time, there was a little girl"


@pytest.fixture(scope="module")
def presets(tiny_llama_bundle, tiny_embed_bundle, tiny_translate_bundle):
    """Bundles of the presets."""
    return {path.name: path for path in (tiny_llama_bundle, tiny_embed_bundle, tiny_translate_bundle)}


@pytest.fixture(scope="module")
def server(presets):
    with running(list(presets.values())) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with server.openai() as client:
        yield client


@pytest.fixture(scope="module")
def solo(presets):
    """The model by itself, without an engine."""
    return load(presets["tiny-llama"], "cpu", 1)


def test_a_chat_is_what_the_model_says_by_itself(client, solo):
    answer = client.chat.completions.create(model="tiny-llama", messages=QUESTION)
    alone = solo.chat(QUESTION).finish()
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (alone.text, "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (alone.prompt_tokens, len(alone.token_ids))
    assert alone.text == "345 + 278 = 623"
    assert answer._request_id.startswith("req-")


def test_the_second_turn_reads_only_what_is_new(server, client):
    first = client.chat.completions.create(model="tiny-llama", messages=[{"role": "user", "content": "Who is Tom?"}])
    answer = {"role": "assistant", "content": first.choices[0].message.content}
    messages = [{"role": "user", "content": "Who is Tom?"}, answer, *QUESTION]
    second = client.chat.completions.create(model="tiny-llama", messages=messages, n=2, temperature=0.1, seed=1)
    read = first.usage.prompt_tokens + first.usage.completion_tokens - 1
    assert second.usage.prompt_tokens_details.cached_tokens == read  # the same for any number of choices
    text = server.get("/metrics").text
    for metric in ("cached_tokens_total", "held_bytes"):
        line = next(line for line in text.splitlines() if line.startswith(f'edgeformer_{metric}{{model="tiny-llama"}}'))
        assert float(line.split()[-1]) > 0, line


def test_a_request_may_draft_tokens(server, client):
    options = {"model": "tiny-llama", "prompt": "The old bear walked. " * 6, "max_tokens": 40}
    plain = client.completions.create(**options)
    drafting = client.completions.create(**options, extra_body={"prompt_lookup_num_tokens": 4})
    assert drafting.choices[0].text == plain.choices[0].text
    lines = [line.split() for line in server.get("/metrics").text.splitlines() if not line.startswith("#")]
    counts = {name: float(value) for name, value in lines}
    assert counts['edgeformer_drafted_tokens_total{model="tiny-llama"}'] > 0
    assert 'edgeformer_accepted_tokens_total{model="tiny-llama"}' in counts
    with pytest.raises(openai.BadRequestError, match="prompt_lookup_num_tokens is 65; it must be between 0 and 64"):
        client.completions.create(**options, extra_body={"prompt_lookup_num_tokens": 65})


def test_a_stream_has_the_same_text_and_usage_if_asked(client, solo):
    options = {"model": "tiny-llama", "messages": QUESTION, "stream": True}
    for _ in range(5):  # tokens for which the server is late on a busy machine come in one piece
        *chunks, last = client.chat.completions.create(**options, stream_options={"include_usage": True})
        pieces = [chunk.choices[0].delta.content for chunk in chunks]
        if sum(map(bool, pieces)) > 2:
            break
    alone = solo.chat(QUESTION).finish()
    assert "".join(piece or "" for piece in pieces) == alone.text
    assert sum(map(bool, pieces)) > 2
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert last.choices == [] and last.usage.completion_tokens == len(alone.token_ids)
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**options))


def test_lengths_stop_strings_and_several_choices(client, solo):
    create = client.chat.completions.create
    short = create(model="tiny-llama", messages=QUESTION, max_tokens=3)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3)
    assert create(model="tiny-llama", messages=QUESTION, max_completion_tokens=3).usage.completion_tokens == 3
    stopped = create(model="tiny-llama", messages=QUESTION, stop=["= 6"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("345 + 278 ", "stop")
    tale = [{"role": "user", "content": "Tell me a story."}]
    drawn = create(model="tiny-llama", messages=tale, n=3, seed=5, temperature=1.2, max_tokens=12)
    texts = [choice.message.content for choice in drawn.choices]
    assert [choice.index for choice in drawn.choices] == [0, 1, 2] and len(set(texts)) == 3
    alone = [solo.chat(tale, seed=5 + n, temperature=1.2, max_new_tokens=12).finish().text for n in range(3)]
    assert texts == alone


def test_completions_continue_each_prompt(client, solo):
    answer = client.completions.create(model="tiny-llama", prompt=[STORY, "The dog"], max_tokens=8, echo=True)
    alone = solo.generate([STORY, "The dog"], max_new_tokens=8)
    texts = [choice.text for choice in answer.choices]
    assert texts == [STORY + alone[0].text, "The dog" + alone[1].text]
    ids = solo.tokenizer.encode(STORY)
    chunks = client.completions.create(model="tiny-llama", prompt=ids, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone[0].text


def test_a_translator_completes_with_the_translation(client, presets):
    source = "The dog is in the garden."
    answer = client.completions.create(model="tiny-translate", prompt=source)
    assert answer.choices[0].text == load(presets["tiny-translate"], "cpu", 1).generate(source, num_beams=1).text


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_are_those_of_the_encoder(client, presets, encoding):
    texts = ["A dog barks.", "A cat sleeps on the old sofa."]
    answer = client.embeddings.create(model="tiny-embed", input=texts)
    raw = client.embeddings.create(model="tiny-embed", input=texts, encoding_format=encoding)
    alone = load(presets["tiny-embed"], "cpu", 1).embed(texts)
    np.testing.assert_allclose([each.embedding for each in answer.data], alone, atol=1e-6)
    assert isinstance(raw.data[0].embedding, str if encoding == "base64" else list)
    assert answer.usage.prompt_tokens > 10


def test_embeddings_of_fewer_dimensions_have_length_one(client, presets):
    answer = client.embeddings.create(model="tiny-embed", input="A dog barks.", dimensions=16)
    cut = load(presets["tiny-embed"], "cpu", 1).embed("A dog barks.")[:16]
    np.testing.assert_allclose(answer.data[0].embedding, cut / np.linalg.norm(cut), atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="dimensions is 500; it must be between 1 and 128"):
        client.embeddings.create(model="tiny-embed", input="A dog barks.", dimensions=500)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny-llama", "tiny-embed", "tiny-translate"]
    assert client.models.retrieve("tiny-embed").owned_by == "edgeformer"


REFUSED = [
    ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found", "model", "there is no model 'gpt-5' here; there is"),
    ({"model": "tiny-embed"}, openai.BadRequestError, "wrong_model", "model", "it answers at /v1/embeddings"),
    ({"temperature": -1}, openai.BadRequestError, "invalid_type", "temperature", "greater than or equal to 0"),
    ({"top_p": 3}, openai.BadRequestError, None, "top_p", "top_p is 3.0; it must be above 0 and at most 1"),
    ({"n": 99}, openai.BadRequestError, None, "n", "n is 99; 16 choices are allowed"),
    ({"reasoning_effort": "high"}, openai.BadRequestError, "unsupported_parameter", "reasoning_effort", "not read"),
    ({"extra_body": {"tempratur": 1}}, openai.BadRequestError, "unknown_parameter", "tempratur", "is no field"),
    ({"extra_body": {"max_tokens": "5"}}, openai.BadRequestError, "invalid_type", "max_tokens", "valid integer"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, openai.BadRequestError, None, "max_tokens", "differ"),
    ({"messages": []}, openai.BadRequestError, "invalid_type", "messages", "is empty"),
    ({"max_tokens": 2000}, openai.BadRequestError, "context_length_exceeded", "max_tokens",
     "the model's context is 1024 tokens"),
    ({"messages": [{"role": "user", "content": "dog " * 1100}]}, openai.BadRequestError, "context_length_exceeded",
     "messages", "tokens; this server takes 1024 of the model 'tiny-llama'"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "no_tools", "tools",
     "the chat template of 'tiny-llama' has no tools"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "code", "param", "message"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(client, change, kind, code, param, message):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "tiny-llama", "messages": QUESTION} | change)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert message in caught.value.body["message"]


def test_harmless_fields_are_ignored_and_neutral_values_accepted(client):
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": False, "modalities": ["text"], "verbosity": None}
    answer = client.chat.completions.create(model="tiny-llama", messages=QUESTION, extra_body=harmless)
    assert answer.choices[0].message.content == "345 + 278 = 623"


def test_special_tokens_of_users_stay_text(server):
    spelled = [{"role": "user", "content": "<|im_end|>"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]}]
    counts = [server.post("/tokenize", {"messages": each}).json() for each in (spelled, parts)]
    end = server.post("/tokenize", {"prompt": "<|im_end|>", "add_special_tokens": False}).json()["tokens"]
    assert len(end) == 1, "a plain prompt may spell special tokens"
    assert counts[0]["tokens"].count(end[0]) == 1 and counts[0] == counts[1]


def test_texts_become_tokens_and_texts_again(server):
    found = server.post("/tokenize", {"prompt": STORY}).json()
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 1024)
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": STORY}
    assert "vocabulary" in server.post("/detokenize", {"tokens": [10**6]}).json()["error"]["message"]


def test_watchers_are_answered(server, client):
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").json()["status"] == "ready"
    client.chat.completions.create(model="tiny-llama", messages=QUESTION)
    text = server.get("/metrics").text
    for metric in ("time_to_first_token_seconds_count", "inter_token_seconds_count", "generated_tokens_total"):
        line = next(line for line in text.splitlines() if line.startswith(f'edgeformer_{metric}{{model="tiny-llama"}}'))
        assert float(line.split()[-1]) > 0, line
    assert 'edgeformer_requests_total{route="/v1/chat/completions",status="200"}' in text
    assert 'edgeformer_cache_bytes{model="tiny-llama"}' in text
