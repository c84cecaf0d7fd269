"""tools/benchmarks/quantization_loss.py: known figures, a worse quantization config measured as worse, and peers."""

import ctypes
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import click
import gguf
import numpy as np
import pytest
import torch
from benchmarks import quantization_loss
from benchmarks.peers.process import read_texts
from benchmarks.peers.registry import IMATRIX, IMATRIX_FORMATS, OURS, PEERS, Peer
from benchmarks.peers.worker import peer as imported
from benchmarks.quality import dither, losses
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from edgeformer.checkpoints.found_model import PRESETS

# A runtime that opens edgeformer's bundle, so that it is exact without a planted fault.
STAND_IN = """
import os
from pathlib import Path

import numpy as np
from edgeformer.runtime import load

def convert(checkpoint, folder, precision):
    assert (checkpoint / "model.safetensors").is_file()
    matrix = "importance matrix" in precision
    (folder / "weights").write_bytes(Path(os.environ["BENCHMARK_IMATRIX"]).read_bytes() if matrix else bytes(10))

def load_logits(checkpoint, folder, precision, threads):
    model = load({bundle!r}, provider="cpu", threads=threads)
    print("this is no answer")

    def read(text):
        logits = model.forward(text)
        return {logits}

    return read
"""


@pytest.fixture
def stand_in(tmp_path, tiny_llama_bundle):
    """Return a function that writes a runtime whose logits are an expression of the right ones, and registers it."""

    def make(logits):
        file = tmp_path / "stand_in.py"
        file.write_text(STAND_IN.format(bundle=str(tiny_llama_bundle), logits=logits))
        precisions, formats = {"fp32": "exact", "int4": "crude"}, ("Q4_0, importance matrix",)
        peer = Peer(file, ("json",), ("numpy",), precisions, "install it", "weights", imatrix_formats=formats)
        return mock.patch.dict(PEERS, {"stand-in": peer})

    return make


