"""Smoothing: the model stays what it is to the last bit, outliers cost less, and parity finds what was not smoothed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from slow_rows import slow_unless
from test_calibration import BERT, LLAMA, TEXTS, opened, seeded
from test_verify_quantized import SIZES_OF_CACHE, failures, own_module  # noqa: F401 - a fixture

from edgeformer.errors import BundleError, ExportError, ParityError
from edgeformer.export import export_model, export_module, verify, verify_module
from edgeformer.export.calibrate import smoothing as smooth
from edgeformer.export.calibrate.smoothing import Smoothed, smoothable_norms, smoothing_factors
from edgeformer.export.calibrate.text import read_calibration
from edgeformer.export.importers.from_transformers import plan_patches
from edgeformer.export.lower import GraphJob
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import QuantizationOverrides, SmoothedNorm, make_quantization

PER_TOKEN = make_quantization("int8", QuantizationOverrides(activations="per_token"))
GPT2 = {"model_type": "gpt2", "vocab_size": 97, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64}
PHI = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"} | {"model_type": "phi"}
GEMMA = LLAMA | {"model_type": "gemma", "head_dim": 16}
OLMO2 = LLAMA | {"model_type": "olmo2"}
T5 = {
    "model_type": "t5", "vocab_size": 97, "d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 1, "num_heads": 8,
    "decoder_start_token_id": 0,
}  # fmt: skip
ATTENTION, GATED = ("attention.query", "attention.key", "attention.value"), ("feed_forward.gate", "feed_forward.up")


def norm_of(block, name, readers, bias=False):
    return SmoothedNorm(
        parameters=(f"{block}.{name}.weight", *([f"{block}.{name}.bias"] if bias else [])),
        readers=tuple(f"{block}.{each}.weight" for each in readers),
    )


HEAD = SmoothedNorm(parameters=("final_norm.weight",), readers=("head.weight",))
NORMS = {
    "llama": (LLAMA | {"num_hidden_layers": 1}, [
        norm_of("blocks.0", "attention_norm", ATTENTION), norm_of("blocks.0", "feed_forward_norm", GATED), HEAD,
    ]),
    "gpt2": (GPT2, [
        norm_of("blocks.0", "attention_norm", ATTENTION, bias=True),
        norm_of("blocks.0", "feed_forward_norm", ("feed_forward.up",), bias=True),
    ]),
    "phi": (PHI | {"num_hidden_layers": 1}, [
        norm_of("blocks.0", "attention_norm", (*ATTENTION, "feed_forward.up"), bias=True),
        replace(HEAD, parameters=("final_norm.weight", "final_norm.bias")),
    ]),
    "gemma": (GEMMA, []),
    "olmo2": (OLMO2 | {"num_hidden_layers": 1}, [HEAD]),
    "bert": (BERT, []),
    "t5": (T5, [
        norm_of("encoder.blocks.0", "attention_norm", ATTENTION),
        norm_of("encoder.blocks.0", "feed_forward_norm", ("feed_forward.up",)),
        norm_of("decoder.blocks.0", "attention_norm", ATTENTION),
        norm_of("decoder.blocks.0", "cross_attention_norm", ("cross_attention.query",)),
        norm_of("decoder.blocks.0", "feed_forward_norm", ("feed_forward.up",)),
    ]),
}  # fmt: skip
"""Norms that linear layers alone read. GPT-2's and T5's last ones are read by an embedding's matrix and by two graphs,
Gemma's multiply with one more than they store, and those of OLMo 2 and BERT stand before the residual stream.
"""


# The same model.


def some_factors(norms, weights):
    random = np.random.default_rng(0)
    return {
        norm: torch.tensor([2.0 ** int(each) for each in random.integers(-8, 9, len(weights[norm.parameters[0]]))])
        for norm in norms
    }


def said(model_spec, weights, dtype=torch.float32):
    reference, ids = Reference(model_spec, weights, dtype), torch.from_numpy(np.stack([text[:40] for text in TEXTS]))
    with reference.loaded():
        return model_spec.read(reference.module, ids, torch.ones_like(ids), reference.empty_caches(len(ids)))


@pytest.mark.parametrize("name", slow_unless(("bert", "gemma", "t5"), NORMS))
def test_smoothed_weights_say_the_same_to_the_last_bit(name):
    data, norms = NORMS[name]
    model_spec, weights = opened(data)
    assert smoothable_norms(GraphJob(model_spec=model_spec, weights=weights)) == norms
    factors = some_factors(norms, weights)
    smoothed = Smoothed(weights, factors)
    changed = {name for name in weights if not torch.equal(smoothed[name], weights[name])}
    assert changed == {name for norm in norms for name in (*norm.parameters, *norm.readers)}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        pairs = zip(said(model_spec, weights, dtype), said(model_spec, smoothed, dtype), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), dtype
    for norm in norms:  # the control: a reader that was forgotten
        faulty = Smoothed(weights, {replace(norm, readers=norm.readers[1:]): factors[norm]})
        assert not torch.equal(said(model_spec, weights)[-1], said(model_spec, faulty)[-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_byte_numbers_get_room_for_their_factors(dtype):
    model_spec, weights = opened(NORMS["llama"][0])
    halves = {name: value.to(dtype) for name, value in weights.items()}
    (norm, *_) = smoothable_norms(GraphJob(model_spec=model_spec, weights=halves))
    smoothed = Smoothed(halves, {norm: torch.full((64,), 2.0**14)})
    assert torch.equal(said(model_spec, halves)[0], said(model_spec, smoothed)[0])
    assert torch.equal(smoothed[norm.parameters[0]] * 2.0**14, halves[norm.parameters[0]].float())


def test_norms_of_transformers_modules_are_smoothed():
    """Gemma's norms, too: patched to our op, they have the factor 1 + weight as their gain."""
    model_spec = plan_patches(GEMMA).model_spec
    weights = {name: torch.randn(shape, generator=seeded(1)) for name, shape in model_spec.parameter_shapes().items()}
    norms = smoothable_norms(GraphJob(model_spec=model_spec, weights=weights))
    assert [norm.parameters[0].rpartition("layers.")[2] for norm in norms] == [
        f"{layer}.{name}.gain" for layer in range(2) for name in ("input_layernorm", "post_attention_layernorm")
    ]
    smoothed = Smoothed(weights, some_factors(norms, weights))
    assert torch.equal(said(model_spec, weights)[0], said(model_spec, smoothed)[0])


