"""Pictures in conversations over HTTP: parts of three APIs, limits, and pictures that mean harm."""

import base64
import io
import struct
import zlib
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image
from running_server import running

from edgeformer.runtime import LowDetail, load
from edgeformer.runtime.media.pictures.processors.tiles import Tiles
from edgeformer.server.schema.bodies import ChatBody

OPTIONS = {"max_tokens": 8, "ignore_eos": True}
QUESTION = "What is left of the circle?"


@pytest.fixture(scope="module")
def server(smolvlm_bundle, tiny_llama_bundle):
    with running([smolvlm_bundle, tiny_llama_bundle]) as server:
        yield server


@pytest.fixture(scope="module")
def model(smolvlm_bundle):
    return load(smolvlm_bundle, "cpu", 1)


def pixels(seed=0, height=84, width=50):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PNG, JPEG = saved(Image.fromarray(pixels())), saved(Image.fromarray(pixels(1)), "JPEG")


def url(content, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def part(content, **fields):
    return {"type": "image_url", "image_url": {"url": url(content), **fields}}


def user(*parts):
    return {"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}


def chat(server, messages, path="/v1/chat/completions", **fields):
    return server.post(path, {"messages": messages, **OPTIONS, **fields})


def expected(model, content, images):
    """Return what the runtime answers."""
    result = model.chat([{"role": "user", "content": content}], images=images, max_new_tokens=8, ignore_eos=True)
    return result.finish()


IMAGE, TEXT = {"type": "image"}, {"type": "text", "text": QUESTION}


def test_three_apis_see_what_the_runtime_sees(server, model):
    wanted = expected(model, [IMAGE, IMAGE, TEXT], [PNG, JPEG])
    answer = chat(server, [user(part(PNG), part(JPEG))]).json()
    assert answer["choices"][0]["message"]["content"] == wanted.text
    assert answer["usage"]["prompt_tokens"] == wanted.prompt_tokens > 80
    blocks = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(each)
               .decode()}} for each in (PNG, JPEG)]  # fmt: skip
    body = {"messages": [user(*blocks)], "max_tokens": 8}
    answer = server.post("/v1/messages", body).json()
    without_end = model.chat([user(IMAGE, IMAGE)], images=[PNG, JPEG], max_new_tokens=8).finish()
    assert answer["content"][0]["text"] == without_end.text
    assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] == wanted.prompt_tokens
    assert server.post("/v1/messages/count_tokens", body).json() == {"input_tokens": wanted.prompt_tokens}
    parts = [{"type": "input_image", "image_url": url(each)} for each in (PNG, JPEG)]
    item = {"role": "user", "content": [*parts, {"type": "input_text", "text": QUESTION}]}
    answer = server.post("/v1/responses", {"input": [item], "max_output_tokens": 8}).json()
    assert answer["output"][0]["content"][0]["text"] == without_end.text
    assert answer["usage"]["input_tokens"] == wanted.prompt_tokens