@pytest.fixture
def foreign(tmp_path):
    """Return the preset without its held-out problems, like any other checkpoint."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    for file in (PRESETS / "tiny-llama").iterdir():
        if file.name != "evaluation.jsonl":
            (folder / file.name).symlink_to(file)
    return folder


def measure(*arguments):
    return CliRunner().invoke(quantization_loss.main, [str(part) for part in arguments])


def test_divergence_agreement_and_perplexity_by_hand(tmp_path):
    (tmp_path / "model.onnx_data").write_bytes(bytes(10))
    truth = np.array([[7], [-7]]) + np.log([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])  # logits, of any sum
    ours = np.log([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])

    text = losses.Text([0, 1])

    loss = losses.compare(tmp_path.iterdir(), [ours], [truth], [text])
    assert loss.bytes == 10
    assert (
        loss.kl == loss.kl_anywhere == pytest.approx(0.25 * math.log(2) / 2)
    )  # 0.25 ln ½ + 0.5 ln 2 at the second place
    assert loss.top1 == 0.5
    assert loss.perplexity == pytest.approx(1)  # of token 1 after token 0, of which both say 0.25
    turned = losses.compare([], [ours], [truth[::-1]], [text])
    assert turned.perplexity == pytest.approx(2)


def test_what_follows_a_token_of_a_question_is_told_apart():
    """Tokens 3 and 4 are the question, 5 and 6 the answer: the prediction after token 3 does not count."""
    truth = np.log(np.full((4, 8), 1 / 8))
    ours = truth.copy()
    ours[0] = np.log([0.5, *[0.5 / 7] * 7])
    text = losses.Text([3, 4, 5, 6], asked=2)

    loss = losses.compare([], [ours], [truth], [text])
    divergence = -(math.log(0.5) + 7 * math.log(0.5 / 7)) / 8 - math.log(8)
    assert loss.kl == 0 and loss.top1 == 1 and loss.perplexity == 1
    assert loss.kl_anywhere == pytest.approx(divergence / 4)
    for place in (1, 2, 3):  # after the last token of the question, and after each of the answer
        moved = truth.copy()
        moved[place] = ours[0]
        loss = losses.compare([], [moved], [truth], [text])
        assert loss.kl == pytest.approx(divergence / 3)
        assert (loss.perplexity > 1) == (place < 3)  # the last is followed by nothing


def test_fewer_bits_lose_more(tmp_path, monkeypatch):
    monkeypatch.setattr(quantization_loss, "PROBLEMS", 30)
    file = tmp_path / "loss.json"
    names = ("int4 in blocks of 32, mse", "int8 in blocks of 128, nearest", "bf16")
    only = [part for name in names for part in ("--only", name)]
    result = CliRunner().invoke(quantization_loss.main, ["tiny-llama", *only, "--json", str(file)])

    assert result.exit_code == 0, result.output
    losses = json.loads(file.read_text())["losses"]
    assert losses["bf16"]["kl"] == 0 and losses["bf16"]["top1"] == 1  # the checkpoint is bf16
    four, eight = losses["int4 in blocks of 32, mse"], losses["int8 in blocks of 128, nearest"]
    assert 0 < 5 * eight["kl"] < four["kl"] < 1
    assert four["bytes"] < eight["bytes"] < losses["bf16"]["bytes"]


def test_an_unknown_row_is_an_error_that_lists_them():
    result = CliRunner().invoke(quantization_loss.main, ["tiny-llama", "--only", "int3"])
    assert result.exit_code == 1 and "no row matches --only; the rows are: bf16; " in result.output


def test_peers_beside_ours(stand_in, monkeypatch, tmp_path):
    monkeypatch.setattr(quantization_loss, "PROBLEMS", 10)
    file = tmp_path / "loss.json"
    with stand_in("logits if precision == 'fp32' else logits / 2"):
        result = measure("tiny-llama", "--peer", f"stand-in={sys.executable}", "--only", "crude", "--json", file)

    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert list(data["losses"]) == ["stand-in, exact", "stand-in, crude"]
    exact, crude = data["losses"].values()
    assert exact["bytes"] == 10 and exact["kl"] < 1e-12 and exact["top1"] == 1
    assert crude["kl"] > 0.01 and crude["top1"] == 1  # half of the logits, and the largest is still the largest
    assert data["peers"]["stand-in"]["numpy"] == np.__version__
    assert "stand-in, crude" in result.stdout


def test_a_peer_that_computes_another_model_is_an_error(stand_in, monkeypatch):
    monkeypatch.setattr(quantization_loss, "PROBLEMS", 10)
    with stand_in("np.roll(logits, 1, 0)"):  # a token late
        result = measure("tiny-llama", "--peer", f"stand-in={sys.executable}")

    assert result.exit_code == 1
    assert "stand-in computes another model in float32: its mean KL to ours is" in result.stderr


def test_blocks_of_a_gguf_file_lose_what_their_bits_lose(tmp_path, monkeypatch):
    monkeypatch.setattr(quantization_loss, "PROBLEMS", 10)
    file, kept = tmp_path / "loss.json", ("--reference", tmp_path / "reference")
    result = measure("tiny-llama", "--only", "none", "--gguf", "Q4_0", "--gguf", "Q8_0", "--json", file, *kept)
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    four, eight = (data["losses"][f"GGUF {kind}"] for kind in ("Q4_0", "Q8_0"))
    assert 0 < 5 * eight["kl"] < four["kl"] < 1 and four["bytes"] < eight["bytes"]
    assert data["perplexity"] > 1 and [row[0] for row in data["tables"][0]["rows"]] == ["GGUF Q4_0", "GGUF Q8_0"]
    first = tmp_path / "reference" / "0.npy"
    written = first.stat().st_mtime_ns
    result = measure("tiny-llama", "--only", "none", "--gguf", "Q4_K", *kept)
    assert result.exit_code == 1 and "the package gguf does not write Q4_K." in result.stderr
    assert first.stat().st_mtime_ns == written, "the logits were computed once"
    monkeypatch.setattr(quantization_loss, "PROBLEMS", 9)
    result = measure("tiny-llama", "--only", "none", "--gguf", "Q4_0", *kept)
    assert result.exit_code == 1 and "has the logits of another model or of other texts" in result.stderr


def write_gguf(file, tensors):
    writer = gguf.GGUFWriter(file, "llama")
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.array(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Entry(ctypes.Structure):
    """`llama_model_imatrix_data` of llama.h."""

    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


@pytest.fixture
def llama_cpp(monkeypatch):
    """Import the peer, whose package is not there."""
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(llama_model_imatrix_data=Entry))
    return imported(str(PEERS["llama.cpp"].file))


@pytest.fixture
def small_gguf(tmp_path):
    """Return a file with a matrix of 3 inputs, two experts of 2 inputs and a norm."""
    file = tmp_path / "model.gguf"
    tensors = {"blk.0.attn_q.weight": np.zeros((4, 3)), "blk.0.ffn_up_exps.weight": np.zeros((2, 5, 2))}
    write_gguf(file, tensors | {"blk.0.attn_norm.weight": np.zeros(3)})
    return file


def test_an_importance_matrix_reaches_llama_cpp(llama_cpp, small_gguf, tmp_path):
    """As mean squares; an expert that read no token has ones."""
    file = tmp_path / "imatrix.gguf"
    read = {"blk.0.attn_q.weight.in_sum2": [8, 2, 0], "blk.0.attn_q.weight.counts": [4]}
    experts = {"blk.0.ffn_up_exps.weight.in_sum2": [[6, 3], [0, 0]], "blk.0.ffn_up_exps.weight.counts": [[3], [0]]}
    write_gguf(file, read | experts)

    entries = llama_cpp.imatrix_of(llama_cpp.read_imatrix(file, small_gguf))
    given = [(entry.name, entry.data[: entry.size]) for entry in entries[:-1]]
    assert given == [(b"blk.0.attn_q.weight", [2, 0.5, 0]), (b"blk.0.ffn_up_exps.weight", [2, 1, 1, 1])]
    assert entries[-1].name is None, "llama.cpp reads until there is no name"


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        (b"", "is no GGUF file with an importance matrix."),
        (b"GGUF", "is no GGUF file with an importance matrix."),
        (b"of an older llama-imatrix" * 9, "is no GGUF file with an importance matrix."),
        ({"blk.0.attn_q.weight": [[1]]}, "has no importance matrix; perhaps it is a model."),
        ({"blk.0.attn_q.weight.in_sum2": [1] * 7}, "its blk.0.attn_q.weight has 7 inputs, here 3 inputs."),
        ({"blk.9.attn_q.weight.in_sum2": [1] * 3}, "its blk.9.attn_q.weight has 3 inputs, here no such matrix."),
    ],
)
def test_a_wrong_importance_matrix_is_an_error(llama_cpp, small_gguf, tmp_path, contents, error):
    file = tmp_path / "imatrix.gguf"
    file.write_bytes(contents) if isinstance(contents, bytes) else write_gguf(file, contents)
    with pytest.raises(ValueError, match="llama-imatrix makes one: llama-imatrix -m MODEL.gguf -f TEXT.txt") as raised:
        llama_cpp.read_imatrix(file, small_gguf)
    assert error in str(raised.value)


def test_rows_with_an_importance_matrix(stand_in, monkeypatch, tmp_path):
    """Are there where a file is given, which the converter gets, and stay the peer's without it."""
    monkeypatch.setattr(quantization_loss, "PROBLEMS", 10)
    matrix, file, asked = tmp_path / "imatrix.gguf", tmp_path / "loss.json", ("--peer", f"stand-in={sys.executable}")
    matrix.write_bytes(b"squares")
    with stand_in("logits if precision == 'fp32' else logits / 2"):
        result = measure("tiny-llama", *asked, "--only", "importance", "--imatrix", matrix, "--json", file)
        assert result.exit_code == 0, result.output
        rows = json.loads(file.read_text())["losses"]
        assert list(rows) == ["stand-in, exact", "stand-in, Q4_0, importance matrix"]
        assert rows["stand-in, Q4_0, importance matrix"]["bytes"] == len(b"squares") and IMATRIX not in os.environ
        result = measure("tiny-llama", *asked, "--only", "importance", "--json", file)
        assert result.exit_code == 1 and "no row matches --only" in result.stderr
    assert "Q4_K_S, importance matrix" in IMATRIX_FORMATS