# Which factors.


def test_factors_even_out_what_the_text_makes_and_what_reads_it():
    model_spec, weights = opened(LLAMA)
    weights["blocks.1.attention_norm.weight"][[3, 7]] *= 64
    weights["blocks.1.attention_norm.weight"][5] = 0
    text = read_calibration(TEXTS, None, model_spec)
    found = smoothing_factors(GraphJob(model_spec=model_spec, weights=weights), PER_TOKEN, text)
    assert HEAD not in found and len(found) == 4, "heads are in blocks"
    norm = norm_of("blocks.1", "attention_norm", ATTENTION)
    inputs = []
    reference = Reference(model_spec, weights, torch.float32)
    reference.module.blocks[1].attention.key.register_forward_pre_hook(lambda layer, x: inputs.append(x[0][0]))
    for each in TEXTS:  # by themselves, without padding
        reference.run(torch.from_numpy(each)[None])
    largest = torch.cat(inputs).abs().amax(0)
    columns = torch.cat([weights[name] for name in norm.readers]).abs().amax(0)
    octaves = (largest / columns).log2() / 2
    there = torch.arange(64) != 5
    octaves -= octaves[there].median()
    assert found[norm][5] == 1
    assert (found[norm].log2() - octaves)[there].abs().max() <= 0.5 + 1e-4
    assert torch.equal(found[norm].log2(), found[norm].log2().round())
    assert found[norm][[3, 7]].min() >= 4, "half of what sticks out"


def test_what_cannot_be_smoothed_is_said():
    model_spec, weights = opened(BERT)
    text = read_calibration(TEXTS, None, model_spec)
    with pytest.raises(ExportError, match="none is read only by linear layers whose inputs are quantized per token"):
        smoothing_factors(GraphJob(model_spec=model_spec, weights=weights), PER_TOKEN, text)
    model_spec, weights = opened(LLAMA)
    with pytest.raises(ExportError, match="this model has no norm to smooth"):
        smoothing_factors(GraphJob(model_spec=model_spec, weights=weights), make_quantization("int8"), text)
    weights["blocks.1.attention_norm.weight"] *= 1e39
    with pytest.raises(ExportError, match="inputs of blocks.1.attention.query.weight that are not finite"):
        smoothing_factors(GraphJob(model_spec=model_spec, weights=weights), PER_TOKEN, text)


@pytest.mark.parametrize(("options", "message"), [
    ({"precision": "int8"}, "smoothing is for activations that are quantized per token"),
    ({"precision": "int8", "quantization": PER_TOKEN, "calibration": None}, "smoothing needs a text"),
    ({"precision": "fp16"}, "smoothing is for activations that are quantized per token"),
])  # fmt: skip
def test_options_that_ask_for_nothing_are_refused(llama_folder, tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        export_model(llama_folder, tmp_path / "bundle", smooth=True, **({"calibration": TEXTS} | options))


# Bundles.

OUTLIERS = [3, 20, 41]


@pytest.fixture(scope="module")
def checkpoint(make_llama, tmp_path_factory):
    """A Llama whose norms have channels that are 64 times as large, and whose layers have columns as much smaller."""
    folder = tmp_path_factory.mktemp("outliers")
    file = "model.safetensors"
    source = make_llama(vocab_size=97, num_hidden_layers=2, max_position_embeddings=64)
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / file)
    for layer in ("model.layers.0.", "model.layers.1."):
        for norm, readers in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            tensors[f"{layer}{norm}.weight"][OUTLIERS] *= 64
            for reader in readers:
                tensors[f"{layer}{reader}.weight"][:, OUTLIERS] /= 64
    save_file(tensors, folder / file, {"format": "pt"})
    return folder


