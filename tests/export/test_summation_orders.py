"""Eager PyTorch in several summation orders, which show how much a model amplifies rounding."""

import copy
import itertools
import json
import shutil
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.config.feed_forward import BOUNDS
from edgeformer.export import export_model
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.trials.decoder import DecoderTrial
from edgeformer.export.reference import weight_streaming
from edgeformer.export.reference.reference import Reference
from edgeformer.export.reference.summation_orders import run_in_summation_orders
from edgeformer.layers.linear import ClampedLinear
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import model_spec_of

SMALL = {"vocab_size": 131, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
parity = import_module("edgeformer.export.parity.verify")  # the package has a function of this name


@pytest.fixture(scope="module")
def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64))


def outcomes(module, x, orders):
    """What single runs give, each in another order."""
    found = []
    run_in_summation_orders(module, orders, lambda: found.append(module(x)) or found[-1], lambda: found[0])
    return torch.stack(found)


@torch.no_grad()
def test_orders_differ_by_rounding_and_leave_the_module(layers):
    x = torch.randn(40, 256)
    plain = layers(x)
    assert torch.equal(run_in_summation_orders(layers, 1, lambda: layers(x), lambda: None), plain)
    every = outcomes(layers, x, 8)
    assert torch.equal(every[0], plain), "the first order is the module's own"
    assert len({each.numpy().tobytes() for each in every}) == 8
    torch.testing.assert_close(every, plain.expand_as(every), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="shapes"):
        run_in_summation_orders(layers, 2, lambda: layers(x[:, :3]), lambda: None)
    assert torch.equal(layers(x), plain) and not any("forward" in vars(layer) for layer in layers)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 8, (4, 5), stride=(3, 5)), nn.Conv2d(3, 8, 3, padding=(2, 1)), nn.Conv1d(16, 8, 3, padding=1),
        nn.Conv1d(16, 8, 3, 2, 1),
    ],
)  # fmt: skip
@torch.no_grad()
def test_convolutions_are_reordered_too(layer):
    x = torch.randn(2, layer.in_channels, *([20, 23][: layer.weight.dim() - 2]))
    every, exact = outcomes(layer, x, 6), copy.deepcopy(layer).double()(x.double())
    assert torch.equal(every[0], layer(x)) and len({each.numpy().tobytes() for each in every}) == 6
    torch.testing.assert_close(every.double(), exact.expand_as(every), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_layers_that_do_more_keep_their_own_order():
    clamped, depthwise = ClampedLinear(64, 4, bias=True, dtype=torch.float32), nn.Conv1d(64, 64, 3, groups=64)
    for bound, value in zip(BOUNDS, (-1.0, 1.0, -0.5, 0.5), strict=True):
        getattr(clamped, bound).fill_(value)
    for layer, x in ((clamped, torch.randn(9, 64)), (depthwise, torch.randn(1, 64, 9))):
        every = outcomes(layer, x, 3)
        assert torch.equal(every, every[:1].expand_as(every))


@torch.no_grad()
def test_it_errs_as_much_as_runs_do():
    """Of one number a position, a third of single runs err less than half of what such runs do; of these a sixth."""
    torch.manual_seed(1)
    module, x = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 1)), torch.randn(500, 256)
    exact = copy.deepcopy(module).double()(x.double())
    every, chosen = outcomes(module, x, 8), run_in_summation_orders(module, 8, lambda: module(x), lambda: exact)
    squares, chosen = ((made - exact).square().mean(-1) for made in (every, chosen))
    typical = squares.mean(0)
    assert 1 <= (chosen.mean() / typical.mean()).sqrt() < 1.5
    lucky, alone = ((each < typical / 4).double().mean() for each in (chosen, squares[0]))
    assert lucky < 0.25 < alone