def test_an_importance_matrix_wants_llama_cpp(tmp_path):
    (tmp_path / "imatrix.gguf").touch()
    result = measure("tiny-llama", "--imatrix", tmp_path / "imatrix.gguf")
    assert result.exit_code == 2 and "Give --peer llama.cpp=PYTHON, too." in result.stderr


@pytest.mark.parametrize(
    ("read", "error"),
    [
        ("logits[1:]", "stand-in returned 16384 bytes of logits for 3 tokens of 2048"),
        ("logits.astype('float64')", "stand-in returned 49152 bytes of logits for 3 tokens of 2048"),
        ("1 / 0", r"stand-in did not read the texts at fp32:\n(.|\n)*ZeroDivisionError"),
    ],
)
def test_a_peer_that_does_not_tell_its_logits_is_an_error(stand_in, tmp_path, read, error):
    with stand_in(read), pytest.raises(click.ClickException) as raised:
        list(
            read_texts(
                "stand-in", PEERS["stand-in"], Path(sys.executable), tmp_path, tmp_path, "fp32", 1, [[1, 2, 3]], 2048
            )
        )
    assert raised.match(error)


def test_every_peer_tells_its_logits():
    able = {name for name, peer in PEERS.items() if "\ndef load_logits(checkpoint" in peer.file.read_text()}

    assert able == PEERS.keys() - {OURS}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--peer", f"{OURS}={sys.executable}"], "edgeformer is always measured; it cannot be a --peer"),
        (["--peer", f"nobody={sys.executable}"], "there is no peer 'nobody'"),
        (["--peer", "llama.cpp=nowhere"], "'nowhere' is not a file"),
    ],
)
def test_a_peer_that_does_not_fit_is_an_error(arguments, error):
    result = measure("tiny-llama", *arguments)

    assert result.exit_code == 2 and error in result.stderr


