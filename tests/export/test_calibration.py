"""Calibrated rounding: what it is for, what a model reads, which layers are rounded by it, how parity judges them."""

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from test_verify_quantized import Stored

from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.errors import ExportError
from edgeformer.export import export_model, export_module
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.calibrate import weights as calibrate_module
from edgeformer.export.calibrate.forward_hooks import valid_tokens
from edgeformer.export.calibrate.text import LENGTH, PIECES, read_calibration
from edgeformer.export.calibrate.weights import calibrate
from edgeformer.export.lower import GraphJob
from edgeformer.export.parity.trials.quantized_weights import RANGE_LIMIT, _Grid, judge_weights
from edgeformer.export.parity.verify import open_subject
from edgeformer.export.quantize import gptq
from edgeformer.export.quantize.gptq import REACH, costs_of, error_compensation, round_for_inputs
from edgeformer.export.quantize.rounding import SEARCHED, ranges_of_least_cost, round_blocks
from edgeformer.export.reference.reference import Reference
from edgeformer.families import read_model_config
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.plan import ExportPlan
from edgeformer.manifest.quantization import (
    CalibrationText,
    QuantizationOverrides,
    WeightFormat,
    make_quantization,
)
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime.text.tokenizer import Tokenizer

FORMATS = [
    WeightFormat(bits=4, block=32, rounding="gptq"),
    WeightFormat(bits=4, block=32, symmetric=False, rounding="gptq"),
    WeightFormat(bits=4, block=128, rounding="gptq"),
    WeightFormat(bits=8, block=32, rounding="gptq"),
    WeightFormat(bits=8, block=128, symmetric=False, rounding="gptq"),
    WeightFormat(bits=8, block=None, rounding="gptq"),
]
SIZE = 128
INT4 = make_quantization("int4")
GPTQ = make_quantization("int4", QuantizationOverrides(rounding="gptq"))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def correlated(tokens=1024, size=SIZE, seed=0):
    """Inputs [tokens, size] of a few directions and noise, and one input that is much larger."""
    few = torch.randn(size // 8, size, generator=seeded(100)) / (size // 8) ** 0.5
    generator = seeded(seed)
    x = torch.randn(tokens, size // 8, generator=generator) @ few + 0.2 * torch.randn(tokens, size, generator=generator)
    x[:, 5] *= 8
    return x


def matrix(rows=48, size=SIZE):
    return torch.randn(rows, size, generator=seeded(1)) / size**0.5


def gram(x):
    return x.t() @ x


def blocks_of(weights, form):
    return weights.unflatten(1, (-1, form.block or weights.shape[1]))


def loss(weights, rounded, x):
    """Squared error of the products with inputs."""
    return float((x.double() @ (rounded.weights().flatten(1) - weights).double().t()).square().sum())


# Rounding.


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_gptq_errs_far_less_on_correlated_and_unseen_inputs(form):
    weights, seen, new = matrix(), correlated(), correlated(seed=7)
    needs_calibration = round_for_inputs(weights, costs_of(gram(seen)), form)
    for x in (seen, new):
        others = [loss(weights, round_blocks(blocks_of(weights, form), replace(form, rounding=name)), x)
                  for name in ("nearest", "mse")]  # fmt: skip
        assert loss(weights, needs_calibration, x) < 0.25 * min(others)
    # The control: inputs that go together otherwise teach nothing about these.
    wrong = round_for_inputs(weights, costs_of(gram(seen.flip(1))), form)
    assert loss(weights, wrong, new) > 0.8 * min(others)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_inputs_without_correlation_leave_each_weight_alone(form):
    weights = matrix()
    alone = round_for_inputs(weights, costs_of(torch.diag(torch.rand(SIZE, generator=seeded(2)))), form)
    errors = (alone.weights() - blocks_of(weights, form)).abs() / alone.scales.abs()[..., None]
    inside = (alone.integers > 0) & (alone.integers < 2 * form.zero - 1)
    assert errors[inside].max() <= 0.5 + 1e-4
    together = round_for_inputs(weights, costs_of(gram(correlated())), form)
    assert not torch.equal(together.integers, alone.integers)  # the control


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_block_has_the_range_whose_nearest_integers_cost_least(form):
    """By trying all; the same with weights near the ends of what float32 holds."""
    weights = matrix()
    weights[3] = 0
    blocks = blocks_of(weights, form)
    costs = blocks_of(torch.rand(1, SIZE, generator=seeded(3)) ** 4, form)[0]
    nearest = round_blocks(blocks, form := replace(form, rounding="nearest"))
    zeros = nearest.zeros[..., None].double()
    tried, parts = [], [*SEARCHED, *([form.zero / (form.zero - 1)] if form.symmetric else [])]
    for part in parts:
        scales = part * nearest.scales[..., None].double()
        steps = (blocks / scales).nan_to_num(0).round().clamp(-zeros, 2 * form.zero - 1 - zeros)
        tried.append((costs * (blocks - steps * scales) ** 2).sum(-1))
    tried = torch.stack(tried, -1)
    scales, found = ranges_of_least_cost(blocks, costs, form)
    chosen = (scales / nearest.scales).nan_to_num(1)[..., None] - torch.tensor(parts)
    assert chosen.abs().amin(-1).max() < 1e-6 and torch.equal(found, nearest.zeros)
    paid = tried.gather(-1, chosen.abs().argmin(-1, keepdim=True))[..., 0]
    assert (paid <= tried.amin(-1) * (1 + 1e-4)).all() and (tried[..., 0] > 1.001 * paid).any()
    others, _ = ranges_of_least_cost(blocks, costs.flip(-1), form)
    assert not torch.equal(others, scales)  # the control
    for power in (2.0**-100, 2.0**100):
        assert torch.equal(ranges_of_least_cost(blocks * power, costs, form)[0], scales * power)
        assert torch.equal(ranges_of_least_cost(blocks, costs * power, form)[0], scales)


@pytest.mark.parametrize("symmetric", [True, False])
def test_every_choice_is_the_best_one_for_what_is_left(symmetric, monkeypatch):
    """By the definition: with the weights so far fixed, those to come take their least squares; one more is rounded."""
    monkeypatch.setattr(gptq, "STEP", 8)
    monkeypatch.setattr(gptq, "ROWS", 3)
    form = WeightFormat(bits=4, block=16, symmetric=symmetric, rounding="gptq")
    weights, g = matrix(7, 48), gram(correlated(size=48))
    rounded = round_for_inputs(weights, costs_of(g), form)
    order = g.diagonal().argsort(descending=True)
    assert order[0] == 5 and order.tolist() != list(range(48))
    damped = g.double() + gptq.DAMPING * float(g.diagonal().mean()) * torch.eye(48, dtype=torch.float64)
    stored = rounded.weights().flatten(1).double()
    scales, zeros = (each.double().repeat_interleave(16, 1) for each in (rounded.scales, rounded.zeros))
    for count, place in enumerate(order):
        before, left = order[:count], order[count:]
        errors = (stored - weights.double())[:, before]
        moved = -torch.linalg.solve(damped[left][:, left], damped[left][:, before] @ errors.t()).t()
        steps = (weights[:, place].double() + moved[:, 0]) / scales[:, place]
        near = (weights[:, place].double() / scales[:, place]).round()
        low = torch.maximum(-zeros[:, place], near - REACH)
        high = torch.minimum(2 * form.zero - 1 - zeros[:, place], near + REACH)
        best = torch.minimum(torch.maximum(steps, low), high)
        found = stored[:, place] / scales[:, place]
        assert (found - best).abs().max() <= 0.5 + 1e-3, place


def test_gptq_costs_are_those_of_the_inverse():
    g = gram(correlated())
    before = g.clone()
    costs = costs_of(g)
    assert torch.equal(g, before)
    assert torch.equal(costs.order, g.diagonal().argsort(descending=True)) and costs.order[0] == 5
    damped = g.double() + gptq.DAMPING * float(g.diagonal().mean()) * torch.eye(SIZE, dtype=torch.float64)
    damped = damped[costs.order][:, costs.order]
    upper = costs.factor.double()
    assert torch.equal(upper, upper.triu())
    assert (upper.t() @ upper @ damped - torch.eye(SIZE)).abs().max() < 1e-3
    # What is left of an input's power once those after it have done what they can.
    for count, place in ((0, 5), (70, int(costs.order[70])), (SIZE - 1, int(costs.order[-1]))):
        after = damped[count + 1 :, count + 1 :]
        across = damped[count + 1 :, count]
        left = damped[count, count] - across @ torch.linalg.solve(after, across) if len(after) else damped[-1, -1]
        assert float(costs.of_errors()[place]) == pytest.approx(float(left), rel=1e-2)


def test_any_inputs_have_a_factor():
    few = correlated(tokens=3)
    negative = gram(few) - 0.05 * gram(few).diagonal().mean() * torch.eye(SIZE)  # as float32 may make one, or worse
    for g in (gram(few), torch.zeros(SIZE, SIZE), negative):
        rounded = round_for_inputs(matrix(), costs_of(g), FORMATS[0])
        assert torch.isfinite(rounded.weights()).all()
    assert loss(matrix(), round_for_inputs(matrix(), costs_of(gram(few)), FORMATS[0]), few) < 1e-2


def worn(x, seed=11):
    """Inputs as they come: all of them off, in ways that go together with what they are, and some noise."""
    change = torch.randn(x.shape[1], x.shape[1], generator=seeded(seed)) / x.shape[1] ** 0.5
    return x + 0.1 * x @ change + 0.01 * torch.randn(x.shape, generator=seeded(seed + 1))


def test_what_inputs_lack_is_made_up_for_by_least_squares():
    """By a solver, in float64; with nothing lost, by nothing."""
    x = correlated()
    stored = worn(x)
    g = gram(stored)
    found = error_compensation(g, (x - stored).t() @ stored)
    ridge = (gptq.RIDGE * float(g.diagonal().mean())) ** 0.5 * torch.eye(SIZE, dtype=torch.float64)
    padded, lack = torch.cat([stored.double(), ridge]), torch.cat([(x - stored).double(), torch.zeros(SIZE, SIZE)])
    best = torch.linalg.lstsq(padded, lack).solution.t()
    assert (found - best).abs().max() < 1e-4 * best.abs().max()
    assert not error_compensation(g, torch.zeros(SIZE, SIZE)).any()
    assert not error_compensation(torch.zeros(SIZE, SIZE), torch.zeros(SIZE, SIZE)).any()
    weights = matrix()
    new = correlated(seed=7)
    for seen in (x, new):
        exact, come = seen @ weights.t(), worn(seen)
        before, after = ((come @ each.t() - exact).square().sum() for each in (weights, weights + weights @ found))
        assert after < 0.1 * before


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_aims_are_met_on_the_grid_of_the_weights(form):
    weights, seen, new = matrix(), worn(correlated()), worn(correlated(seed=7))
    costs = costs_of(gram(seen))
    plain = round_for_inputs(weights, costs, form)
    step = float(plain.scales.abs().min())
    aims = weights + step * torch.randn(weights.shape, generator=seeded(12))
    aimed = round_for_inputs(weights, costs, form, aims)
    assert torch.equal(aimed.scales, plain.scales) and torch.equal(aimed.zeros, plain.zeros)
    for x in (seen, new):
        assert loss(aims, aimed, x) < 0.25 * loss(aims, plain, x)
    zero = aimed.zeros[..., None].float()
    exact = (blocks_of(weights, form) / aimed.scales[..., None]).clamp(-zero, 2 * form.zero - 1 - zero)
    assert (aimed.integers - zero - exact).abs().max() <= REACH + 0.5 + 1e-4
    same = round_for_inputs(weights, costs, form, weights)
    assert torch.equal(same.integers, plain.integers)


@pytest.mark.parametrize("form", FORMATS[:2], ids=str)
def test_no_weight_goes_further_than_its_reach(form, monkeypatch):
    weights, factor = matrix(), costs_of(gram(correlated()))

    def furthest():
        found = round_for_inputs(weights, factor, form)
        zero = found.zeros[..., None].float()
        exact = (blocks_of(weights, form) / found.scales[..., None]).clamp(-zero, 2 * form.zero - 1 - zero)
        return float((found.integers - zero - exact).abs().max())

    assert 1.6 < furthest() <= REACH + 0.5
    monkeypatch.setattr(gptq, "REACH", 1)
    assert furthest() <= 1.5 + 1e-4


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_zeros_stay_zeros_and_the_matrix_stays_what_it_was(form):
    weights = matrix()
    weights[2] = 0
    before = weights.clone()
    rounded = round_for_inputs(weights, costs_of(gram(correlated())), form)
    assert not rounded.weights()[2].any() and rounded.weights()[3].any()
    assert torch.equal(weights, before)
    by_columns = weights.t().contiguous().t()
    assert torch.equal(round_for_inputs(by_columns, costs_of(gram(correlated())), form).integers, rounded.integers)
    assert torch.equal(by_columns, before)


# What a model reads.


@pytest.fixture(scope="module")
def preset():
    source = open_source("tiny-llama")
    return source.folder, model_spec_of(source.config)


def test_pieces_of_a_file_are_spread_over_it(preset, tmp_path):
    folder, model_spec = preset
    path = tmp_path / "long.txt"
    path.write_text(
        " ".join(f"Chapter {number} of the ferry and the goat." for number in range(3000)), encoding="utf-8"
    )
    read = read_calibration(path, folder, model_spec)
    assert [len(text) for text in read.texts] == [LENGTH] * PIECES
    tokenizer = Tokenizer(folder)
    around = len(tokenizer.encode("a")) - len(tokenizer.encode("a", add_special_tokens=False))
    plain = tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False)
    assert read.texts[0].tolist() == tokenizer.encode(tokenizer.decode(plain[: LENGTH - around]))
    room = LENGTH - around
    last = (len(plain) // room - 1) * room
    assert read.texts[-1].tolist()[-room:] == plain[last : last + room]
    assert read.source == CalibrationText(
        name="long.txt", tokens=LENGTH * PIECES, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
    )


def test_a_short_file_is_one_text_cut_to_the_context(preset, tmp_path):
    folder, model_spec = preset
    path = tmp_path / "short.txt"
    path.write_text("Once upon a time", encoding="utf-8")
    (text,) = read_calibration(path, folder, model_spec).texts
    assert text.tolist() == Tokenizer(folder).encode("Once upon a time")
    read = read_calibration([[1, 2, 3], [], range(5)], None, replace(model_spec, config=None, context_length=4))
    assert [text.tolist() for text in read.texts] == [[1, 2, 3], [0, 1, 2, 3]]
    assert (read.source.name, read.source.tokens) == ("token ids", 7)
    other = read_calibration([[1, 2, 4], range(5)], None, model_spec).source
    assert other.sha256 != read.source.sha256


def test_what_cannot_be_read_is_said(preset, tmp_path):
    folder, model_spec = preset
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("Fähre".encode("latin-1"))
    whisper = open_whisper()
    for given, place, model, message in (
        (
            tmp_path / "lost.txt",
            folder,
            model_spec,
            "there is no file .*lost.txt to calibrate with. Give a file of text",
        ),
        (tmp_path / "latin.txt", folder, model_spec, "latin.txt is not text in UTF-8"),
        (
            tmp_path / "latin.txt",
            None,
            model_spec,
            "the model has no tokenizer.json. Put the one that it was trained wi",
        ),
        ([[], []], None, model_spec, "token ids has no tokens to calibrate with"),
        ([[5, -1]], None, model_spec, "the tokens to calibrate with are -1 to 5, and the model has [0-9]+ tokens"),
        ([[model_spec.vocab_size]], None, model_spec, "Give the tokens of this model's own tokenizer"),
        ([[1]], None, whisper, "the model reads recordings, and calibration is by text. Leave calibration out"),
    ):
        with pytest.raises(ExportError, match=message):
            read_calibration(given, place, model)


def open_whisper():
    data = {
        "model_type": "whisper", "vocab_size": 97, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "num_mel_bins": 16, "max_source_positions": 24, "max_target_positions": 40,
    }  # fmt: skip
    return model_spec_of(read_model_config(data)[1])


# Which layers it rounds.

LLAMA = {
    "model_type": "llama", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "max_position_embeddings": 64, "architectures": ["BertForMaskedLM"],
}  # fmt: skip
MARIAN = {
    "model_type": "marian", "vocab_size": 97, "d_model": 64, "decoder_start_token_id": 0, "encoder_layers": 1,
    "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96, "max_position_embeddings": 64, "pad_token_id": 1,
}  # fmt: skip
TEXTS = [np.random.default_rng(seed).integers(0, 97, 64 - 3 * seed) for seed in range(6)]


def opened(data, **options):
    config = read_model_config(data | options)[1]
    random = RandomWeights(config, 0)
    return model_spec_of(config), {name: random[name] for name in random}


def calibrated(model_spec, weights, folder, chosen=None, texts=TEXTS):
    chosen = chosen or make_quantization("int4", QuantizationOverrides(rounding="gptq", block=32))
    job = GraphJob(model_spec=model_spec, weights=weights, plan=ExportPlan(quantization=chosen))
    return calibrate(job, read_calibration(texts, None, model_spec), folder)


@pytest.mark.parametrize(("data", "options", "shared"), [
    (LLAMA, {}, set()),
    (LLAMA, {"tie_word_embeddings": True}, {"embedding.weight"}),
    (BERT, {}, {"embedding.weight"}),
    (MARIAN, {}, {"encoder.embedding.weight"}),
])  # fmt: skip
def test_every_product_is_rounded_and_only_tied_embeddings(data, options, shared, tmp_path):
    model_spec, weights = opened(data, **options)
    found = calibrated(model_spec, weights, tmp_path)
    vectors = {name for name, value in weights.items() if value.dim() < 2}
    tables = {name for name in weights if "embedding" in name or ".relative." in name}
    assert set(found.formats) == (weights.keys() - vectors - tables) | shared
    for name, form in found.formats.items():
        assert form == WeightFormat(bits=4, block=32, rounding="gptq")
        assert found[name].weights().flatten(1).shape == weights[name].shape


def test_skips_and_other_formats_are_those_of_the_quantization(tmp_path):
    model_spec, weights = opened(LLAMA)
    chosen = make_quantization(
        "int4", QuantizationOverrides(rounding="gptq", head="fp32", keep=("blocks.0.*",), block=64)
    )
    found = calibrated(model_spec, weights, tmp_path, chosen)
    assert all(name.startswith("blocks.1.") for name in found.formats) and len(found.formats) == 7
    assert {form.block for form in found.formats.values()} == {64, 32}, "64 does not divide the 96 inputs of one"


def as_stored(weights, found):
    """All weights as a bundle has them; an embedding that is no head is rounded by `mse`."""
    form = WeightFormat(bits=4, block=32, rounding="mse")
    table = round_blocks(blocks_of(weights["embedding.weight"], form), form).weights().flatten(1)
    layers = {name: found[name].weights().flatten(1) for name in found.formats}
    return weights | {"embedding.weight": table} | layers


@pytest.mark.parametrize("tied", [False, True])
def test_inputs_of_a_layer_passed_the_rounded_layers_before(tied, tmp_path, monkeypatch):
    """And what is padding reaches none."""
    model_spec, weights = opened(LLAMA, tie_word_embeddings=tied)
    grams = []
    monkeypatch.setattr(calibrate_module, "costs_of", lambda g: grams.append(g) or costs_of(g))
    found = calibrated(model_spec, weights, tmp_path)
    assert len(grams) == 2 * 4 + 1, "layers beside each other share their inputs"
    rounded = as_stored(weights, found)

    def by_hand(parameters):
        """Of what comes into the last block's down, text by text without any padding."""
        reference, inputs = Reference(model_spec, parameters, torch.float32), []
        reference.module.blocks[1].feed_forward.down.register_forward_pre_hook(lambda layer, x: inputs.append(x[0][0]))
        for text in TEXTS:
            reference.run(torch.from_numpy(text)[None])
        return gram(torch.cat(inputs))

    expected, plain = by_hand(rounded), by_hand(weights)
    scale = expected.abs().max()
    found = grams[-1 if tied else -2]
    assert (found - expected).abs().max() < 1e-4 * scale
    assert (found - plain).abs().max() > 1e-2 * scale  # the control


@pytest.mark.parametrize("tied", [False, True])
def test_a_layer_knows_what_should_reach_it(tied, tmp_path, monkeypatch):
    """What the whole model has there, less what reaches it, by what reaches it: text by text without any padding."""
    model_spec, weights = opened(LLAMA, tie_word_embeddings=tied)
    lacks = []
    monkeypatch.setattr(
        calibrate_module, "error_compensation", lambda g, lost: lacks.append(lost) or error_compensation(g, lost)
    )
    rounded = as_stored(weights, calibrated(model_spec, weights, tmp_path))

    def by_hand(parameters, path):
        reference, inputs = Reference(model_spec, parameters, torch.float32), []
        reference.module.get_submodule(path).register_forward_pre_hook(lambda layer, x: inputs.append(x[0][0]))
        for text in TEXTS:
            reference.run(torch.from_numpy(text)[None])
        return torch.cat(inputs)

    # The first layer has nothing before it but the embedding.
    for lost, path in ((lacks[0], "blocks.0.attention.query"), (lacks[7], "blocks.1.feed_forward.down")):
        exact, stored = by_hand(weights, path), by_hand(rounded, path)
        expected = (exact - stored).t() @ stored
        assert (lost - expected).abs().max() < 1e-3 * expected.abs().max()


def test_a_decoder_is_not_compensated_on_encoder_text(tmp_path, monkeypatch):
    """No decoder of a pair ever reads such a text; tiny-translate wrote more wrong dates for it (5 of 250)."""
    made_up = {}
    whole = calibrate_module._Calibrator.quantize

    def noting(self, layer, inputs):
        if not layer.gathered:
            made_up[layer.name] = inputs.compensation
        whole(self, layer, inputs)

    monkeypatch.setattr(calibrate_module._Calibrator, "quantize", noting)
    model_spec, weights = opened(MARIAN)
    calibrated(model_spec, weights, tmp_path)
    halves = {half: [made_up[name] for name in made_up if name.startswith(half)] for half in ("encoder.", "decoder.")}
    assert len(halves["encoder."]) == 6 and all(change.any() for change in halves["encoder."])
    assert halves["decoder."] == [None] * 10


def test_a_tied_head_is_rounded_for_what_should_reach_it(tmp_path, monkeypatch):
    """And first of all: what it errs where it is looked up can be made up for then."""
    model_spec, weights = opened(LLAMA, tie_word_embeddings=True)
    grams = []
    monkeypatch.setattr(calibrate_module, "costs_of", lambda g: grams.append(g) or costs_of(g))
    found = calibrated(model_spec, weights, tmp_path)
    assert next(iter(found.formats)) == "embedding.weight"
    reference, inputs = Reference(model_spec, weights, torch.float32), []
    reference.module.head.register_forward_pre_hook(lambda layer, x: inputs.append(x[0][0]))
    for text in TEXTS:
        reference.run(torch.from_numpy(text)[None])
    expected = gram(torch.cat(inputs))
    expected.diagonal().add_(calibrate_module.GATHER_WEIGHT * expected.diagonal().mean())
    assert (grams[0] - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_layer_without_batch_rows_is_not_compensated():
    """A table of positions [S, K], say, in a module of one's own."""
    calibrator = calibrate_module._Calibrator({}, None, (), 0, torch.ones(6, 5, dtype=torch.bool), print)
    table, states = torch.randn(8, SIZE, generator=seeded(1)), torch.randn(6, 5, SIZE, generator=seeded(2))
    layer = calibrate_module.Layer(None, "a", FORMATS[0], False)
    assert not calibrator.statistics(layer, table).compensation.any()
    assert torch.equal(calibrator.statistics(layer, table).costs.factor, costs_of(gram(table)).factor)
    assert calibrator.statistics(layer, states).compensation.any()  # the control: halves that differ


def divergence(model_spec, weights, rounded, ids):
    """Mean KL of the distributions after token ids [B, S], from those of the weights to those of rounded ones."""
    exact, logits = (Reference(model_spec, weights | changed).run(ids)[0].log_softmax(-1) for changed in ({}, rounded))
    return float((exact.exp() * (exact - logits)).sum(-1).mean())


def rounded_by(found, weights):
    """Weights as they are rounded by the text, and as `mse` rounds the same ones."""
    return (
        {name: found[name].weights().flatten(1) for name in found.formats},
        {
            name: round_blocks(blocks_of(weights[name], form), replace(form, rounding="mse")).weights().flatten(1)
            for name, form in found.formats.items()
        },
    )


def test_a_calibrated_model_is_nearer_on_other_texts(tmp_path):
    """Its embedding has few directions, as those of trained models do."""
    model_spec, weights = opened(LLAMA)
    few = torch.randn(97, 6, generator=seeded(3)) @ torch.randn(6, 64, generator=seeded(4)) / 6**0.5
    weights["embedding.weight"] = few + 0.05 * torch.randn(97, 64, generator=seeded(5))
    other = torch.from_numpy(np.random.default_rng(9).integers(0, 97, (8, 48)))
    needs_calibration, plain = rounded_by(calibrated(model_spec, weights, tmp_path), weights)
    assert divergence(model_spec, weights, needs_calibration, other) < 0.5 * divergence(
        model_spec, weights, plain, other
    )


@pytest.fixture(scope="module")
def trained(preset):
    """A trained model, whose states tell which errors matter: model spec, weights, texts, and others [B, S]."""
    folder, model_spec = preset
    weights = {name: value.float() for name, value in open_source("tiny-llama").weights().items()}
    lines = (folder / "evaluation.jsonl").read_text().splitlines()[::20]
    tokenizer = Tokenizer(folder)
    texts = [tokenizer.encode(problem["prompt"] + problem["answer"]) for problem in map(json.loads, lines)]
    return model_spec, weights, texts[::2], torch.tensor([text[:24] for text in texts[1::2] if len(text) >= 24])


def test_a_head_that_is_an_embedding_gains_by_the_text_as_well(trained, tmp_path):
    model_spec, weights, texts, others = trained
    chosen = make_quantization("int4", QuantizationOverrides(rounding="gptq", keep=("blocks.*",)))
    needs_calibration, plain = rounded_by(calibrated(model_spec, weights, tmp_path, chosen, texts), weights)
    assert needs_calibration.keys() == {"embedding.weight"}
    assert divergence(model_spec, weights, needs_calibration, others) < 0.75 * divergence(
        model_spec, weights, plain, others
    )


def test_layers_make_up_for_what_those_before_them_err(trained, tmp_path, monkeypatch):
    """The control: the same with nothing made up for. The search for ranges leaves less to make up for."""
    model_spec, weights, texts, others = trained
    losses = []
    for place in ("made up for", "not"):
        (tmp_path / place).mkdir()
        found = calibrated(
            model_spec,
            weights,
            tmp_path / place,
            GPTQ,
            texts,
        )
        losses.append(divergence(model_spec, weights, rounded_by(found, weights)[0], others))
        monkeypatch.setattr(calibrate_module, "error_compensation", lambda g, lost: torch.zeros_like(g))
    assert losses[0] < 0.85 * losses[1]


def test_states_as_wide_as_the_tokens_are_not_token_rows(tmp_path):
    """Those of the first tokens, [B, K], which a classifier reads."""
    model_spec, weights = opened(BERT | {"architectures": ["BertForSequenceClassification"]})
    assert "classifier.dense.weight" in calibrated(model_spec, weights, tmp_path).formats
    x, valid = torch.randn(3, 5, generator=seeded(1)), torch.tensor([[True] * 4 + [False]] * 3)
    assert torch.equal(valid_tokens(x, valid), x)
    assert valid_tokens(x[..., None], valid).shape == (12, 1)  # the control


@pytest.mark.parametrize(("value", "message"), [
    (float("nan"), "blocks.0.attention.output.weight holds values that are not finite; they cannot be quantized"),
    (1e30, "the calibration text makes inputs of blocks.0.feed_forward.gate.weight that are not finite; nothing can"),
])  # fmt: skip
def test_what_is_not_finite_is_named(tmp_path, value, message):
    model_spec, weights = opened(LLAMA, num_hidden_layers=1)
    weights["blocks.0.attention.output.weight" if value != value else "blocks.0.feed_forward_norm.weight"] *= value
    with pytest.raises(ExportError, match=message):
        calibrated(model_spec, weights, tmp_path)


def test_a_quantization_says_what_it_was_calibrated_with():
    chosen = GPTQ
    assert chosen.needs_calibration and not make_quantization("int4").needs_calibration
    source = CalibrationText(name="story.txt", tokens=8192, sha256="0" * 64)
    assert str(replace(chosen, calibration=source)) == (
        "int4 in blocks of 128, gptq; calibrated with 8,192 tokens of story.txt"
    )


# Bundles.


@pytest.fixture(scope="module")
def bundles(make_llama, tmp_path_factory):
    """Bundles by whether they are symmetric, and their checkpoint; the one that is not is verified."""
    checkpoint = make_llama(vocab_size=97, num_hidden_layers=2, max_position_embeddings=64)
    place, options = tmp_path_factory.mktemp("bundles"), {"precision": "int4", "calibration": TEXTS}
    asymmetric = make_quantization("int4", QuantizationOverrides(rounding="gptq", symmetric=False))
    return {
        True: export_model(checkpoint, place / "symmetric", verify=None, **options).path,
        False: export_model(checkpoint, place / "asymmetric", quantization=asymmetric, **options).path,
    }, checkpoint


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_bundle_says_how_it_was_rounded_and_keeps_nothing_else(bundles, symmetric):
    place = bundles[0][symmetric]
    manifest = Manifest.read(place)
    digest = hashlib.sha256(b"".join(text.tobytes() for text in TEXTS)).hexdigest()
    source = CalibrationText(name="token ids", tokens=sum(map(len, TEXTS)), sha256=digest)
    assert manifest.plan.quantization == replace(
        make_quantization("int4", QuantizationOverrides(rounding="gptq", symmetric=symmetric)), calibration=source
    )
    forms = {name: stored.quantized for name, stored in manifest.weights.items() if stored.part == "integers"}
    lookups = {name: form.rounding for name, form in forms.items() if "embedding" in name}
    assert set(lookups.values()) == {"mse"}
    assert {form.rounding for name, form in forms.items() if name not in lookups} == {"gptq"}
    assert {path.name for path in place.iterdir() if path.is_dir()} <= {"onnx", "parity"}


def test_calibrated_integers_are_verified(bundles):
    place = bundles[0][False]
    checks = json.loads((place / "parity" / "report.json").read_text(encoding="utf-8"))["checks"]
    names = {check["name"] for check in checks if "weights: " in check["name"]}
    judged = "unquantized", "block error", "calibrated zero points", "calibrated steps", "calibrated ranges"
    assert names == {f"weights: {each}" for each in judged}


DOWN = "blocks.1.feed_forward.down.weight"
QKV = "blocks.1.attention.qkv.weight"


def halves_exchanged(stored):
    stored[f"{DOWN}.integers"] = (integers := stored[f"{DOWN}.integers"]) >> 4 | integers << 4


def two_halves_exchanged(stored):
    """In one byte of one block: the largest weight and the one beside it."""
    integers = stored[f"{DOWN}.integers"]
    far = np.abs((integers & 15).astype(int) - (integers >> 4)).argmax()
    integers.flat[far] = integers.flat[far] >> 4 | integers.flat[far] << 4
    stored[f"{DOWN}.integers"] = integers


def scales_a_block_late(stored):
    stored[f"{DOWN}.scales"] = np.roll(stored[f"{DOWN}.scales"], 1, axis=1)


def one_scale_doubled(stored):
    scales = stored[f"{DOWN}.scales"]
    scales[5, 1] *= 2
    stored[f"{DOWN}.scales"] = scales


def one_scale_a_little_larger(stored):
    scales = stored[f"{DOWN}.scales"]
    scales[5, 1] *= 1.005
    stored[f"{DOWN}.scales"] = scales


def one_zero_point_wrong(stored):
    """By one, in the last of three parameters that are stored as one matrix."""
    zeros = stored[f"{QKV}.zero_points"]
    zeros[-1, 0] += 1 if zeros[-1, 0] & 15 < 15 else -1
    stored[f"{QKV}.zero_points"] = zeros


def integers_of_another_layer(stored):
    stored[f"{DOWN}.integers"] = stored["blocks.0.feed_forward.down.weight.integers"]


def judged(folder, checkpoint, fault=None):
    subject = open_subject(folder, checkpoint)
    if fault is not None:
        copied = folder.with_name(f"{folder.name}-{fault.__name__}")
        shutil.copytree(folder, copied)
        folder = copied
        fault(Stored(folder, onnx.load(folder / "onnx" / "model.onnx", load_external_data=False).graph))
    checks = judge_weights(subject.weights, StoredWeights(folder, subject.manifest, subject.model_spec))
    return {check.name.removeprefix("weights: ") for check in checks if not check.passed}


@pytest.mark.parametrize(("fault", "symmetric", "found"), [
    (halves_exchanged, True, {"calibrated steps"}),
    (halves_exchanged, False, {"calibrated steps"}),
    (two_halves_exchanged, True, {"calibrated steps"}),
    (two_halves_exchanged, False, {"calibrated steps"}),
    (scales_a_block_late, True, {"calibrated ranges"}),
    (scales_a_block_late, False, {"calibrated ranges"}),
    (one_scale_doubled, True, {"calibrated ranges"}),
    (one_scale_doubled, False, {"calibrated ranges"}),
    (one_scale_a_little_larger, True, {"calibrated ranges"}),
    (one_scale_a_little_larger, False, {"calibrated ranges"}),
    (one_zero_point_wrong, False, {"calibrated zero points"}),
    (integers_of_another_layer, True, {"calibrated steps"}),
    (integers_of_another_layer, False, {"calibrated steps"}),
])  # fmt: skip
def test_stored_weights_of_another_model_are_found(bundles, fault, symmetric, found):
    place, checkpoint = bundles[0][symmetric], bundles[1]
    assert judged(place, checkpoint) == set()
    assert judged(place, checkpoint, fault) >= found


@pytest.mark.parametrize(
    ("dtype", "factor", "bits"), [(torch.float16, 1e-4, 4), (torch.bfloat16, 1.0, 4), (torch.float16, 4e-4, 6)]
)
def test_scales_of_few_digits_are_held_to_those_that_they_have(dtype, factor, bits):
    """Very small float16 scales, and all bfloat16 scales. Those of 6 bits are stored for the 8 that products read."""
    form = WeightFormat(bits=bits, block=32, rounding="gptq")
    weights = matrix() * factor
    scales, zeros = ranges_of_least_cost(blocks_of(weights, form), torch.ones(SIZE // 32, 32), form)
    unused = 1 << form.unused_bits
    half, zeros = (scales / unused).to(dtype).float() * unused, zeros.float()
    assert ((half - scales) / scales).abs().max() > RANGE_LIMIT, "the case"
    assert _Grid(weights, half, zeros, form, dtype).range() <= RANGE_LIMIT
    assert _Grid(weights, scales, zeros, form, torch.float32).range() <= RANGE_LIMIT
    assert _Grid(weights, half, zeros, form, torch.float32).range() > RANGE_LIMIT  # as float32 they are wrong
    assert _Grid(weights, 2 * half, zeros, form, dtype).range() > RANGE_LIMIT


def test_weights_of_another_seed_are_found(bundles, make_llama):
    other = make_llama(5, vocab_size=97, num_hidden_layers=2, max_position_embeddings=64)
    assert judged(bundles[0][True], other) >= {"calibrated steps", "calibrated ranges"}


def test_own_modules_are_calibrated_as_ours(make_llama, tmp_path):
    checkpoint = make_llama(vocab_size=97, num_hidden_layers=1, max_position_embeddings=64)
    backend = export_model(
        checkpoint, tmp_path / "backend", precision="int4", calibration=TEXTS, backend="transformers", verify=None
    ).manifest
    model_spec, weights = opened(LLAMA, num_hidden_layers=1)
    module = model_spec.build(torch.float32)
    module.load_state_dict(weights)
    for name, buffer in module.named_buffers():
        buffer.copy_(model_spec.constants()[name])
    before = {name: value.clone() for name, value in module.state_dict().items()}
    sizes = {"vocab_size": 97, "context_length": 64, "num_layers": 1, "num_kv_heads": 2, "head_dim": 16}
    own = export_module(module, tmp_path / "own", precision="int4", calibration=TEXTS, verify=None, **sizes).manifest
    for manifest in (backend, own):
        forms = [stored.quantized for stored in manifest.weights.values() if stored.part == "integers"]
        assert sorted(form.rounding for form in forms) == ["gptq"] * 5 + ["mse"], "all but the embedding"
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(("options", "message"), [
    ({"quantization": GPTQ}, "the rounding gptq needs a text of what the model is for"),
    ({"quantization": INT4, "calibration": TEXTS}, "a text to calibrate with is for int4 and int8 with the"),
    ({"precision": "fp32", "calibration": TEXTS}, "a text to calibrate with is for int4 and int8 with the rounding gp"),
    ({"calibration": "lost.txt"}, "lost.txt"),
])  # fmt: skip
def test_options_that_exclude_each_other_are_refused_early(llama_folder, tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        export_model(llama_folder, tmp_path / "bundle", **({"precision": "int4"} | options))
    assert not list(tmp_path.iterdir())