def test_openais_client_streams_an_answer_about_a_picture(server, model):
    stream = server.openai().chat.completions.create(
        model="smolvlm", messages=[user(part(PNG))], max_tokens=8, stream=True, extra_body={"ignore_eos": True}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == expected(model, [IMAGE, TEXT], [PNG]).text


def test_detail_says_how_many_tokens_a_picture_has(server, model):
    wanted = {"low": expected(model, [IMAGE, TEXT], [LowDetail(PNG)]), "high": expected(model, [IMAGE, TEXT], [PNG])}
    for detail, result in [("low", "low"), ("high", "high"), ("auto", "high")]:
        answer = chat(server, [user(part(PNG, detail=detail))]).json()
        assert answer["choices"][0]["message"]["content"] == wanted[result].text
        assert answer["usage"]["prompt_tokens"] == wanted[result].prompt_tokens
    assert wanted["low"].prompt_tokens < wanted["high"].prompt_tokens - 20


def test_a_second_question_about_a_picture_reads_it_no_more(server):
    first = chat(server, [user(part(PNG))]).json()
    turns = [user(part(PNG)), {"role": "assistant", "content": "red"}, {"role": "user", "content": "And right?"}]
    with patch.object(Tiles, "values", side_effect=AssertionError("the tower's input was made again")):
        again = chat(server, turns).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1


def test_tokenize_counts_pictures(server, model):
    answer = server.post("/tokenize", {"messages": [user(part(PNG))]}).json()
    ids = model.tokenizer.encode_chat([user(IMAGE)])
    assert answer["tokens"] == model.see(ids, [PNG]).shown and answer["count"] == len(answer["tokens"])


def test_a_user_who_spells_a_placeholder_writes_text(server, model):
    message = {"role": "user", "content": [part(PNG), {"type": "text", "text": "Is <image> red?"}]}
    spelled = [IMAGE, {"type": "text", "text": "Is <image> red?"}]
    assert chat(server, [message]).json()["choices"][0]["message"]["content"] == expected(model, spelled, [PNG]).text


def test_an_assistant_who_spelled_a_placeholder_wrote_text(server, model):
    turns = [
        user(part(PNG)), {"role": "assistant", "content": "I see <image>."}, {"role": "user", "content": "Again?"},
    ]  # fmt: skip
    answer = chat(server, turns)
    assert answer.status_code == 200, answer.text
    spelled = [user(IMAGE), *turns[1:]]
    ids = model.tokenizer.encode_chat(spelled)
    assert ids.count(model.placeholder.token) == 1
    assert model.tokenizer.decode(ids, skip_special_tokens=False).count("<image>") == 2


def test_several_choices_see_the_same_picture(server, model):
    options = {"n": 3, "temperature": 0.9, "seed": 5}
    choices = chat(server, [user(part(JPEG))], **options).json()["choices"]
    alone = [
        model.chat([user(IMAGE)], images=[JPEG], max_new_tokens=8, ignore_eos=True, temperature=0.9, seed=5 + index)
        .finish().text for index in range(3)
    ]  # fmt: skip
    assert [choice["message"]["content"] for choice in choices] == alone


def png_header(width, height):
    """Return a PNG that says it has this size, and has no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


REFUSED = {
    "a bomb": (png_header(16_000, 16_000), "(256000000 pixels) exceeds limit"),
    "a line": (saved(Image.new("RGB", (1, 20_000))), "1 × 20,000 pixels; a side may have 16,384"),
    "no pixels": (png_header(0, 5), "cannot be read|none to see"),
    "cut off": (PNG[: len(PNG) // 2], "cannot be read as PNG"),
    "cut off at its header": (PNG[:20], "cannot be read as PNG"),
    "a JPEG that is cut off": (JPEG[:300], "cannot be read as JPEG"),
    "other data": (b"%PDF-1.7 no picture", "is not a picture of PNG, JPEG"),
    "nothing": (b"", "is not a picture of PNG, JPEG"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_pictures_that_mean_harm_are_refused_in_one_sentence(server, case):
    content, said = REFUSED[case]
    answer = chat(server, [user(part(PNG), part(content))])
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert any(each in error["message"] for each in said.split("|")), error
    assert error["param"] == "messages.0.content.1.image_url.url"
    assert error["message"].startswith("messages.0.content.1.image_url.url ")
    assert "\n" not in error["message"] and len(error["message"]) < 300


ODD = {
    "16 bits": saved(Image.fromarray(pixels()[..., 0].astype(np.uint16) * 257)),
    "an animation": saved(Image.fromarray(pixels()), "GIF", save_all=True, append_images=[Image.fromarray(pixels(1))]),
    "CMYK": saved(Image.fromarray(pixels()).convert("CMYK"), "JPEG"),
    "transparent": saved(Image.fromarray(np.dstack([pixels(), pixels(1)[..., :1]]))),
    "one pixel": saved(Image.new("RGB", (1, 1))),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_pictures_are_read_as_the_runtime_reads_them(server, model, case):
    answer = chat(server, [user(part(ODD[case]))])
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == expected(model, [IMAGE, TEXT], [ODD[case]]).text


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        ([user({"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}})],
         "messages.0.content.0.image_url.url", "it begins with 'https', and a picture must be in the request"),
        ([user({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}})],
         "messages.0.content.0.image_url.url", "reads no files for its clients"),
        ([user({"type": "image_url", "image_url": "data:image/png;base64,%%%"})],
         "messages.0.content.0.image_url.url", "is not in base64"),
        ([{"role": "system", "content": [part(PNG)]}, user()],
         "messages.0.content.0.image_url.url", "pictures stand in messages of the user, and this one is of the system"),
        ([user(*[part(PNG)] * 17)], "messages.0.content.16.image_url.url", "has 17 pictures; this server takes 16"),
        ([user({"type": "image_url", "image_url": {"url": url(PNG), "detail": "extreme"}})],
         "messages.0.content.0.image_url.detail", "Input should be 'auto', 'low' or 'high'"),
    ],
)  # fmt: skip
def test_wrong_parts_are_named_by_their_path(server, messages, param, said):
    answer = chat(server, messages)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert said in error["message"]


def test_other_apis_name_their_own_paths(server):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%%%"}}
    error = server.post("/v1/messages", {"messages": [user(image)], "max_tokens": 4}).json()["error"]
    assert error["param"] == "messages.0.content.0.source.data" and "is not in base64" in error["message"]
    image["source"] = {"type": "url", "url": "https://example.org/cat.png"}
    error = server.post("/v1/messages", {"messages": [user(image)], "max_tokens": 4}).json()["error"]
    assert error["param"] == "messages.0.content.0.source.url" and "fetches nothing" in error["message"]
    image["source"] = {"type": "url"}
    error = server.post("/v1/messages", {"messages": [user(image)], "max_tokens": 4}).json()["error"]
    assert error["param"] == "messages.0.content.0.source.url" and "Field required" in error["message"]
    image["source"] = {"type": "file", "file_id": "file-1"}
    error = server.post("/v1/messages", {"messages": [user(image)], "max_tokens": 4}).json()["error"]
    assert error["param"] == "messages.0.content.0.source.type" and "stores no files" in error["message"]
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "http://example.org/cat.png"}]}
    error = server.post("/v1/responses", {"input": [item]}).json()["error"]
    assert error["param"] == "input.0.content.0.image_url" and "fetches nothing" in error["message"]
    item = {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}
    error = server.post("/v1/responses", {"input": [item]}).json()["error"]
    assert error["param"] == "input.0.content.0.image_url" and "no files are stored" in error["message"]


def test_a_model_of_text_says_that_it_reads_no_pictures(server):
    error = chat(server, [user(part(PNG))], model="tiny-llama").json()["error"]
    assert error["message"] == (
        "messages.0.content.0.image_url.url: the model 'tiny-llama' reads text, and no pictures."
    )
    assert error["code"] == "wrong_model"
    described = {each["id"]: each["input_modalities"] for each in server.get("/v1/models").json()["data"]}
    assert described == {"smolvlm": ["text", "image"], "tiny-llama": ["text"]}


def test_limits_are_checked_before_anything_is_decoded(smolvlm_bundle):
    never = patch.object(Tiles, "read", side_effect=AssertionError("it was decoded"))
    options = {"max_prompt_tokens": 60, "max_picture_bytes": 20_000, "max_picture_pixels": 10_000, "max_pictures": 2}
    with running([smolvlm_bundle], **options) as server, never:
        for pictures, said in [
            ([PNG], "the prompt has"),
            ([saved(Image.fromarray(pixels(0, 101, 100)))], "bytes; this server takes 20,000"),
            ([saved(Image.new("RGB", (101, 100)))], "101 × 100 pixels, 10,100 in all; this server takes 10,000"),
            ([PNG] * 3, "3 pictures; this server takes 2"),
        ]:
            answer = chat(server, [user(*map(part, pictures))])
            assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text
        assert chat(server, [user(part(PNG))]).json()["error"]["code"] == "context_length_exceeded"


def test_bodies_may_be_larger_where_a_model_sees(server, tiny_llama_bundle):
    large = saved(Image.fromarray(pixels(0, 1300, 1300)))
    assert len(large) > 4 << 20
    answer = chat(server, [user(part(large))])
    assert answer.status_code == 200, answer.text
    with running([tiny_llama_bundle]) as text_only:
        assert chat(text_only, [user(part(large))]).status_code == 413
    assert chat(server, [user({"type": "text", "text": "a" * (32 << 20)})]).status_code == 413


def test_logs_have_no_whole_pictures():
    body = ChatBody(messages=[user(part(PNG))])
    shown = body.messages[0].model_dump(exclude_none=True)["content"][0]["image_url"]["url"]
    assert shown.startswith("data:image/png;base64,") and shown.endswith("characters)") and len(shown) < 80
