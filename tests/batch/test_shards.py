"""edgeformer.batch without Ray: pieces of inputs, prompts, verbs, shards, and the record of a job."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows_of_jobs import read_parquet, run, shards, write_jsonl

from edgeformer.batch import BatchOptions, plan_batch
from edgeformer.batch.bundles import bundle_on_node, check_bundle, chunks
from edgeformer.batch.job import committed
from edgeformer.batch.pieces import read_rows, scan
from edgeformer.batch.prompts import find_column, prompt_of
from edgeformer.batch.storage import Folder
from edgeformer.batch.verbs import Runner, choose_verb, row_seed
from edgeformer.errors import BundleError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load


def rows_of(url, shard_rows):
    return [row for piece in scan(str(url), shard_rows).pieces for row in read_rows(piece)]


@pytest.mark.parametrize("shard_rows", [1, 2, 3, 100])
def test_pieces_of_every_kind_hold_every_row_once(tmp_path, shard_rows):
    rows = [{"id": str(index), "text": f'line {index}\n"quoted", ü'} for index in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    lines = ["id,text", *('{},"line {}\n""quoted"", ü"'.format(row["id"], row["id"]) for row in rows)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=2)
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        assert rows_of(tmp_path / name, shard_rows) == rows, name
        first = [piece.first_row for piece in scan(str(tmp_path / name), shard_rows).pieces]
        assert first == list(range(0, 5, shard_rows))
    texts = tmp_path / "texts"
    texts.mkdir()
    for row in rows:
        (texts / f"{row['id']}.txt").write_text(row["text"])
    assert [row["text"] for row in rows_of(texts, shard_rows)] == [row["text"] for row in rows]
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": "5", "text": ""}))
    assert len(rows_of(tmp_path / "*.jsonl", shard_rows)) == 6


def test_inputs_that_are_none_are_refused(tmp_path):
    with pytest.raises(RequestError, match="there is no input .*Give a file, a folder or a pattern"):
        scan(str(tmp_path / "none.jsonl"), 8)
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(RequestError, match="has no rows. Give an input with at least one"):
        scan(str(tmp_path / "a.jsonl"), 8)
    (tmp_path / "a.xml").write_text("<a/>")
    with pytest.raises(RequestError, match="a.xml does not fit: an input's files all end in one of .jsonl"):
        scan(str(tmp_path), 8)
    with pytest.raises(RequestError, match="cannot open nowhere://x: "):
        scan("nowhere://x", 8)


def test_prompts_come_from_a_column_or_a_template():
    assert find_column(BatchOptions(), "chat", ["text", "prompt"]) == "prompt"
    with pytest.raises(RequestError, match="no column 'text'; it has 'line'. Name one with --column"):
        find_column(BatchOptions(), "embed", ["line"])
    with pytest.raises(RequestError, match="column and template are both given"):
        find_column(BatchOptions(column="a", template="b"), "embed", ["a"])
    assert prompt_of("Say {{ text | upper }}.", None)({"text": "no"}) == "Say NO."
    with pytest.raises(RequestError, match="the template is no Jinja template"):
        prompt_of("{{ text", None)
    with pytest.raises(RequestError, match="does not fit this row: 'title' is undefined"):
        prompt_of("{{ title }}", None)({"text": "no"})
    with pytest.raises(RequestError, match="does not fit this row: .*unsafe"):
        prompt_of("{{ text.__class__.__mro__ }}", None)({"text": "no"})


def test_a_translation_is_that_of_a_plain_loop(translate, tmp_path):
    rows = write_jsonl(tmp_path / "rows.jsonl", 30)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    lines[3], lines[7], lines[20] = (
        "{broken",
        json.dumps({"id": 7, "text": None}),
        json.dumps({"id": "x", "text": "one"}),
    )
    lines[11] = json.dumps({"id": 11, "text": "one " * 2000})
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    _, commits = run(translate, tmp_path / "rows.jsonl", tmp_path / "out", shard_rows=16, generation={"num_beams": 1})
    found = read_parquet(tmp_path / "out")
    assert [commit.errors for commit in commits] == [3, 1] and sum(commit.rows for commit in commits) == 30
    model = load(translate, "cpu", 1)
    for index, (row, result) in enumerate(zip(rows, found, strict=True)):
        if index in (3, 7, 11, 20):
            assert result["output"] is None
            continue
        alone = model.generate(row["text"], num_beams=1)
        assert (result["id"], result["output"], result["finish_reason"]) == (index, alone.text, alone.finish_reason)
        assert (result["prompt_tokens"], result["completion_tokens"]) == (alone.prompt_tokens, len(alone.token_ids))
    assert "the line is not JSON" in found[3]["error"]
    assert found[7]["error"] == "the row has nothing in its column 'text'."
    assert "positions" in found[11]["error"] or "tokens" in found[11]["error"]
    assert found[20]["error"] == "its field 'id' is \"x\", which is no int64."


def test_sampled_rows_draw_by_the_job_seed_and_their_number(llama, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Once"}\n' * 6)
    options = {"max_new_tokens": 12, "temperature": 2.0}
    for name, seed, size in (("a", 1, 6), ("b", 1, 6), ("c", 2, 6), ("d", 1, 2)):
        run(llama, tmp_path / "rows.jsonl", tmp_path / name, shard_rows=size, seed=seed, generation=options,
            format="jsonl")  # fmt: skip
    texts = {name: b"".join(shards(tmp_path / name).values()).decode() for name in "abcd"}
    assert texts["a"] == texts["b"] == texts["d"] and texts["a"] != texts["c"]
    outputs = [json.loads(line)["output"] for line in texts["a"].splitlines()]
    assert len(set(outputs)) > 3, "rows of one prompt draw differently"
    alone = load(llama, "cpu", 1).generate("Once", **options, seed=row_seed(1, 4))
    assert outputs[4] == alone.text


def test_translations_that_sample_draw_by_row(translate, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", 9)
    texts = {}
    for name, seed, rows in (("a", 1, 4), ("b", 1, 2), ("c", 2, 4)):
        run(translate, tmp_path / "rows.jsonl", tmp_path / name, seed=seed, max_rows=rows,
            generation={"temperature": 3.0, "max_new_tokens": 8})  # fmt: skip
        texts[name] = [row["output"] for row in read_parquet(tmp_path / name)]
    assert texts["a"] == texts["b"] != texts["c"]
    model = load(translate, "cpu", 1)
    source = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[5])["text"]
    assert texts["a"][5] == model.generate(source, temperature=3.0, max_new_tokens=8, seed=row_seed(1, 5)).text
    sizes = []
    runner = Runner(model, "translate", BatchOptions(max_rows=4, generation={"num_beams": 1, "max_new_tokens": 8}))
    original = model.generate
    model.generate = lambda sources, **options: (sizes.append(len(sources)), original(sources, **options))[1]
    assert [result.error for result in runner.run(["one cat"] * 9, 0)] == [None] * 9
    assert sizes == [4, 4, 1]


def test_batches_hold_texts_of_similar_length(translate, embed):
    for bundle, verb, name in ((translate, "translate", "generate"), (embed, "embed", "embed_encoded")):
        model = load(bundle, "cpu", 1)
        generation = {"num_beams": 1, "max_new_tokens": 2} if verb == "translate" else {}
        batches, run_batch = [], getattr(model, name)
        setattr(
            model, name, lambda rows, of=batches, run=run_batch, **options: (of.append(rows), run(rows, **options))[1]
        )
        texts = ["a house", "of the in", "internationalization", "ξψω", "friend"] * 20
        counts = [len(model.encode(text)) for text in texts]
        assert sorted(texts, key=len) != sorted(texts, key=lambda text: len(model.encode(text)))
        results = Runner(model, verb, BatchOptions(max_rows=16, generation=generation)).run(texts, 0)
        assert [result.prompt_tokens for result in results] == counts
        tokens = [len(row[0] if verb == "embed" else row) for batch in batches for row in batch]
        assert tokens == sorted(counts) and len(batches) > 2


def test_other_verbs_write_what_the_model_computes(embed, llama, tmp_path):
    rows = write_jsonl(tmp_path / "rows.jsonl", 20)
    run(embed, tmp_path / "rows.jsonl", tmp_path / "vectors")
    found = read_parquet(tmp_path / "vectors")
    alone = load(embed, "cpu", 1).embed([row["text"] for row in rows])
    np.testing.assert_allclose([row["output"] for row in found], alone, atol=1e-6)
    assert pq.read_schema(tmp_path / "vectors" / "part-00000000.parquet").field("output").type == pa.list_(pa.float32())
    pq.write_table(pa.table({"text": ["Once upon a time", "x"]}), tmp_path / "two.parquet")
    run(llama, tmp_path / "two.parquet", tmp_path / "scores", verb="perplexity", prefix="lm_")
    first, second = read_parquet(tmp_path / "scores")
    assert first["lm_output"] > 1 and first["lm_error"] is None and set(first) == {
        "text", "lm_output", "lm_prompt_tokens", "lm_error",
    }  # fmt: skip
    assert second["lm_output"] is None or second["lm_output"] > 0
    (tmp_path / "chat.csv").write_text('question\n"What is 3 + 4?"\n')
    run(llama, tmp_path / "chat.csv", tmp_path / "chat", verb="chat", column="question")
    model = load(llama, "cpu", 1)
    asked = model.chat([{"role": "user", "content": "What is 3 + 4?"}]).finish()
    assert read_parquet(tmp_path / "chat")[0]["output"] == asked.text
    with pytest.raises(RequestError, match=r"this bundle \(encoder\) cannot chat; it can embed"):
        choose_verb(Manifest.read(embed), "chat")


def test_a_job_goes_on_and_a_different_one_is_refused(embed, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", 12)
    output = tmp_path / "out"
    job, _ = run(embed, tmp_path / "rows.jsonl", output, shard_rows=4)
    before = shards(output)
    (output / "part-00000001.parquet").write_bytes(b"torn")
    (output / "_job/commits/00000002.json").unlink()
    assert set(committed(Folder(str(output)), job)) == {0}, "torn and uncommitted shards do not count"
    plan = plan_batch(embed, str(tmp_path / "rows.jsonl"), str(output), BatchOptions(shard_rows=4))
    assert (plan.rows, plan.shards, plan.committed_rows) == (12, 3, 4)
    assert plan.bytes == (tmp_path / "rows.jsonl").stat().st_size and plan.prompt_tokens > 24
    (output / "_job/commits/00000001.json").unlink()
    run(embed, tmp_path / "rows.jsonl", output, shard_rows=4)
    assert shards(output) == before
    with pytest.raises(RequestError, match="holds another job: options, .* differ. Give the same bundle"):
        run(embed, tmp_path / "rows.jsonl", output, shard_rows=6)
    write_jsonl(tmp_path / "rows.jsonl", 12, seed=1)
    with pytest.raises(RequestError, match="holds another job: the input's files differ"):
        run(embed, tmp_path / "rows.jsonl", output, shard_rows=4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with pytest.raises(RequestError, match="is not empty: it has notes"):
        run(embed, tmp_path / "rows.jsonl", tmp_path / "full")


def test_a_bundle_is_copied_to_a_node_once_and_checked(embed, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEFORMER_BATCH_CACHE", str(tmp_path / "cache"))
    from edgeformer.batch.bundles import bundle_hash

    expected, copies = bundle_hash(embed), []

    def get(block):
        copies.append(len(block))
        return block

    parts = chunks(embed, lambda block: block)
    folder = bundle_on_node(embed, expected, parts, get)
    assert folder == tmp_path / "cache" / expected and copies
    count = len(copies)
    assert bundle_on_node(embed, expected, parts, get) == folder and len(copies) == count
    spoilt = tmp_path / "spoilt"
    shutil.copytree(embed, spoilt)
    weights = next(spoilt.glob("onnx/*.onnx_data"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(BundleError, match="onnx_data in .* is damaged: its SHA-256 is another one"):
        check_bundle(spoilt, expected)
    (spoilt / "edgeformer.json").write_text("{}")
    with pytest.raises(BundleError, match="is another bundle than the one that the job began with"):
        check_bundle(spoilt, expected)


def test_a_row_that_kills_its_worker_becomes_an_error_row(embed, tmp_path, monkeypatch):
    rows = write_jsonl(tmp_path / "rows.jsonl", 6)
    calm, deaths, run_rows = read_after(run, embed, tmp_path, "calm"), [], Runner.run

    def deadly(runner, prompts, first_row):
        if rows[4]["text"] in prompts:
            deaths.append(len(prompts))
            raise SystemExit("the process is gone")
        return run_rows(runner, prompts, first_row)

    monkeypatch.setattr(Runner, "run", deadly)
    for _ in range(4):
        with pytest.raises(SystemExit):
            run(embed, tmp_path / "rows.jsonl", tmp_path / "out")
    assert deaths == [6, 6, 1, 1], "twice the shard, then twice the row alone"
    _, [commit] = run(embed, tmp_path / "rows.jsonl", tmp_path / "out")
    found = read_parquet(tmp_path / "out")
    assert commit.errors == 1 and found[4]["error"] == "2 workers died while they ran this row alone."
    for index in (0, 1, 2, 3, 5):
        np.testing.assert_allclose(found[index]["output"], calm[index]["output"], atol=1e-6)
    assert not list((tmp_path / "out/_job/attempts").iterdir())


def read_after(run, bundle, folder, name):
    run(bundle, folder / "rows.jsonl", folder / name)
    return read_parquet(folder / name)


def test_options_and_columns_are_checked(embed, tmp_path):
    with pytest.raises(RequestError, match="shard_rows is 0; it must be a whole number from 1"):
        BatchOptions(shard_rows=0)
    with pytest.raises(RequestError, match="verb is 'sing'; it must be one of"):
        BatchOptions(verb="sing")
    with pytest.raises(RequestError, match="give the job's own seed instead"):
        BatchOptions(generation={"seed": 1})
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "output": 1}\n')
    with pytest.raises(RequestError, match="has a column 'output' already. Give the new ones other names: --prefix"):
        run(embed, tmp_path / "rows.jsonl", tmp_path / "out")


def test_a_pattern_that_is_none_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"the pattern .*2\*\*63 cannot be read: Invalid pattern"):
        scan(str(tmp_path / "2**63"), 8)