def chosen_of(errors, exact=(0.0, 7.0)):
    """Return what is chosen of runs with these errors at the first of two positions, and none at the other."""
    values = iter(errors)

    def run():
        logits = torch.tensor([[exact[0] + next(values)], [exact[1]]])
        return logits, [(logits + 1,)]

    true = torch.tensor(exact, dtype=torch.float64)[:, None]
    return run_in_summation_orders(nn.Identity(), len(errors), run, lambda: (true, [(true + 1,)]))


def test_a_vector_slightly_above_the_typical_is_chosen():
    """Errors of 0, 1, 1, 4 and −6, whose root mean square is 3.3."""
    logits, [(key,)] = chosen_of([0.0, 1.0, 1.0, 4.0, -6.0])
    assert logits.tolist() == [[4.0], [7.0]] and key.tolist() == [[5.0], [8.0]]


def test_a_run_that_is_right_by_chance_is_not_chosen():
    """It is the farthest from the mean of runs that are all off by the same."""
    logits, _ = chosen_of([3.0, 3.0, 3.0, 0.0, 3.0, 3.0])
    assert logits.tolist() == [[3.0], [7.0]]


def test_parameters_may_be_streamed(llama_bundle):
    manifest = Manifest.read(llama_bundle)
    model_spec = model_spec_of(manifest.model)
    weights = StoredWeights(llama_bundle, manifest, model_spec)
    ids = torch.arange(1, 20)[None]
    found = []
    for streams in (False, True):
        spec = replace(model_spec, streams=streams)
        reference = Reference(spec, weights, torch.float32, summation_orders=4, exact=Reference(spec, weights))
        for _ in range(2):
            logits, caches = reference.run(ids)
            found.append((logits, *(part for cache in caches for part in cache)))
    for parts in zip(*found, strict=True):
        assert all(torch.equal(part, parts[0]) for part in parts)


def test_matrices_that_are_multiplied_in_parts_are_reordered(layers, monkeypatch):
    monkeypatch.setattr(weight_streaming, "LARGE", 1000)
    monkeypatch.setattr(weight_streaming, "ROWS", 100)
    x, stored = torch.randn(40, 256), dict(layers.named_parameters())
    empty = copy.deepcopy(layers).to("meta")
    found = []

    def run():
        with torch.no_grad(), weight_streaming.streaming_parameters(empty, stored, torch.float32):
            found.append(empty(x))
        return found[-1]

    run_in_summation_orders(empty, 4, run, lambda: found[0])
    torch.testing.assert_close(torch.stack(found), outcomes(layers, x, 4), rtol=1e-4, atol=1e-6)
    assert len({each.numpy().tobytes() for each in found}) == 4


def a_check(value, limit=1.0, **options):
    return Check(name="prefill: max error", what="", value=value, limit=limit, eager=None, reason="", **options)


@pytest.mark.parametrize(
    ("checks", "orders"),
    [
        ([a_check(0.9)], [1]),
        ([a_check(3.6), a_check(0.5)], [1, parity.RECHECK_ORDERS]),
        ([a_check(3.6), a_check(0.98, at_least=True)], [1, parity.RECHECK_ORDERS]),
        ([a_check(3.6), a_check(1e4)], [1]),
        ([a_check(3.6), a_check(float("nan"))], [1]),
        ([a_check(3.6), a_check(1.0, limit=0.0)], [1]),
    ],
)
def test_borderline_failures_are_checked_again(llama_bundle, monkeypatch, checks, orders):
    whole, asked = parity.verify(llama_bundle, mode="quick"), []

    def run(verification):
        asked.append(verification.summation_orders)
        return replace(whole, checks=tuple(checks))

    monkeypatch.setattr(parity.Verification, "run", run)
    parity.verify(llama_bundle, mode="quick")
    assert asked == orders


