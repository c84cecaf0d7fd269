"""Verbs of jobs that need other models than the presets, inputs and outputs by URLs, and Parquet that changes."""

import json
import wave

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import speech_model
import tokenizers
from rows_of_jobs import read_parquet, run, write_jsonl
from thinking_bundles import Script, with_template

from edgeformer.batch.pieces import read_rows, scan
from edgeformer.batch.storage import Folder
from edgeformer.batch.verbs import choose_verb
from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import OfflineEngine, load
from edgeformer.runtime.measure.evaluation import score_text

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 24,
}  # fmt: skip
TEXTS = ["w9 w8 w7", "w20", "w9 " * 40, "w21 w22 w23 w24 w25 w26"]
"""Of which the third is beyond the context."""


@pytest.fixture(scope="module")
def bert(make_model, tmp_path_factory):
    """Return a function from the head of a small random BERT to its bundle."""

    def make(head, **options):
        folder = make_model("bert", 3, auto=head, **SIZES, **options)
        vocabulary = {token: id for id, token in enumerate(SPECIAL)} | {f"w{id}": id for id in range(5, 32)}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        backend.add_special_tokens(SPECIAL)
        backend.save(str(folder / "tokenizer.json"))
        names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | names)
        )
        return export_model(folder, tmp_path_factory.mktemp("bundles") / head, verify=None).path

    return make


