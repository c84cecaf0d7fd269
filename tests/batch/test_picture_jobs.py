"""Jobs over rows with pictures: a column of paths, URLs or bytes, and messages with parts."""

import base64
import io
import json

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rows_of_jobs import read_parquet, run

from edgeformer.batch import verbs
from edgeformer.errors import RequestError
from edgeformer.runtime import load

OPTIONS = {"generation": {"max_new_tokens": 6, "ignore_eos": True}}


def png(seed):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 60, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


PICTURES = [png(seed) for seed in range(3)]
DATA_URL = f"data:image/png;base64,{base64.b64encode(PICTURES[2]).decode()}"


@pytest.fixture(scope="module")
def model(smolvlm_bundle):
    return load(smolvlm_bundle, "cpu", 1)


def answer(model, prompt, images):
    return model.generate(prompt, images=images, max_new_tokens=6, ignore_eos=True).text


def chat_answer(model, content, images):
    messages = [{"role": "user", "content": content}]
    return model.chat(messages, images=images, max_new_tokens=6, ignore_eos=True).finish().text


def test_a_column_has_paths_urls_and_lists(smolvlm_bundle, model, tmp_path, monkeypatch):
    monkeypatch.setattr(verbs, "PICTURE_ROWS", 2)
    (tmp_path / "in" / "pictures").mkdir(parents=True)
    (tmp_path / "in" / "pictures" / "a.png").write_bytes(PICTURES[0])
    fsspec.filesystem("memory").pipe_file("/of_a_job/b.png", PICTURES[1])
    rows = [
        ("<image> What?", "pictures/a.png", [0]),
        ("<image> What?", "memory://of_a_job/b.png", [1]),
        ("<image> and <image>", [DATA_URL, "pictures/a.png"], [2, 0]),
        ("no picture", None, []),
        ("<image> What?", str(tmp_path / "in" / "pictures" / "a.png"), [0]),
        ("<image> What?", "pictures/none.png", None),
        ("no placeholder", "pictures/a.png", None),
        ("<image>", "data:image/png;base64,%%%", None),
        ("<image>", 5, None),
    ]
    lines = [json.dumps({"prompt": prompt, "image": value}) for prompt, value, _ in rows]
    (tmp_path / "in" / "rows.jsonl").write_text("\n".join(lines))
    job, commits = run(smolvlm_bundle, tmp_path / "in" / "rows.jsonl", tmp_path / "out", **OPTIONS)
    assert job.media == "image" and commits[0].errors == 4
    for (prompt, _, pictures), found in zip(rows, read_parquet(tmp_path / "out"), strict=True):
        if pictures is None:
            assert found["output"] is None and len(found["error"]) > 20
        else:
            assert found["output"] == answer(model, prompt, [PICTURES[index] for index in pictures])
            assert found["prompt_tokens"] == len(model.see(prompt, [PICTURES[index] for index in pictures]))


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_parquet_has_pictures_as_bytes(smolvlm_bundle, model, tmp_path, form):
    images = pa.array([{"bytes": PICTURES[0], "path": "a.png"}, {"bytes": PICTURES[1], "path": None}, None])
    table = pa.table({"text": ["<image> What?", "<image> Which?", "None."], "picture": images})
    pq.write_table(table, tmp_path / "rows.parquet")
    _, commits = run(
        smolvlm_bundle, tmp_path / "rows.parquet", tmp_path / "out", images="picture", format=form, **OPTIONS
    )
    wanted = [answer(model, "<image> What?", PICTURES[:1]), answer(model, "<image> Which?", PICTURES[1:2])]
    if form == "parquet":
        assert [row["output"] for row in read_parquet(tmp_path / "out")][:2] == wanted
    else:
        rows = [json.loads(line) for line in (tmp_path / "out" / "part-00000000.jsonl").read_text().splitlines()]
        assert [row["output"] for row in rows][:2] == wanted
        assert base64.b64decode(rows[0]["picture"]["bytes"]) == PICTURES[0]
    assert commits[0].errors == 0


def test_messages_have_parts_as_on_the_server(smolvlm_bundle, model, tmp_path):
    (tmp_path / "a.png").write_bytes(PICTURES[0])
    what, image = {"type": "text", "text": "What is it?"}, {"type": "image"}
    rows = [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA_URL}}, what]}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"}, what]}]},
        {"messages": [{"role": "user", "content": [image, what]}], "image": "a.png"},
        {"messages": "What is it?", "image": "a.png"},
        {"messages": [{"role": "user", "content": [what]}]},
        {"messages": [{"role": "user", "content": [image, what]}]},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run(smolvlm_bundle, tmp_path / "rows.jsonl", tmp_path / "out", verb="chat", **OPTIONS)
    found = read_parquet(tmp_path / "out")
    wanted = [chat_answer(model, [image, what], [PICTURES[index]]) for index in (2, 0, 0, 0)]
    assert [row["output"] for row in found[:5]] == [*wanted, chat_answer(model, [what], ())]
    assert "neither the part nor the column of pictures has one" in found[5]["error"]


def test_an_encoder_embeds_texts_with_pictures(modernvbert_bundle, tmp_path):
    for index in range(2):
        (tmp_path / f"{index}.png").write_bytes(PICTURES[index])
    rows = [
        {"text": "a page <image>", "image": "0.png"},
        {"text": "no picture", "image": None},
        {"text": "<image><image>", "image": ["1.png", "0.png"]},
        {"text": "no placeholder", "image": "0.png"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run(modernvbert_bundle, tmp_path / "rows.jsonl", tmp_path / "out", verb="embed")
    found, model = read_parquet(tmp_path / "out"), load(modernvbert_bundle, "cpu", 1)
    shown = [PICTURES[:1], [], PICTURES[1::-1]]
    expected = model.embed([row["text"] for row in rows[:3]], images=shown)
    np.testing.assert_allclose([row["output"] for row in found[:3]], expected, atol=1e-5)
    assert [row["prompt_tokens"] for row in found[:3]] == [
        len(model.see(row["text"], images)) for row, images in zip(rows, shown, strict=False)
    ]
    assert "no placeholders of pictures" in found[3]["error"]


def test_what_reads_no_pictures_says_so(smolvlm_bundle, llama, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "a", "image": "a.png"}))
    with pytest.raises(RequestError, match="images names a column of pictures, and this bundle reads none"):
        run(llama, tmp_path / "rows.jsonl", tmp_path / "out", images="image")
    with pytest.raises(RequestError, match="perplexity reads none"):
        run(smolvlm_bundle, tmp_path / "rows.jsonl", tmp_path / "out", images="image", verb="perplexity")
    with pytest.raises(RequestError, match="the input has no column 'picture'; it has 'text', 'image'"):
        run(smolvlm_bundle, tmp_path / "rows.jsonl", tmp_path / "out", images="picture")
    job, commits = run(llama, tmp_path / "rows.jsonl", tmp_path / "out", **OPTIONS)
    assert job.media is None and commits[0].errors == 0