def test_a_graph_that_is_a_little_wrong_fails_in_any_order(llama_bundle):
    """A matrix of the reference is off by 1e-5 of itself: a borderline failure, which the second check refuses, too."""
    manifest = Manifest.read(llama_bundle)
    model_spec = model_spec_of(manifest.model)
    weights = dict(StoredWeights(llama_bundle, manifest, model_spec).items())
    name = "blocks.1.feed_forward.down.weight"
    weights[name] = weights[name] * (1 + 1e-5)
    report = parity.verify_graph(llama_bundle, manifest, model_spec, weights)
    assert report.orders == parity.RECHECK_ORDERS and not report.passed
    assert any("median ratio" in check.name for check in report.failures())


def test_a_right_graph_that_adds_one_by_one_passes(make_model, tmp_path):
    """Large activations, as trained models have them: onnxruntime's sums err over twice as much as eager's blocks."""
    folder = make_model("llama", seed=1, intermediate_size=4096, hidden_size=64, num_hidden_layers=2, **SMALL)
    weights = load_file(folder / "model.safetensors")
    for layer, part in itertools.product(range(2), ("gate", "up")):
        weights[f"model.layers.{layer}.mlp.{part}_proj.weight"][3] *= 300
    shutil.copytree(folder, tmp_path / "large")
    save_file(weights, tmp_path / "large" / "model.safetensors", {"format": "pt"})
    report = export_model(tmp_path / "large", tmp_path / "bundle", precision="int4").report
    assert report.passed
    [(ratio, limit)] = [(each.value, each.limit) for each in report.checks if each.name == "chunks: cache ratio"]
    assert 1.5 < ratio < limit == pytest.approx(1.5 * (4096 / 350) ** 0.5)


@pytest.fixture(scope="module")
def quantized(make_llama, tmp_path_factory):
    """An int8 bundle with a tokenizer, and its checkpoint."""
    checkpoint = make_llama(vocab_size=2048, num_hidden_layers=1)
    shutil.copy(PRESETS / "tiny-llama" / "tokenizer.json", checkpoint)
    place = tmp_path_factory.mktemp("quantized") / "bundle"
    return export_model(checkpoint, place, precision="int8", verify=None).path, checkpoint


def test_only_stages_that_failed_are_run_again(quantized, monkeypatch):
    monkeypatch.setenv("EDGEFORMER_KERNELS", "0")
    bundle, checkpoint = quantized
    plain = parity.verify(bundle, checkpoint, mode="quick")
    assert plain.passed and plain.orders == 1
    runs, real = [], DecoderTrial.run

    def run(trial):
        real(trial)
        runs.append((trial.setup.activations is not None, trial.setup.summation_orders))
        if runs[-1] == (True, 1):
            check = trial.judge.checks[0]
            trial.judge.checks[0] = replace(check, value=3 * check.limit)

    monkeypatch.setattr(DecoderTrial, "run", run)
    report = parity.verify(bundle, checkpoint, mode="quick")
    assert runs == [(False, 1), (True, 1), (True, parity.RECHECK_ORDERS)]
    assert report.passed and report.orders == parity.RECHECK_ORDERS
    assert [check.name for check in report.checks] == [check.name for check in plain.checks]
    assert (report.rounding, report.quantization) == (plain.rounding, plain.quantization)
    assert (report.greedy, report.states) == (plain.greedy, plain.states)


def test_the_loss_is_measured_on_natural_texts(quantized, tmp_path):
    bundle, checkpoint = quantized
    report = parity.verify(bundle, checkpoint, mode="quick")
    assert (report.rounding.texts, report.quantization.texts) == ("natural texts", "natural texts")
    shutil.copytree(bundle, tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").unlink()
    manifest = json.loads((tmp_path / "other" / "edgeformer.json").read_text())
    del manifest["files"]["tokenizer.json"]
    (tmp_path / "other" / "edgeformer.json").write_text(json.dumps(manifest))
    other = parity.verify(tmp_path / "other", checkpoint, mode="quick")
    assert other.rounding.texts == "random tokens" and other.rounding.mean_kl != report.rounding.mean_kl
