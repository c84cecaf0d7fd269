"""Vectors of pictures, and of texts beside them, over HTTP."""

import base64
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from running_server import running

from edgeformer.export import export_model
from edgeformer.runtime import load
from edgeformer.server.endpoints import picture_inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "families"))
from dual_rows import make_dual

TEXTS = ["a photo of a cat", "two dogs"]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A dual encoder, its tower alone, and tiny-embed."""
    place = tmp_path_factory.mktemp("pictures")
    models = {"clip": make_dual("clip", "end", place / "checkpoint").folder, "tiny-embed": "tiny-embed"}
    return {
        name: export_model(model, place / name, precision="fp32", verify=None).path for name, model in models.items()
    }


@pytest.fixture(scope="module")
def server(bundles):
    with running(list(bundles.values())) as server:
        yield server


def picture(seed, kind="PNG", size=(40, 50)):
    """Return a picture as the content of a file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def part(content, kind="png"):
    """Return the part of a request with a picture in it."""
    url = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def test_texts_and_pictures_have_vectors_in_their_order(server, bundles):
    files = [picture(1), picture(2, "JPEG")]
    given = [TEXTS[0], part(files[0]), {"type": "text", "text": TEXTS[1]}, part(files[1], "jpeg")]
    answer = server.post("/v1/embeddings", {"model": "clip", "input": given}).json()
    model = load(bundles["clip"], "cpu", 1)
    texts, pictures = model.embed(TEXTS), model.embed(images=files)
    expected = [texts[0], pictures[0], texts[1], pictures[1]]
    assert [each["index"] for each in answer["data"]] == [0, 1, 2, 3]
    np.testing.assert_allclose([each["embedding"] for each in answer["data"]], expected, atol=1e-6)
    assert answer["usage"]["prompt_tokens"] == 2 * 17 + 7 + 4
    alone = server.post("/v1/embeddings", {"model": "clip", "input": TEXTS[0]}).json()
    np.testing.assert_allclose(alone["data"][0]["embedding"], texts[0], atol=1e-6)
    [cut] = server.post("/v1/embeddings", {"model": "clip", "input": [part(files[0])], "dimensions": 4}).json()["data"]
    np.testing.assert_allclose(cut["embedding"], pictures[0][:4] / np.linalg.norm(pictures[0][:4]), atol=1e-6)


def test_an_encoder_of_both_reads_pictures_as_texts(modernvbert_bundle):
    files, model = [picture(1), picture(2, "JPEG")], load(modernvbert_bundle, "cpu", 1)
    given = [TEXTS[0], part(files[0]), {"type": "text", "text": TEXTS[1]}, part(files[1], "jpeg")]
    expected = model.embed(
        [TEXTS[0], "<image>", TEXTS[1], "<image>"], images=[[], files[:1], [], files[1:]]
    )  # fmt: skip
    with running([modernvbert_bundle]) as server:
        answer = server.post("/v1/embeddings", {"input": given}).json()
        np.testing.assert_allclose([each["embedding"] for each in answer["data"]], expected, atol=1e-5)
        tokens = [len(model.see("<image>", [file])) for file in files]
        assert answer["usage"]["prompt_tokens"] == sum(tokens) + sum(len(model.encode(text)) for text in TEXTS)
        alone = server.post("/v1/embeddings", {"input": TEXTS}).json()
        np.testing.assert_allclose([each["embedding"] for each in alone["data"]], expected[::2], atol=1e-5)
        [listed] = server.get("/v1/models").json()["data"]
        assert (listed["task"], listed["input_modalities"]) == ("image-text-encoder", ["text", "image"])
        for wrong, said in (
            ([part(b"text")], "input.0.image_url.url is not a picture of PNG, JPEG"),
            (["<image> a", part(files[0])], "1 placeholder of pictures"),
            ("<image> a", "1 placeholder of pictures"),
        ):
            refused = server.post("/v1/embeddings", {"input": wrong})
            assert refused.status_code == 400 and said in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "input is empty"),
        ([part(b"text")], "input.0.image_url.url is not a picture of PNG, JPEG"),
        ([part(picture(1)[:200])], "cannot be read as PNG"),
        ([{"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}], "it begins with 'https', and a"),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "reads no files for its clients"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}], "is not in base64"),
        ([{"type": "image_url", "image_url": {"url": "data:text/plain;base64,aaaa"}}], "it begins with 'data'"),
        ([{"type": "image_url", "text": "cat"}], "a part of the type image_url has image_url, and no text"),
        ([{"type": "text"}], "a part of the type text has text, and no image_url"),
        ([{"type": "video", "text": "x"}], "there are texts and pictures"),
        ([5, 6], "it must be a text or a picture, and no token ids"),
        (["a"] * 65, "input has 65 texts and pictures; 64 are allowed"),
    ],
)
def test_what_is_no_picture_is_refused(server, given, said):
    answer = server.post("/v1/embeddings", {"model": "clip", "input": given})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert said in error["message"], error
    assert error["param"].startswith("input")


def test_sizes_are_checked_before_a_picture_is_decoded(server, monkeypatch):
    monkeypatch.setattr("edgeformer.runtime.media.pictures.picture_files.MOST_PIXELS", 1000)
    answer = server.post("/v1/embeddings", {"model": "clip", "input": [part(picture(1))]})
    assert answer.status_code == 400
    assert "2,000 in all; a picture may have 1,000" in answer.json()["error"]["message"]
    monkeypatch.setattr("edgeformer.runtime.media.pictures.picture_files.MOST_BYTES", 100)
    answer = server.post("/v1/embeddings", {"model": "clip", "input": [part(picture(1))]})
    assert "bytes; a picture may have 100" in answer.json()["error"]["message"]
    monkeypatch.setattr(picture_inputs, "MOST_INPUTS", 1)
    answer = server.post("/v1/embeddings", {"model": "clip", "input": ["a", part(picture(1))]})
    assert "input has 2 texts and pictures; 1 are allowed" in answer.json()["error"]["message"]


def test_models_say_what_they_read(server):
    answer = server.post("/v1/embeddings", {"model": "tiny-embed", "input": [part(picture(1))]})
    assert "reads texts, and no pictures" in answer.json()["error"]["message"]
    texts = {"model": "tiny-embed", "input": [{"type": "text", "text": "A dog barks."}]}
    plain = {"model": "tiny-embed", "input": "A dog barks."}
    found = [server.post("/v1/embeddings", body).json()["data"][0]["embedding"] for body in (texts, plain)]
    assert found[0] == pytest.approx(found[1])
    answer = server.post("/v1/completions", {"model": "clip", "prompt": "a"})
    assert "it answers at /v1/embeddings" in answer.json()["error"]["message"]