@pytest.mark.parametrize("options", [[], ["--text", "text.txt"], ["--calibrate", "text.txt"]])
def test_a_model_that_is_no_preset_wants_texts_of_its_own(foreign, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("Once upon a time")
    result = measure(foreign, *options)

    assert result.exit_code == 2
    assert "has no evaluation.jsonl, as presets have. Give --text FILE to measure on" in result.stderr


def test_what_is_not_calibrated_wants_only_a_text_to_measure_on(foreign, tmp_path, monkeypatch):
    """Which may be far longer than the context, and whose rows are not measured a second time."""
    monkeypatch.setattr(quantization_loss, "PIECES", 1)
    text, file = tmp_path / "text.txt", tmp_path / "loss.json"
    text.write_text("Once upon a time there was a dog. " * 2000)
    result = measure(foreign, "--text", text, "--only", "bf16", "--json", file)

    assert result.exit_code == 0, result.output
    assert json.loads(file.read_text())["losses"]["bf16"]["kl"] == 0
    result = measure(foreign, "--text", text, "--only", "bf16", "--json", file)
    assert result.exit_code == 0 and "bf16" in result.stdout and "bf16: " not in result.stderr


def test_dithered_weights_leave_the_grid_they_were_stored_on(tmp_path):
    """Q4_1 rounds what it stored without an error; after dithering, its error is that of other weights."""
    drawn = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    on_grid, table = stored(drawn), torch.from_numpy(drawn[:8])
    assert np.abs(stored(on_grid) - on_grid).max() < 1e-6
    weights = {"model.embed_tokens.weight": table, "a.weight": torch.from_numpy(on_grid), "norm.weight": torch.ones(96)}
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(weights, folder / "model.safetensors")
    dither.main([str(folder), str(tmp_path / "dithered")], standalone_mode=False)
    found = load_file(tmp_path / "dithered" / "model.safetensors")
    assert (tmp_path / "dithered" / "config.json").read_text() == "{}"
    for name in ("model.embed_tokens.weight", "norm.weight"):
        assert found[name].equal(weights[name])
    moved = found["a.weight"].numpy()
    step = np.ptp(on_grid.reshape(64, 3, 32), -1, keepdims=True) / 15
    part = (moved - on_grid).reshape(64, 3, 32) / step
    assert np.abs(part).max() <= 0.5 + 1e-5 and part.std() == pytest.approx(12**-0.5, rel=0.02), "uniform"
    lost, usual = (np.square(stored(each) - each).mean() for each in (moved, drawn))
    assert lost == pytest.approx(usual, rel=0.2)


def stored(matrix):
    """Return what a matrix means in blocks of Q4_1."""
    kind = gguf.GGMLQuantizationType.Q4_1
    return gguf.dequantize(gguf.quantize(matrix, kind), kind).reshape(matrix.shape)