def write_texts(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_classes_are_the_models_and_long_texts_are_error_rows(bert, tmp_path):
    bundle = bert("AutoModelForSequenceClassification", id2label={0: "bad", 1: "so-so", 2: "good"})
    write_texts(tmp_path / "rows.jsonl", TEXTS)
    _, [commit] = run(bundle, tmp_path / "rows.jsonl", tmp_path / "out")
    found = read_parquet(tmp_path / "out")
    assert commit.errors == 1 and "tokens, and the model takes 24" in found.pop(2)["error"]
    for row in found:
        alone = load(bundle, "cpu", 1).classify(row["text"])
        assert row["output"] == alone[0].label and row["prompt_tokens"] == len(row["text"].split()) + 2
        assert [score["label"] for score in row["scores"]] == [each.label for each in alone]
        np.testing.assert_allclose(
            [score["score"] for score in row["scores"]], [e.probability for e in alone], atol=1e-6
        )
    assert found[0]["scores"] != found[1]["scores"]


def test_masks_are_filled_and_a_row_without_one_is_an_error_row(bert, tmp_path):
    bundle = bert("AutoModelForMaskedLM")
    write_texts(tmp_path / "rows.jsonl", ["w9 [MASK] w7", "w9", "[MASK]"])
    run(bundle, tmp_path / "rows.jsonl", tmp_path / "out", format="jsonl")
    first, second, third = map(json.loads, (tmp_path / "out/part-00000000.jsonl").read_text().splitlines())
    model = load(bundle, "cpu", 1)
    for row in (first, third):
        alone = model.fill_mask(row["text"])
        assert (row["output"], row["error"]) == (alone[0].text, None)
        assert row["scores"] == [{"label": each.token, "score": each.probability} for each in alone]
    assert second["output"] is None and second["scores"] is None and "has 0 masks" in second["error"]


def test_a_model_that_labels_tokens_has_no_class_for_a_row(bert):
    bundle = bert("AutoModelForTokenClassification", id2label={0: "O", 1: "NAME"})
    with pytest.raises(RequestError, match=r"this bundle \(encoder\) cannot classify; it can embed"):
        choose_verb(Manifest.read(bundle), "classify")


def test_the_perplexity_of_a_row_is_that_of_its_text_alone(llama, tmp_path):
    write_texts(tmp_path / "rows.jsonl", ["Once upon a time there was a cat.", "", "Zq xj vvk"])
    run(llama, tmp_path / "rows.jsonl", tmp_path / "out", verb="perplexity")
    good, empty, odd = read_parquet(tmp_path / "out")
    model = load(llama, "cpu", 1)
    for row in (good, odd):
        score = score_text(model, row["text"])
        assert row["output"] == pytest.approx(score.perplexity, rel=1e-6) and row["prompt_tokens"] == score.tokens + 1
    assert odd["output"] > 10 * good["output"], "the model was trained on such stories, not on noise"
    assert empty["output"] is None and empty["error"]


def test_a_broken_recording_of_a_folder_is_an_error_row(make_model, tmp_path):
    bundle = speech_model.speech_model(make_model, tmp_path).path
    folder = tmp_path / "sounds"
    folder.mkdir()
    for place in range(2):
        seconds = np.arange(16_000) / 16_000
        samples = (np.sin(2 * np.pi * (300 + 900 * place) * seconds) * 12_000).astype("<i2")
        with wave.open(str(folder / f"{place}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(samples.tobytes())
    (folder / "2.wav").write_bytes(b"RIFF, but nothing else")
    options = {"language": "de", "max_new_tokens": 12, "no_repeat_ngram_size": 2}
    _, [commit] = run(bundle, folder, tmp_path / "out", generation=options)
    found = read_parquet(tmp_path / "out")
    model = load(bundle, "cpu", 1)
    assert [row["output"] for row in found[:2]] == [model.transcribe(row["path"], **options) for row in found[:2]]
    assert commit.errors == 1 and found[2]["output"] is None and "2.wav" in found[2]["error"]


def test_a_job_reads_and_writes_by_urls_and_goes_on(embed, tmp_path):
    rows = write_jsonl(tmp_path / "rows.jsonl", 10)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/rows.jsonl", (tmp_path / "rows.jsonl").read_bytes())
    try:
        job, commits = run(embed, "memory://bucket/rows.jsonl", "memory://bucket/out", shard_rows=4)
        assert [commit.rows for commit in commits] == [4, 4, 2] and job.files[0][
            "path"
        ] == "memory:///bucket/rows.jsonl"
        names = ["part-00000000.parquet", "part-00000001.parquet", "part-00000002.parquet"]
        assert sorted(Folder("memory://bucket/out").sizes()) == names
        with memory.open("/bucket/out/part-00000001.parquet") as file:
            assert [row["text"] for row in pq.read_table(file).to_pylist()] == [row["text"] for row in rows[4:8]]
        before = memory.cat_file("/bucket/out/part-00000002.parquet")
        memory.rm_file("/bucket/out/_job/commits/00000002.json")
        assert run(embed, "memory://bucket/rows.jsonl", "memory://bucket/out", shard_rows=4)[1] == commits
        assert memory.cat_file("/bucket/out/part-00000002.parquet") == before
    finally:
        memory.rm("/bucket", recursive=True)


@pytest.mark.parametrize("shard_rows", [2, 5, 7])
def test_a_parquet_file_that_changes_under_a_job_is_refused(tmp_path, shard_rows):
    path = tmp_path / "rows.parquet"
    table = pa.table({"id": list(range(12)), "text": [f"row {index}" for index in range(12)]})
    pq.write_table(table, path, row_group_size=5)
    pieces = scan(str(path), shard_rows).pieces
    assert [row["id"] for piece in pieces for row in read_rows(piece)] == list(range(12))
    hashes = [piece.sha256 for piece in pieces]
    pq.write_table(table.set_column(1, "text", [["row x"] * 12]), path, row_group_size=5)
    assert all(a != b.sha256 for a, b in zip(hashes, scan(str(path), shard_rows).pieces, strict=True))
    others = scan(str(path), shard_rows).pieces
    pq.write_table(table, path, row_group_size=5)
    assert read_rows(pieces[0])[0]["text"] == "row 0", "it is what it was"
    with pytest.raises(RequestError, match="rows.parquet has changed since the job began. Begin anew"):
        read_rows(others[0])
    path.write_bytes(b"no Parquet at all")
    with pytest.raises(RequestError, match="rows.parquet has changed since the job began"):
        read_rows(others[1])


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_what_a_model_thinks_is_a_column_of_its_own(tiny_llama_bundle, tmp_path, monkeypatch, form):
    bundle = with_template(tiny_llama_bundle, tmp_path / "thinks", special=True)
    submit = OfflineEngine.submit

    def scripted(engine, prompt, **options):
        said = Script(load(bundle, "cpu", 1).tokenizer, "<think>\nI add.\n</think>\n\nIt is 7.")
        return submit(engine, prompt, logits_processors=[said], **options)

    monkeypatch.setattr(OfflineEngine, "submit", scripted)
    (tmp_path / "chats.jsonl").write_text(json.dumps({"prompt": "What is 3 + 4?"}) + "\n")
    run(bundle, tmp_path / "chats.jsonl", tmp_path / "out", verb="chat", format=form)
    if form == "parquet":
        [row] = read_parquet(tmp_path / "out")
    else:
        row = json.loads(next((tmp_path / "out").glob("part-*")).read_text())
    assert (row["output"], row["reasoning_content"], row["finish_reason"]) == ("It is 7.", "I add.", "eos")
    plain = run(tiny_llama_bundle, tmp_path / "chats.jsonl", tmp_path / "plain", verb="chat", format=form)[1]
    assert plain[0].errors == 0
