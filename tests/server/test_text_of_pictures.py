"""A model that writes the text of a picture (TrOCR) over HTTP: a message of one picture, and nothing else."""

import base64
import io

import numpy as np
import pytest
from PIL import Image
from running_server import running

from edgeformer.runtime import load

OPTIONS = {"max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(trocr_bundle):
    with running([trocr_bundle], default_max_tokens=900, max_picture_pixels=4000) as server:
        yield server


def picture(seed, size=(30, 50)):
    """Return a picture as the content of a file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def url(content):
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def part(content, **detail):
    return {"type": "image_url", "image_url": {"url": url(content), **detail}}


def user(*parts):
    return {"role": "user", "content": list(parts)}


def chat(server, *messages, **fields):
    return server.post("/v1/chat/completions", {"messages": messages, **OPTIONS, **fields})


def written(trocr_bundle, content):
    return load(trocr_bundle, "cpu", 1).generate(content, max_new_tokens=6, ignore_eos=True)


def test_a_chat_writes_the_text_of_its_picture(server, trocr_bundle):
    texts = []
    for seed in range(3):
        wanted = written(trocr_bundle, picture(seed))
        answer = chat(server, user(part(picture(seed)), {"type": "text", "text": ""})).json()
        assert answer["choices"][0]["message"]["content"] == wanted.text
        assert answer["usage"]["completion_tokens"] == 6
        assert answer["usage"]["prompt_tokens"] == wanted.prompt_tokens == 17  # 4 × 4 patches and a learned token
        texts.append(wanted.text)
    assert len(set(texts)) == 3  # so that a picture in the place of another one would be seen
    assert chat(server, user(part(picture(0), detail="low"))).json()["choices"][0]["message"]["content"] == texts[0]


def test_clients_of_openai_and_anthropic_read_it(server, trocr_bundle):
    wanted, client = written(trocr_bundle, picture(1)).text, server.openai()
    stream = client.chat.completions.create(
        model="trocr", messages=[user(part(picture(1)))], max_tokens=6, stream=True, extra_body={"ignore_eos": True}
    )
    assert "".join(each.choices[0].delta.content or "" for each in stream if each.choices) == wanted
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url(picture(1))}]}
    answer = server.post("/v1/responses", {"input": [item], "max_output_tokens": 6}).json()
    counted = server.post("/v1/responses/input_tokens", {"input": [item]}).json()
    assert answer["usage"]["input_tokens"] == counted["input_tokens"] == 17
    said = "".join(each["content"][0]["text"] for each in answer["output"])
    assert said and wanted.startswith(said)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(picture(1)).decode()}
    asked = {"model": "trocr", "max_tokens": 100_000, "messages": [user({"type": "image", "source": source})]}
    message = server.post("/v1/messages", asked).json()
    assert message["content"][0]["text"].startswith(said) and message["usage"]["input_tokens"] == 17


def test_models_say_that_it_reads_pictures_alone(server):
    [entry] = server.get("/v1/models").json()["data"]
    assert entry["input_modalities"] == ["image"]


def test_an_answer_without_a_limit_ends_within_the_context(server):
    """The server's own limit of 900 tokens is more than the 40 of the decoder, of which one is the start."""
    answer = server.post("/v1/chat/completions", {"messages": [user(part(picture(0)))], "ignore_eos": True}).json()
    assert answer["usage"]["completion_tokens"] == 39


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([user({"type": "text", "text": "What is written here?"})], "messages.0: the model 'trocr' writes the text of"),
        ([user(part(picture(0)), {"type": "text", "text": "Read it."})], "messages.0: the model 'trocr' writes the"),
        ([{"role": "user", "content": "/etc/hostname"}], "reads no text and no conversation; send one message of the"),
        ([user()], "messages.0.content: the model 'trocr' writes the text of one picture"),
        ([user(part(picture(0)), part(picture(1)))], "messages.0.content.1.image_url.url: the model 'trocr' writes"),
        ([user(part(picture(0)))] * 2, "messages.1: the model 'trocr' writes the text of one picture"),
        ([{"role": "system", "content": "Read."}, user(part(picture(0)))], "messages.0: the model 'trocr' writes"),
        ([user(part(b"nothing"))], "messages.0.content.0.image_url.url"),
        ([user(part(picture(0)[:-30]))], "messages.0.content.0.image_url.url"),
        ([user(part(picture(0, (70, 70))))], "4,900 in all; this server takes 4,000"),
        ([user({"type": "image_url", "image_url": {"url": "file:///etc/a.png"}})], "reads no files for its clients"),
    ],
)
def test_anything_but_one_picture_is_refused(server, messages, message):
    answer = chat(server, *messages)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text


def test_tools_and_texts_are_refused(server):
    tools = [{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}]
    answer = chat(server, user(part(picture(0))), tools=tools)
    assert answer.status_code == 400 and "has no tools" in answer.json()["error"]["message"]
    answer = server.post("/v1/completions", {"prompt": "/etc/hostname"})  # no text may be read as the path of a file
    assert answer.status_code == 400 and "with a message of one picture" in answer.json()["error"]["message"]
