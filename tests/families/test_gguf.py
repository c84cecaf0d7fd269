"""Models in GGUF files mean what their tensors mean, exports keep the integers of blocks, and faults are refused.

The oracle is transformers' own module with the numbers to which the package `gguf` dequantizes a file that
`gguf_writer.py` wrote as llama.cpp's converters do; it shares no reading with edgeformer.
"""

import gguf
import gguf_writer
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from rows import FAMILIES, SIZES, fields_of
from slow_rows import slow_unless

from edgeformer.checkpoints.gguf import architectures, tensors
from edgeformer.checkpoints.gguf.gguf_file import TYPES
from edgeformer.checkpoints.source import open_source
from edgeformer.errors import ExportError, ParityError
from edgeformer.export import export_model, verify
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.quantization import QuantizationOverrides
from edgeformer.models.kinds import KINDS
from edgeformer.models.model_spec import model_spec_of

HEADS_OF_16 = {"head_dim": 16, "query_pre_attn_scalar": 16}
MODELS = {
    "llama": ("llama", SIZES),
    "llama-biases": ("llama", SIZES | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-3": (
        "llama",
        SIZES | {
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
    ),
    "mistral": ("mistral", SIZES | {"sliding_window": None}),
    "mixtral": ("mixtral", SIZES | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", SIZES),
    "qwen2-yarn": ("qwen2", fields_of("qwen2", "yarn")),
    "qwen2moe": ("qwen2_moe", next(iter(FAMILIES["qwen2_moe"].models))),
    "qwen3": ("qwen3", SIZES | {"head_dim": 32}),
    "qwen3moe": ("qwen3_moe", next(iter(FAMILIES["qwen3_moe"].models))),
    "gemma": ("gemma", SIZES | {"head_dim": 16}),
    "gemma2": ("gemma2", SIZES | HEADS_OF_16 | {"sliding_window": 8}),
    "gemma3": ("gemma3_text", SIZES | HEADS_OF_16 | {"sliding_window": 8, "num_hidden_layers": 7}),
    "phi3": ("phi3", SIZES | {"pad_token_id": None}),
    "granite": ("granite", next(iter(FAMILIES["granite"].models))),
    "granitemoe": ("granitemoe", next(iter(FAMILIES["granitemoe"].models))),
    "smollm3": ("smollm3", SIZES | {"pad_token_id": None, "num_hidden_layers": 5}),
    "lfm2": ("lfm2", next(iter(FAMILIES["lfm2"].models))),
    "olmo2": ("olmo2", SIZES | {"pad_token_id": None}),
    "starcoder2": ("starcoder2", SIZES | {"sliding_window": None}),
    "gpt-oss": ("gpt_oss", FAMILIES["gpt_oss"].sizes | {"sliding_window": 9, "intermediate_size": 64}),
    "command-r": ("cohere", SIZES | {"pad_token_id": 0}),
    "cohere2": ("cohere2", SIZES | {"pad_token_id": 0, "sliding_window": 8, "num_hidden_layers": 5}),
}  # fmt: skip
"""Models of every architecture: transformers' model_type, and its fields or the name of a model of `rows.py`."""

READ_BY_TRANSFORMERS = {
    "llama", "llama-biases", "llama-3", "mistral", "qwen2", "qwen2-yarn", "qwen2moe", "qwen3", "qwen3moe", "gemma2",
    "gemma3", "phi3", "lfm2", "starcoder2",
}  # fmt: skip
"""Those that transformers reads from GGUF by itself, so that an export compares the two."""

FAST = ("llama-3", "gemma2", "granite", "qwen3moe")

ERROR = 1e-6
"""Largest relative difference of logits; transformers' tables of positions are float32."""

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
"""Sizes that blocks of 256 divide."""


def tokenizer_of(writer):
    """Add a vocabulary without merges, which transformers needs to read some architectures."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"<{token}>" for token in range(131)])


@pytest.fixture(scope="module")
def make(make_model, tmp_path_factory):
    """Return a function that writes a model, and returns its file and the module that it means."""

    def written(name, kind="F32", *, sizes=None, **options):
        family, fields = MODELS[name]
        fields = fields_of(family, fields) if isinstance(fields, str) else fields
        folder = make_model(family, **fields | (sizes or {}))
        path = tmp_path_factory.mktemp("gguf") / f"{name}-{kind}.gguf"
        options.setdefault("tokens", tokenizer_of)
        return path, gguf_writer.write_folder(folder, path, kind, **options)

    return written


def difference(path, model):
    """Return the difference of our logits of a file from those of transformers' module, over the largest."""
    source = open_source(path)
    reference = Reference(model_spec_of(source.config), source.weights())
    tokens = torch.randint(0, 131, (1, 40), generator=torch.Generator().manual_seed(0))
    comparison = KINDS[source.config.task].comparison
    with torch.no_grad():
        expected = model.double()(tokens).logits
        with reference.loaded():
            (ours,) = comparison.ours(reference.module, source.config, [tokens], reference.empty_caches(1))
    return float((ours - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", slow_unless(FAST, MODELS))
def test_a_model_is_what_its_file_says(make, name):
    path, model = make(name, "Q8_0")
    source = open_source(path)
    compared = compare_modules(source, source.weights())
    assert (compared.difference is not None) == (name in READ_BY_TRANSFORMERS), compared.reason
    assert difference(path, model) < ERROR


def test_every_architecture_is_tried():
    assert {name for name, _ in MODELS.values()} == {
        *(each.model_type for each in architectures.ARCHITECTURES.values()), "mistral", "mixtral",
    }  # fmt: skip


KINDS_OF_NUMBERS = [each.name for each in TYPES.values()]


@pytest.mark.parametrize("kind", slow_unless(("BF16", "Q5_1", "Q4_K", "MXFP4"), KINDS_OF_NUMBERS))
def test_numbers_of_every_type_are_read(make, kind):
    path, model = make("llama", kind, sizes=WIDE)
    stored = {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert kind in stored
    assert difference(path, model) < ERROR


def integers_of(path, name, rows_of_heads):
    """Return the integers [N, K] and scales [N, K / 32] of a tensor, read by the package and by its specification."""
    (tensor,) = (each for each in gguf.GGUFReader(path).tensors if each.name == name)
    blocks = np.array(tensor.data).reshape(len(tensor.data), -1, 18 if tensor.tensor_type.name == "Q4_0" else 34)
    scales = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    if tensor.tensor_type.name == "Q4_0":
        low, high = blocks[..., 2:] & 15, blocks[..., 2:] >> 4
        integers = np.concatenate([low, high], -1)
    else:
        integers = (blocks[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    integers = integers.reshape(len(integers), -1)
    if rows_of_heads:
        halves = np.arange(len(integers)).reshape(rows_of_heads, -1, 2).swapaxes(1, 2).ravel()
        integers, scales = integers[halves], scales[halves]
    return integers, scales


THEIRS = {
    "attention.query": ("attn_q", 4), "attention.key": ("attn_k", 2), "attention.value": ("attn_v", 0),
    "attention.output": ("attn_output", 0), "feed_forward.gate": ("ffn_gate", 0), "feed_forward.up": ("ffn_up", 0),
    "feed_forward.down": ("ffn_down", 0),
}  # fmt: skip


def stored_integers(bundle, manifest, bits):
    """Yield parameters, their integers and scales of a bundle, from the bytes of its graph."""
    graph = onnx.load(bundle / manifest.graph).graph
    found = {each.name: numpy_helper.to_array(each, str(bundle)) for each in graph.initializer}
    for name, stored in manifest.weights.items():
        if stored.part != "integers" or name not in found:
            continue
        raw = found[name].reshape(len(found[name]), -1)
        integers = np.stack((raw & 15, raw >> 4), -1).reshape(len(raw), -1) if bits == 4 else raw
        scales, start = found[name.removesuffix(".flat").replace("integers", "scales")].reshape(len(raw), -1), 0
        for parameter in stored.parameters:
            size = manifest_rows(parameter)
            yield parameter, integers[start : start + size], scales[start : start + size], stored.scaled
            start += size


def manifest_rows(parameter):
    widths = {"query": 64, "key": 32, "value": 32, "output": 64, "gate": 96, "up": 96, "down": 64}
    return widths.get(parameter.split(".")[-2], 131)


@pytest.mark.parametrize(("kind", "precision", "bits"), [("Q4_0", "int4", 4), ("Q8_0", "int8", 8)])
def test_integers_are_copied(make, tmp_path, kind, precision, bits):
    path, _ = make("llama", kind)
    result = export_model(path, tmp_path / "bundle", precision=precision, quantization=BLOCKS_OF_32)
    (check,) = (each for each in result.report.checks if each.name == "weights: copied blocks")
    assert check.value == 0
    compared = 0
    for parameter, integers, scales, scaled in stored_integers(tmp_path / "bundle", result.manifest, bits):
        layer, _, module = parameter.removeprefix("blocks.").removesuffix(".weight").partition(".")
        name, heads = THEIRS.get(module, ("", 0))
        tables = {"head.weight": "output.weight", "embedding.weight": "token_embd.weight"}
        theirs = tables.get(parameter, f"blk.{layer}.{name}.weight")
        expected, expected_scales = integers_of(path, theirs, heads)
        np.testing.assert_array_equal(integers, expected, err_msg=parameter)
        factor = scaled.factor if scaled is not None and "query" in parameter else 1
        np.testing.assert_allclose(scales, expected_scales * factor, rtol=2e-7, err_msg=parameter)
        compared += 1
    assert compared == 3 * 7 + 2
    assert verify(tmp_path / "bundle", path, mode="quick").passed


TRAINED_FOR_ROUNDING = {
    "float32": ({}, torch.float32),
    "bfloat16": ({}, torch.bfloat16),
    "wide": (WIDE | {"num_key_value_heads": 1, "sliding_window": 5}, torch.bfloat16),
}
"""Sizes of checkpoints like those of Gemma's quantization-aware training, and the type in which they are stored."""


@pytest.mark.parametrize("name", slow_unless({"bfloat16", "wide"}, TRAINED_FOR_ROUNDING))
def test_weights_that_were_trained_for_q4_0_become_its_integers(make_model, tmp_path, name):
    """The checkpoint is not rounded yet; weights of few digits have extremes of both signs, and halves of steps."""
    sizes, dtype = TRAINED_FOR_ROUNDING[name]
    folder = make_model("gemma3_text", dtype=dtype, **MODELS["gemma3"][1] | {"num_hidden_layers": 2} | sizes)
    gguf_writer.write_folder(folder, tmp_path / "q4_0.gguf", "Q4_0", tokens=tokenizer_of)
    chosen = {"nearest": QuantizationOverrides(block=32, rounding="nearest"), "mse": QuantizationOverrides(block=32)}
    kept = export_model(tmp_path / "q4_0.gguf", tmp_path / "kept", precision="int4", quantization=chosen["mse"])
    assert "weights: copied blocks" in {check.name for check in kept.report.checks}
    found = {"kept": dict(integers_by_parameter(tmp_path / "kept", kept.manifest))}
    for rounding, overrides in chosen.items():
        made = export_model(folder, tmp_path / rounding, precision="int4", quantization=overrides)
        found[rounding] = dict(integers_by_parameter(tmp_path / rounding, made.manifest))
    assert len(found["kept"]) > 10
    for parameter, integers in found["kept"].items():
        np.testing.assert_array_equal(found["nearest"][parameter], integers, err_msg=parameter)
    assert any((found["mse"][each] != integers).any() for each, integers in found["kept"].items()), "it moves ranges"


def integers_by_parameter(bundle, manifest):
    """Yield the integers of a bundle as its graph stores them."""
    for name, integers, _, _ in stored_integers(bundle, manifest, 4):
        yield name, integers


def test_other_blocks_are_rounded_as_asked(make, tmp_path):
    path, _ = make("llama", "Q4_0")
    result = export_model(path, tmp_path / "bundle", precision="int4", quantization=QuantizationOverrides(block=16))
    assert not [each for each in result.report.checks if "copied" in each.name]


def swapped(tensor, raw, bits):
    integers, scales = INTEGERS(tensor, raw, bits)
    return integers.unflatten(-1, (2, -1)).flip(-2).flatten(-2), scales


def one_off(tensor, raw, bits):
    integers, scales = INTEGERS(tensor, raw, bits)
    return integers - 1, scales


def one_scale_off(tensor, raw, bits):
    integers, scales = INTEGERS(tensor, raw, bits)
    return integers, scales.roll(1, -1)


INTEGERS = tensors._integers
BLOCKS_OF_32 = QuantizationOverrides(block=32)


@pytest.mark.parametrize("fault", [swapped, one_off, one_scale_off])
def test_integers_that_are_read_wrong_are_refused(make, tmp_path, monkeypatch, fault):
    path, _ = make("llama", "Q4_0", sizes={"num_hidden_layers": 1})
    monkeypatch.setattr(tensors, "_integers", fault)
    with pytest.raises(ParityError, match="block error"):
        export_model(path, tmp_path / "bundle", precision="int4", quantization=BLOCKS_OF_32)


@pytest.mark.parametrize(("name", "forgotten"), [("llama", "permuted"), ("gemma2", "norm_offset")])
def test_what_llama_cpp_changes_must_be_undone(make, tmp_path, monkeypatch, name, forgotten):
    path, _ = make(name, "Q8_0", sizes={"num_hidden_layers": 2})
    wrong = vars(architectures.ARCHITECTURES[name]) | {forgotten: False}
    monkeypatch.setitem(architectures.ARCHITECTURES, name, architectures.Architecture(**wrong))
    with pytest.raises(ExportError, match="does not compute what transformers"):
        export_model(path, tmp_path / "bundle")


@pytest.mark.parametrize(("name", "fault"), [("llama", "unpaired"), ("gemma2", "plain norms")])
def test_a_converter_that_forgets_it_is_seen_by_the_oracle(make, name, fault):
    path, model = make(name, "F16", fault=fault)
    assert difference(path, model) > 1e-3


def test_a_split_model_is_read_whole(make, tmp_path):
    path, model = make("llama", "Q8_0", shards=2)
    parts = sorted(path.parent.glob("*.gguf"))
    assert len(parts) > 1
    assert difference(parts[0], model) < ERROR
    assert difference(path.parent, model) < ERROR, "the folder of one split model"


def test_experts_keep_their_integers(make, tmp_path):
    path, _ = make("granitemoe", "Q4_0")
    result = export_model(path, tmp_path / "bundle", precision="int4")
    checks = {each.name: each for each in result.report.checks}
    assert checks["weights: copied blocks"].value == 0
