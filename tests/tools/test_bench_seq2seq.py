"""The encoder-decoder benchmark measures systems that do the same work, and fails if one does not."""

import json
import sys

import pytest
from benchmarks import interleave
from benchmarks.encoders import bench_seq2seq
from click.testing import CliRunner

OPTIONS = ["--geometry", "tiny", "--source", "16", "--new", "8", "--rounds", "1", "--threads", "1"]

# A stand-in for the part of CTranslate2 that the worker uses; transformers computes its answers.
CTRANSLATE2 = """
from types import SimpleNamespace
import torch, transformers

__version__ = "stand-in"

class Translator:
    def __init__(self, folder, device, compute_type, intra_threads, inter_threads):
        assert device == "cpu" and compute_type in ("float32", "int8") and inter_threads == 1
        torch.set_num_threads(intra_threads)
        checkpoint = open(folder).read()
        self.model = transformers.T5ForConditionalGeneration.from_pretrained(checkpoint).eval()
        self.compute_type = compute_type
        print("this is no answer")

    def translate_batch(self, sources, beam_size, max_decoding_length, max_input_length, max_batch_size):
        ids = torch.tensor([[int(token) for token in source] for source in sources])
        mask = torch.ones_like(ids)
        rows = self.model.generate(ids, attention_mask=mask, max_new_tokens=max_decoding_length, num_beams=beam_size)
        return [SimpleNamespace(hypotheses=[[str(token) for token in row[1:]]]) for row in rows.tolist()]
"""

CONVERTERS = """
class TransformersConverter:
    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def convert(self, folder):
        tokenizer = self.load_tokenizer(None, self.checkpoint)
        vocabulary = tokenizer.get_vocab()
        assert len(vocabulary) == 512 and vocabulary[tokenizer.eos_token] == 1
        assert tokenizer.convert_ids_to_tokens(0) == tokenizer.pad_token
        open(folder, "w").write(str(self.checkpoint))
"""


def run(*arguments):
    return CliRunner().invoke(bench_seq2seq.main, [str(argument) for argument in arguments])


@pytest.fixture
def ctranslate2(tmp_path, monkeypatch):
    """Return options under which this interpreter has CTranslate2."""
    package = tmp_path / "site" / "ctranslate2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CTRANSLATE2)
    (package / "converters.py").write_text(CONVERTERS)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return ["--ctranslate2-python", sys.executable]


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_the_report_holds_speeds_and_ratios_of_all_three_systems(ctranslate2, tmp_path, beams):
    file = tmp_path / "report.json"
    result = run(*OPTIONS, "--batch", "2", "--beams", beams, "--json", file, *ctranslate2)

    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert list(data["tokens_per_second"]) == ["edgeformer", "transformers sdpa", "ctranslate2"]
    for speed in data["tokens_per_second"].values():
        assert 0 < speed["low"] <= speed["median"] <= speed["high"]
    ours, theirs = (data["tokens_per_second"][name]["median"] for name in ("edgeformer", "ctranslate2"))
    assert data["edgeformer_over"]["ctranslate2"]["median"] == pytest.approx(ours / theirs)
    assert data["same_leading_tokens"] == {"transformers sdpa": 8, "ctranslate2": 8}
    assert data["environment"]["onnxruntime"]
    assert data["ctranslate2_environment"]["ctranslate2"] == "stand-in"
    assert f"16 + 8 tokens, batch 2, beams {beams}, 1 threads" in result.stdout


@pytest.mark.slow
def test_ours_and_ctranslate2_run_over_int8_weights(ctranslate2, tmp_path):
    result = run(*OPTIONS, "--precision", "int8", "--json", tmp_path / "report.json", *ctranslate2)

    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "report.json").read_text())["ctranslate2_environment"]["compute_type"] == "int8"
    assert "tiny, int8: 16 + 8 tokens" in result.stdout


def test_ctranslate2_without_its_interpreter_is_left_out():
    result = run(*OPTIONS)

    assert result.exit_code == 0, result.output
    assert "8 of 8 tokens agree with transformers sdpa" in result.stdout
    assert "CTranslate2 was left out" in result.stdout


def test_an_interpreter_without_ctranslate2_is_a_one_line_error(capfd):
    result = run(*OPTIONS, "--ctranslate2-python", sys.executable)

    assert result.exit_code == 1
    assert "the CTranslate2 worker ended" in result.stderr
    assert "No module named 'ctranslate2'" in capfd.readouterr().err


def test_the_random_model_never_ends_and_listens_to_its_source(tmp_path):
    """Otherwise systems would do different work, or agree whatever they compute."""
    bench_seq2seq.write_checkpoint("tiny", tmp_path / "tiny")
    transformers = bench_seq2seq.transformers_system(tmp_path / "tiny", threads=1)
    sources = [list(range(3, 19)), list(range(103, 119))]
    first, second = transformers(sources, 48, 1).tokens

    assert len(first) == len(second) == 48
    assert bench_seq2seq.EOS not in first + second
    assert first[:4] != second[:4]
    assert len(set(first)) > 2 and len(set(second)) > 2


def made(tokens):
    return [bench_seq2seq.Run([tokens], 1.0)]


def test_greedy_systems_that_disagree_fail_loudly():
    runs = {"edgeformer": made([5, 6, 7]), "other": made([5, 6, 8])}

    with pytest.raises(bench_seq2seq.click.ClickException, match="edgeformer and other disagree from new token 2 on"):
        bench_seq2seq.report(runs, new=3, beams=1)
    assert bench_seq2seq.report(runs, new=3, beams=4)["same_leading_tokens"] == {"other": 2}
    assert bench_seq2seq.report(runs, new=3, beams=1, precision="int8")["same_leading_tokens"] == {"other": 2}


def test_a_system_that_stops_early_fails_loudly():
    runs = {"edgeformer": made([5, 6, 7]), "other": made([5, 6])}

    with pytest.raises(bench_seq2seq.click.ClickException, match="other generated \\[2\\] tokens instead of 3"):
        bench_seq2seq.report(runs, new=3, beams=4)


def test_systems_take_turns_in_another_order_each_round():
    order = []
    systems = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    results = interleave.run_interleaved(systems, rounds=3, pause_seconds=0)

    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert results == {"a": [4, 9, 11], "b": [5, 7, 12], "c": [6, 8, 10]}


def test_ratios_compare_neighbours_in_time():
    speeds, ratios = interleave.compare({"ours": [2.0, 20.0, 8.0], "theirs": [1.0, 10.0, 2.0]}, "ours")

    assert speeds["ours"] == {"median": 8.0, "low": 2.0, "high": 20.0}
    assert ratios == {"theirs": {"median": 2.0, "low": 2.0, "high": 4.0}}
    assert interleave.cell(ratios["theirs"], 1) == "2.0 (2.0..4.0)"
