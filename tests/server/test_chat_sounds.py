"""Recordings in conversations over HTTP: parts of messages, limits, and files that are none."""

import base64

import numpy as np
import pytest
from running_server import running
from wav import wav_file

from edgeformer.runtime import load

OPTIONS = {"max_tokens": 6, "ignore_eos": True}
TEXT = {"type": "text", "text": "What is said?"}


@pytest.fixture(scope="module")
def server(voxtral_bundle, tiny_llama_bundle):
    limits = {"max_recordings": 2, "max_recording_bytes": 100_000, "max_recording_seconds": 2}
    with running([voxtral_bundle, tiny_llama_bundle], **limits) as server:
        yield server


def sound(seconds=0.5, salt=0, rate=16_000):
    """Return a WAV file of noise."""
    return wav_file(np.random.default_rng(salt).integers(-3000, 3000, int(seconds * rate)).astype("<i2"), rate)


def part(content):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(content).decode(), "format": "wav"}}


def user(*parts):
    return {"role": "user", "content": [*parts, TEXT]}


def chat(server, messages, **fields):
    return server.post("/v1/chat/completions", {"messages": messages, **OPTIONS, **fields})


def test_a_chat_hears_what_the_runtime_hears(server, voxtral_bundle):
    model, files = load(voxtral_bundle, "cpu", 1), [sound(), sound(0.3, 1)]
    heard = {"role": "user", "content": [{"type": "audio"}, {"type": "audio"}, TEXT]}
    wanted = model.chat([heard], sounds=files, max_new_tokens=6, ignore_eos=True).finish()
    answer = chat(server, [user(*map(part, files))]).json()
    assert answer["choices"][0]["message"]["content"] == wanted.text
    assert answer["usage"]["prompt_tokens"] == wanted.prompt_tokens
    counted = server.post("/tokenize", {"messages": [user(*map(part, files))]}).json()
    assert counted["count"] == wanted.prompt_tokens
    stream = server.openai().chat.completions.create(
        model="voxtral", messages=[user(*map(part, files))], max_tokens=6, stream=True, extra_body={"ignore_eos": True}
    )
    assert "".join(each.choices[0].delta.content or "" for each in stream if each.choices) == wanted.text
    other = chat(server, [user(part(files[1]), part(files[0]))]).json()["usage"]
    assert other["prompt_tokens_details"]["cached_tokens"] < 16  # another recording is another prefix
    models = {each["id"]: each["input_modalities"] for each in server.get("/v1/models").json()["data"]}
    assert models == {"voxtral": ["text", "audio"], "tiny-llama": ["text"]}


def test_a_response_hears_what_a_chat_hears(server):
    item = {"role": "user", "content": [part(sound()), {"type": "input_text", "text": TEXT["text"]}]}
    chatted = chat(server, [user(part(sound()))], ignore_eos=False).json()
    answer = server.post("/v1/responses", {"input": [item], "max_output_tokens": 6}).json()
    said = "".join(each["content"][0]["text"] for each in answer["output"] if each["type"] == "message")
    assert said == chatted["choices"][0]["message"]["content"] and said
    assert answer["usage"]["input_tokens"] == chatted["usage"]["prompt_tokens"]
    deaf = server.post("/v1/responses", {"input": [item | {"content": item["content"][1:]}], "max_output_tokens": 6})
    assert deaf.json()["usage"]["input_tokens"] < answer["usage"]["input_tokens"]
    counted = server.post("/v1/responses/input_tokens", {"input": [item]}).json()
    assert counted["input_tokens"] == answer["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (part(b"nothing"), "input.0.content.0.input_audio.data is not a sound file of WAV"),
        (part(sound(4)), "input.0.content.0.input_audio.data: the recording has 128,0"),
        ({"type": "input_audio"}, "input.0.content.0.input_audio is missing; recordings are in the request"),
        ({"type": "input_video"}, "texts, pictures (input_image) or recordings (input_audio)"),
    ],
)
def test_wrong_recordings_of_a_response_are_refused(server, content, message):
    answer = server.post("/v1/responses", {"input": [{"role": "user", "content": [content]}]})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([user(part(b"nothing"))], "messages.0.content.0.input_audio.data is not a sound file of WAV"),
        ([user(part(sound(2.5)))], "messages.0.content.0.input_audio.data has 2.5 seconds; this server takes 2 of a"),
        ([user(part(sound(4)))], "input_audio.data: the recording has 128,0"),
        ([user(part(sound(0)))], "input_audio.data holds no samples"),
        ([user(part(sound(0.01)), part(sound()), part(sound()))], "the request has 3 recordings; this server takes 2"),
        ([{"role": "assistant", "content": [part(sound())]}], "recordings stand in messages of the user"),
        ([user({"type": "input_audio", "input_audio": {"data": "%%", "format": "wav"}})], "it is not in base64"),
        ([user({"type": "input_audio", "text": "a"})], "a part of the type input_audio has input_audio, and no text"),
        (
            [user({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}})],
            "'voxtral' reads no pictures",
        ),
    ],
)
def test_wrong_recordings_are_refused_by_name(server, messages, message):
    answer = chat(server, messages)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text


def test_a_model_of_text_hears_nothing(server):
    answer = chat(server, [user(part(sound()))], model="tiny-llama")
    assert answer.status_code == 400 and "reads text, and no recordings" in answer.json()["error"]["message"]
