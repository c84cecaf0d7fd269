"""A target size: the knapsack, what a format is measured to lose, which formats are chosen, and what is refused."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_calibration import LLAMA, TEXTS, correlated, gram, matrix, opened

from edgeformer.errors import ExportError
from edgeformer.export import export_model
from edgeformer.export.calibrate import sensitivity
from edgeformer.export.calibrate.groups import FORMATS, INTEGERS
from edgeformer.export.calibrate.sensitivity import measure_groups
from edgeformer.export.calibrate.target_formats import with_target_formats
from edgeformer.export.calibrate.text import read_calibration
from edgeformer.export.lower import GraphJob
from edgeformer.export.progress import no_progress
from edgeformer.export.quantize.budget import Choice, choose
from edgeformer.export.quantize.gptq import costs_of, expected_error, round_for_inputs
from edgeformer.export.quantize.rounding import round_blocks
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.plan import ExportPlan
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.options.target_size import TargetSize, target_size

BASE = make_quantization("int4", QuantizationOverrides(rounding="gptq"))
TIED = LLAMA | {"tie_word_embeddings": True}


def job_of(data=TIED, quantization=BASE):
    model_spec, weights = opened(data)
    return GraphJob(model_spec=model_spec, weights=weights, plan=ExportPlan(quantization=quantization))


def text_of(job, texts=TEXTS):
    return read_calibration(texts, None, job.model_spec)


@pytest.fixture(scope="module")
def measured():
    """The groups of a small Llama, with their figures."""
    job = job_of()
    return measure_groups(job, text_of(job), None, no_progress)


# The knapsack


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_the_best_of_all(seed):
    random = np.random.default_rng(seed)
    groups = [
        [Choice(form, int(size), float(lost)) for form, size, lost in zip(FORMATS, *pair, strict=False)]
        for pair in random.integers(1, 40, (5, 2, 3))
    ]
    least = sum(min(choice.bytes for choice in group) for group in groups)
    for budget in (least, least + 20, least + 500):
        chosen = choose(groups, budget)
        assert [each in group for each, group in zip(chosen, groups, strict=True)] == [True] * 5
        assert sum(each.bytes for each in chosen) <= budget
        best = min(
            sum(each.loss for each in picked)
            for picked in itertools.product(*groups)
            if sum(each.bytes for each in picked) <= budget
        )
        assert sum(each.loss for each in chosen) == pytest.approx(best)


def test_a_choice_in_coarse_units_still_fits(monkeypatch):
    monkeypatch.setattr("edgeformer.export.quantize.budget.MOST_UNITS", 50)
    random = np.random.default_rng(0)
    groups = [[Choice(form, int(random.integers(1, 10**6)), float(random.random())) for form in FORMATS]] * 8
    least = sum(min(choice.bytes for choice in group) for group in groups)
    for more in (0, 10**5, 10**6, 10**8):
        assert sum(each.bytes for each in choose(groups, least + more)) <= least + more
    with pytest.raises(ValueError, match="bytes are the least"):
        choose(groups, least - 1)


# What a format loses


def test_the_expected_error_is_about_that_of_rounding():
    x, weights = correlated(), matrix()
    costs = costs_of(gram(x))
    for form in FORMATS:
        expected = expected_error(weights, costs, form)
        found = float((x @ (round_for_inputs(weights, costs, form).weights().flatten(1) - weights).t()).square().sum())
        nearest = float((x @ (round_blocks(weights.unflatten(1, (-1, form.block)), replace(form, rounding="mse"))
                              .weights().flatten(1) - weights).t()).square().sum())  # fmt: skip
        assert found / 2 < expected < 2 * found
        assert expected < nearest / 2, "the control: what rounding by the weights alone errs"


def test_layers_that_read_one_input_are_a_group(measured):
    names = [[name.removeprefix("blocks.").removesuffix(".weight") for name in group.names] for group in measured]
    block = [
        ["attention.query", "attention.key", "attention.value"], ["attention.output"],
        ["feed_forward.gate", "feed_forward.up"], ["feed_forward.down"],
    ]  # fmt: skip
    assert names == [
        *([f"{number}.{name}" for name in group] for number in (0, 1) for group in block),
        ["embedding"],
    ]


def test_some_rows_stand_for_all_of_a_matrix(measured, monkeypatch):
    """Every second or third row, or fewer. Matrices of a group have other numbers of rows, and weigh as many."""
    monkeypatch.setattr(sensitivity, "ROWS", 24)
    job = job_of()
    for group, whole in zip(measure_groups(job, text_of(job), None, no_progress), measured, strict=True):
        assert any(outputs > 24 for outputs, _ in group.sizes), "the case"
        assert group.crude == pytest.approx(whole.crude, rel=0.35)
        for form in FORMATS:
            assert group.loss(form) == pytest.approx(whole.loss(form), rel=0.35)


def test_a_divergence_is_that_of_the_rounded_model(measured):
    """By a model whose weights are rounded, and not by hooks."""
    job = job_of()
    texts = [torch.from_numpy(TEXTS[place])[None] for place in (0, len(TEXTS) - 1)]

    def predicted(weights):
        reference = Reference(job.model_spec, weights, torch.float32)
        return [reference.run(ids)[0][0].double().log_softmax(-1) for ids in texts]

    exact = predicted(job.weights)
    for group in measured:
        changed = {
            name: job.weights[name] + sensitivity.crude_change(job.weights[name].float(), name) for name in group.names
        }
        rounded = predicted(dict(job.weights) | changed)
        nats = torch.cat([(a.exp() * (a - b)).sum(-1) for a, b in zip(exact, rounded, strict=True)])
        assert group.divergence == pytest.approx(float(nats.mean()), rel=1e-3)
        assert group.divergence > 1e-7


def test_fewer_bits_and_longer_blocks_lose_more(measured):
    for group in measured:
        for bits, symmetric in INTEGERS:
            same = [form for form in FORMATS if (form.bits, form.symmetric) == (bits, symmetric)]
            losses = [group.loss(form) for form in same]
            assert losses == sorted(losses, reverse=True)
        assert group.loss(FORMATS[0]) > 20 * group.loss(FORMATS[-1]) > 0


def test_zero_points_are_chosen_where_they_pay(measured, monkeypatch):
    """Weights that are all positive lose half as much with them; the control has weights of both signs."""
    job = job_of()
    name = measured[3].names[0]
    shifted = dict(job.weights) | {name: job.weights[name].abs()}
    found = measure_groups(replace(job, weights=shifted), text_of(job), None, no_progress)
    four = [{form.symmetric: group.loss(form) for form in FORMATS if (form.bits, form.block) == (4, 32)}
            for group in (found[3], measured[3])]  # fmt: skip
    assert four[0][False] < 0.6 * four[0][True] and four[1][False] > 0.6 * four[1][True]
    assert not formats(job, TargetSize(bits=5.0), found, monkeypatch)[name].symmetric


# Formats for a size


def formats(job, target, groups, monkeypatch):
    monkeypatch.setattr("edgeformer.export.calibrate.target_formats.measure_groups", lambda *_: groups)
    chosen = with_target_formats(job, text_of(job), target, None, no_progress).plan.quantization
    return {name: chosen.format_of(name) for group in groups for name in group.names}


def test_more_bytes_never_lose_more(measured, monkeypatch):
    job, lost = job_of(), []
    for bits in (3.5, 4.5, 5, 5.5, 6, 7, 8, 8.5):
        found = formats(job, TargetSize(bits=bits), measured, monkeypatch)
        lost.append(sum(group.loss(found[group.names[0]]) for group in measured))
        sizes = [job.weights[name].numel() for name in found]
        used = [form.fitted(job.weights[name].shape[1]).bytes_of(*job.weights[name].shape)
                for name, form in found.items()]  # fmt: skip
        assert 8 * sum(used) <= bits * sum(sizes)
        for group in measured:
            assert len({found[name] for name in group.names}) == 1, "they may be stored as one matrix"
    assert lost == sorted(lost, reverse=True) and len(set(lost)) > 3


def test_what_loses_most_gets_more_bits(measured, monkeypatch):
    """With a group whose divergence is a thousand times as large; the control is the choice without it."""
    changed = [replace(group, divergence=group.divergence * (1000 if place == 3 else 1))
               for place, group in enumerate(measured)]  # fmt: skip
    name = measured[3].names[0]
    before, after = (formats(job_of(), TargetSize(bits=5.3), groups, monkeypatch) for groups in (measured, changed))
    assert after[name].bits == 8 and before != after


def test_a_size_out_of_reach_names_what_can_be_reached(measured, monkeypatch):
    for target, message in (
        (
            TargetSize(bits=2.0),
            "2 bits per weight is out of reach: the weights take 3.[0-9]+ bits per weight with every",
        ),
        (TargetSize(bits=12.0), "12 bits per weight is out of reach: .* and 8.5 bits per weight in the largest."),
        (
            TargetSize(bytes=1000),
            "0.001 MB is out of reach: the weights take 0.[0-9]+ MB with every matrix in the small",
        ),
        (TargetSize(bytes=10**9), "1,000 MB is out of reach: "),
    ):
        with pytest.raises(ExportError, match=message):
            formats(job_of(), target, measured, monkeypatch)


# Measurements are kept


def test_an_export_goes_on_where_another_was_stopped(measured, tmp_path, monkeypatch):
    job, file = job_of(), tmp_path / "sensitivities.json"
    whole, runs = sensitivity._Measurement.divergence, []

    def stops(run, group, exact):
        runs.append(group.names)
        if len(runs) == 4:
            raise KeyboardInterrupt
        return whole(run, group, exact)

    monkeypatch.setattr(sensitivity._Measurement, "divergence", stops)
    with pytest.raises(KeyboardInterrupt):
        measure_groups(job, text_of(job), file, no_progress)
    assert len(json.loads(file.read_text())["nats"]) == 3
    found = measure_groups(job, text_of(job), file, no_progress)
    assert [group.divergence for group in found] == [group.divergence for group in measured]
    assert len(runs) == 1 + len(measured), "the one that was stopped is measured again, and none of those before it"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_another_size_of_a_model_measures_nothing(measured, tmp_path, monkeypatch):
    job, file = job_of(), tmp_path / "sensitivities.json"
    measure_groups(job, text_of(job), file, no_progress)
    for name in ("errors", "divergence", "log_probabilities"):
        monkeypatch.setattr(sensitivity._Measurement, name, None)  # a call would fail
    assert measure_groups(job, text_of(job), file, no_progress) == measured


@pytest.mark.parametrize("change", ["text", "layers", "no errors"])
def test_errors_of_something_else_are_measured_again(measured, change, tmp_path, monkeypatch):
    """Those of other texts between the samples, of fewer matrices, and of a file that has divergences alone."""
    job, file = job_of(), tmp_path / "sensitivities.json"
    measure_groups(job, text_of(job), file, no_progress)
    texts = [TEXTS[0], TEXTS[-1]] if change == "text" else TEXTS
    if change == "layers":
        rest = make_quantization("int4", QuantizationOverrides(rounding="gptq", keep=("blocks.0.*",)))
        job = job_of(quantization=rest)
    if change == "no errors":
        content = json.loads(file.read_text())
        file.write_text(json.dumps({key: content[key] for key in ("of", "nats")}))
    monkeypatch.setattr(sensitivity._Measurement, "divergence", None)  # a call would fail
    found = measure_groups(job, text_of(job, texts), file, no_progress)
    assert found == measure_groups(job, text_of(job, texts), file, no_progress), "what was written"
    same = [group for group in measured if group.names in [each.names for each in found]]
    assert [group.divergence for group in found] == [group.divergence for group in same]
    assert (found == measured) == (change == "no errors") and len(found) == (5 if change == "layers" else 9)


def test_measurements_of_something_else_are_refused(tmp_path):
    job, file = job_of(), tmp_path / "sensitivities.json"
    measure_groups(job, text_of(job), file, no_progress)
    other = job_of(TIED | {"hidden_size": 96})
    for changed, texts in ((other, TEXTS), (job, TEXTS[1:])):
        with pytest.raises(ExportError, match="are those of another model, another calibration text or another"):
            measure_groups(changed, text_of(changed, texts), file, no_progress)
    content = json.loads(file.read_text())
    del content["groups"][0]["errors"][-1]
    for text in ("[]", json.dumps(content)):
        file.write_text(text)
        with pytest.raises(ExportError, match="has no sensitivities that an export measured"):
            measure_groups(job, text_of(job), file, no_progress)


# Options


@pytest.mark.parametrize(("given", "bytes_"), [
    ("75MB", 75_000_000), ("1.5 gb", 1_500_000_000), ("64MiB", 64 << 20), ("512 B", 512), (1234, 1234),
])  # fmt: skip
def test_a_size_is_a_number_and_a_unit(given, bytes_):
    assert target_size(given, None) == TargetSize(bytes=bytes_)


@pytest.mark.parametrize(("size", "bits", "message"), [
    ("75", None, "target_size is '75'; it must be a number and one of B, KB, MB, GB, KIB, MIB, GIB, such as 75MB"),
    ("-1MB", None, "it must be a number and one of"),
    (0, None, "target_size is 0; it must be above 0"),
    ("1MB", 4.5, "target_size and bits say the same in two ways"),
])  # fmt: skip
def test_what_is_no_size_is_refused(size, bits, message):
    with pytest.raises(ExportError, match=message):
        target_size(size, bits)


TARGET = {"calibration": [[1, 2, 3]], "target_size": "1MB"}


@pytest.mark.parametrize(("options", "message"), [
    ({"calibration": None}, "a target size needs a text of what the model is for, on which the loss of each format"),
    ({"precision": "int8"}, "a target size chooses among 3 to 8 bits in blocks of 32, 64 and 128 for each matrix"),
    ({"precision": "fp32"}, "a target size chooses among 3 to 8 bits in blocks of 32, 64 and 128 for each matrix"),
    ({"quantization": QuantizationOverrides(block=64)}, "Leave the precision, a quantization config and its overrides"),
    ({"quantization": BASE}, "Leave the precision, a quantization config and its overrides but --keep and --tower"),
    ({"deployment": "web"}, "the deployment web has no kernels for the formats that a target size chooses among"),
    ({"ops": "portable"}, "quantized products are ops of onnxruntime's own. Leave ops portable out, or"),
    ({"target_size": None, "sensitivities": "a.json"}, "sensitivities are measured for a target size. Give target_s"),
])  # fmt: skip
def test_what_a_target_excludes_is_refused(options, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        export_model("tiny-llama", tmp_path / "bundle", **TARGET | options)
    assert not list(tmp_path.iterdir())


def test_an_encoder_has_no_target(tmp_path):
    with pytest.raises(ExportError, match="a target size is for decoders, whose predictions of the next token tell"):
        export_model("tiny-embed", tmp_path / "bundle", **TARGET)


@pytest.mark.slow
def test_a_mixed_bundle_is_verified_and_says_its_formats(make_llama, tmp_path):
    """Products of several formats in one graph, some of them packed; nothing is larger than asked for."""
    checkpoint = make_llama(num_hidden_layers=2, max_position_embeddings=64)
    texts = [np.random.default_rng(seed).integers(0, 90, 60) for seed in range(4)]
    result = export_model(checkpoint, tmp_path / "bundle", bits=6.5, calibration=texts,
                          quantization=QuantizationOverrides(keep=("blocks.0.feed_forward.down.*",)))  # fmt: skip
    assert result.report.passed
    stored = {name: each.quantized for each in result.manifest.weights.values() if each.part == "integers"
              for name in each.parameters}  # fmt: skip
    assert len({form.bits for form in stored.values()}) > 1 and any(form.unused_bits for form in stored.values())
    assert {form.rounding for form in stored.values()} <= {"gptq", "mse"}
    assert "blocks.0.feed_forward.down.weight" not in stored
    quantization = result.manifest.plan.quantization
    for name, form in stored.items():
        asked = quantization.format_of(name)
        assert form.bits == asked.bits and form.block <= asked.block
    assert "matrices int" in str(quantization) and "calibrated with 240 tokens of token ids" in str(quantization)


def test_a_file_is_at_most_as_large_as_the_target(make_llama, tmp_path):
    checkpoint = make_llama(num_hidden_layers=2, max_position_embeddings=64)
    size = 190_000
    result = export_model(checkpoint, tmp_path / "bundle", target_size=size, calibration=TEXTS[:2], verify=None)
    found = (result.path / "onnx" / "model.onnx_data").stat().st_size
    assert size / 3 < found <= size, "every tensor is counted with a page to align it"
    assert result.manifest.plan.precision == "int4"