NEAREST = make_quantization("int8", QuantizationOverrides(activations="per_token", rounding="nearest"))


@pytest.fixture(scope="module")
def bundle(checkpoint, tmp_path_factory):
    """Smoothed, not verified."""
    return export_model(
        checkpoint, tmp_path_factory.mktemp("bundles") / "smoothed", precision="int8", quantization=NEAREST,
        calibration=TEXTS, smooth=True, verify=None,
    ).path  # fmt: skip


def test_outliers_cost_less(bundle, checkpoint, tmp_path):
    smoothed = verify(bundle, checkpoint, mode="quick")
    assert smoothed.passed, smoothed.describe()
    (check,) = (check for check in smoothed.checks if check.name == "smoothing: same model")
    assert check.value == 0
    plain = export_model(checkpoint, tmp_path / "plain", precision="int8", quantization=NEAREST, verify="quick").report
    assert smoothed.quantization.mean_kl < 0.2 * plain.quantization.mean_kl
    assert not any(check.name.startswith("smoothing") for check in plain.checks)


def test_a_bundle_says_what_was_smoothed_and_is_right_by_itself(bundle):
    manifest = Manifest.read(bundle)
    assert [norm.parameters for norm in manifest.smoothing.norms] == [
        (f"blocks.{block}.{name}.weight",) for block in range(2) for name in ("attention_norm", "feed_forward_norm")
    ]
    assert manifest.smoothing.text.tokens == sum(map(len, TEXTS))
    report = verify(bundle, mode="quick")
    assert report.passed, report.describe()


def test_calibrated_rounding_follows_smoothing(checkpoint, tmp_path):
    result = export_model(
        checkpoint, tmp_path / "calibrated", precision="int8", calibration=TEXTS, smooth=True,
        quantization=QuantizationOverrides(activations="per_token"), verify="quick",
    )  # fmt: skip
    assert {"smoothing: same model", "weights: calibrated steps"} <= {check.name for check in result.report.checks}


def test_a_module_of_ones_own_is_smoothed(own_module, tmp_path):  # noqa: F811 - a fixture
    options = {"precision": "int8", "quantization": NEAREST, "calibration": TEXTS, "smooth": True, "verify": None}
    result = export_module(own_module, tmp_path / "own", **SIZES_OF_CACHE, **options)
    # Of the other block, a product of its own reads the norm, too.
    norm = SmoothedNorm(
        parameters=("blocks.0.gain",), readers=("blocks.0.qkv.weight", "blocks.0.feed_forward.0.weight")
    )
    assert result.manifest.smoothing.norms == (norm,)
    report = verify_module(result.path, own_module, mode="quick")
    assert report.passed, report.describe()


# Faults.

NORM, GATE = "blocks.0.feed_forward_norm.weight", "blocks.0.feed_forward.gate.weight"


def a_channel_by(factor):
    def fault(graph, stored):
        values = stored[NORM]
        values[7] *= factor
        stored[NORM] = values

    return fault


def channels_exchanged(graph, stored):
    values = stored[NORM]
    values[[6, 7]] = values[[7, 6]]
    stored[NORM] = values


def a_column_as_it_was(graph, stored):
    name = f"{GATE}.by_output.integers"
    integers = stored[name]  # [K, N]
    integers[OUTLIERS[0]] = (integers[OUTLIERS[0]] / 8).round()
    stored[name] = integers


@pytest.mark.parametrize("fault", [a_channel_by(1.5), a_channel_by(0), a_channel_by(-1), channels_exchanged])
def test_norms_that_no_smoothing_makes_are_refused(bundle, checkpoint, tmp_path, fault):
    with pytest.raises(BundleError, match="each channel may differ from the checkpoint's only by a power of two, and "):
        failures(bundle, checkpoint, tmp_path / "faulty", fault)


@pytest.mark.parametrize("fault", [a_channel_by(2), a_channel_by(0.5), a_column_as_it_was])
def test_norms_and_layers_that_do_not_go_together_are_found(bundle, checkpoint, tmp_path, fault):
    assert failures(bundle, checkpoint, tmp_path / "faulty", fault) == {"weights"}


def test_a_copy_without_a_fault_passes(bundle, checkpoint, tmp_path):
    assert failures(bundle, checkpoint, tmp_path / "copy", lambda graph, stored: None) == set()


def test_a_reader_that_is_overlooked_makes_another_model(checkpoint, tmp_path, monkeypatch):
    found = smooth.smoothable_norms
    monkeypatch.setattr(
        smooth, "smoothable_norms",
        lambda *args: [replace(norm, readers=norm.readers[1:]) for norm in found(*args)],
    )  # fmt: skip
    with pytest.raises(ParityError, match="smoothing: same model"):
        export_model(
            checkpoint, tmp_path / "faulty", precision="int8", quantization=NEAREST, calibration=TEXTS, smooth=True
        )
    assert not any(tmp_path.iterdir())
