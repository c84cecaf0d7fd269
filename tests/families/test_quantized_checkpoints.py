"""Checkpoints in GPTQ, AWQ, compressed-tensors, float8 and bitsandbytes: their numbers, and integers that are copied.

torchao and modelopt are in test_written_checkpoints.py.

The writers here follow the formats' own packers; where a package of a format is installed, it is the other reader.
"""

import functools
import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from lora.peft_adapters import adapted_outputs, make_adapter
from safetensors.torch import load_file, save_file

from edgeformer.checkpoints.merged_source import merge_adapter
from edgeformer.checkpoints.quantized import compressed, microscaling
from edgeformer.checkpoints.source import open_source
from edgeformer.errors import ConfigError, ExportError, WeightsError
from edgeformer.export import export_model
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 16, "initializer_range": 0.2,
}  # fmt: skip
GROUP = 32
IDS = [[5, 17, 3, 90, 41, 8, 8, 63, 2, 30]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder with a plain model."""
    folder = tmp_path_factory.mktemp("plain")
    torch.manual_seed(4)
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)).save_pretrained(folder)
    return folder


def packed(fields, bits):
    """Pack integers [..., n] into int32 words, the first in the lowest bits."""
    shifts = torch.arange(0, 32, bits)
    words = (fields.long().unflatten(-1, (-1, 32 // bits)) << shifts).sum(-1)
    return words.to(torch.uint32).view(torch.int32)


def grouped(weight, bits, size, groups=None, *, symmetric=False):
    """Round a matrix [N, K] in groups; return integers, scales, zeros, and the matrix that they mean, in float64."""
    order = torch.arange(weight.shape[1]) // size if groups is None else groups
    integers, weight = torch.empty_like(weight, dtype=torch.float64), weight.double()
    scales, zeros = torch.empty(2, len(weight), int(order.max()) + 1, dtype=torch.float64)
    top = (1 << bits) - 1
    for group in range(scales.shape[1]):
        part = weight[:, order == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scale = (2 * torch.maximum(high, -low) if symmetric else high - low).div(top).half().double()
        zero = torch.full_like(low, (top + 1) / 2) if symmetric else (-low / scale).round().clamp(1, top)
        integers[:, order == group] = (part / scale[:, None] + zero[:, None]).round().clamp(0, top)
        scales[:, group], zeros[:, group] = scale, zero
    return integers, scales, zeros, (integers - zeros[:, order]) * scales[:, order]


def gptq(weight, bits=4, size=GROUP, *, symmetric=True, act_order=False, v2=False):
    groups = torch.randperm(weight.shape[1]) // size if act_order else None
    integers, scales, zeros, meant = grouped(weight, bits, size, groups, symmetric=symmetric)
    order = torch.arange(weight.shape[1]) // size if groups is None else groups
    words = packed(zeros.T.contiguous(), bits)
    ones = sum(1 << shift for shift in range(0, 32, bits))
    stored = {
        "qweight": packed(integers.contiguous(), bits).T.contiguous(),
        "qzeros": words if v2 else ((words.long() - ones) & 0xFFFFFFFF).to(torch.uint32).view(torch.int32),
        "scales": scales.T.half().contiguous(),
        "g_idx": order.int(),
    }
    return stored, meant


def awq(weight, size=GROUP):
    integers, scales, zeros, meant = grouped(weight, 4, size)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def by_outputs(fields):
        return packed(fields.T.unflatten(-1, (-1, 8))[..., order].flatten(-2).contiguous(), 4)

    return {"qweight": by_outputs(integers), "qzeros": by_outputs(zeros), "scales": scales.T.half().contiguous()}, meant


def pack_quantized(weight, bits=4, size=GROUP, *, symmetric=True):
    integers, scales, zeros, _ = grouped(weight, bits, size, symmetric=symmetric)
    stored = {
        "weight_packed": packed(integers.contiguous(), bits), "weight_scale": scales.bfloat16(),
        "weight_shape": torch.tensor(weight.shape),
    }  # fmt: skip
    exact = scales.bfloat16().double()
    if not symmetric:
        stored["weight_zero_point"] = packed(zeros.T.contiguous(), bits).T.contiguous()
    return stored, ((integers.unflatten(1, (-1, size)) - zeros[..., None]) * exact[..., None]).flatten(1)


def int_quantized(weight):
    scale = (weight.double().abs().amax(1, keepdim=True) / 127).float()
    integers = (weight.double() / scale).round().to(torch.int8)
    return {"weight": integers, "weight_scale": scale}, integers.double() * scale


def float8(weight, block=None, last="weight_scale_inv"):
    if block is None:
        scale = weight.abs().amax(1, keepdim=True).float() / 448
        full = scale
    else:
        rows, columns = weight.shape
        scale = torch.rand(-(-rows // block[0]), -(-columns // block[1])) * 0.01 + 0.001
        full = scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    numbers = (weight / full).to(torch.float8_e4m3fn)
    return {"weight": numbers, last: scale}, numbers.double() * full


def microscaled(weight, form):
    """Pack a matrix with the package's own packer. Returns its numbers as it unpacks them, in float64."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationScheme

    size, blocks = MICROSCALED[form]["group_size"], weight.unflatten(1, (-1, MICROSCALED[form]["group_size"]))
    largest = blocks.abs().amax(-1)
    stored = {"weight": weight}
    if "nvfp4" in form:
        stored["weight_global_scale"] = (448 * 6 / weight.abs().amax()).float().reshape(1)
        stored["weight_scale"] = (largest / 6 * stored["weight_global_scale"]).to(torch.float8_e4m3fn).float()
    else:
        top = 6 if "mxfp4" in form else 448
        stored["weight_scale"] = torch.exp2((largest / top).log2().ceil())
    scheme = QuantizationScheme(targets=["Linear"], weights=MICROSCALED[form] | {"type": "float", "symmetric": True})
    packer = BaseCompressor.get_value_from_registry(form)
    packed = packer.compress(stored, scheme)
    scale, divisor = stored["weight_scale"].double(), stored.get("weight_global_scale", torch.ones(1)).double()
    numbers = (
        unpack_fp4_from_uint8(packed["weight_packed"], *weight.shape, dtype=torch.float64)
        if "weight_packed" in packed else packed["weight"].double()
    )  # fmt: skip
    return packed, (numbers.unflatten(1, (-1, size)) * (scale / divisor)[..., None]).flatten(1)


MICROSCALED = {
    "nvfp4-pack-quantized": {"num_bits": 4, "strategy": "tensor_group", "group_size": 16},
    "mxfp4-pack-quantized": {"num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    "mxfp8-quantized": {"num_bits": 8, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
}
"""Arguments of compressed-tensors by format."""

NF4 = torch.tensor([-1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0])
"""A table like that of nf4; the file brings its own."""


def nf4(weight, *, nested=False):
    blocks = weight.double().flatten().reshape(-1, 64)
    absmax, offset = blocks.abs().amax(1), 0.0
    stored = {"quant_map": NF4.clone()}
    if nested:
        table, offset = torch.linspace(-1, 1, 256), float(absmax.mean())
        outer = (absmax - offset).abs().amax().reshape(1)
        indices = ((absmax - offset) / outer)[:, None].sub(table).abs().argmin(1)
        absmax = table[indices].double() * outer.float().double() + offset
        stored |= {
            "absmax": indices.to(torch.uint8), "nested_absmax": outer.float(), "nested_quant_map": table,
        }  # fmt: skip
    else:
        absmax = absmax.float().double()
        stored["absmax"] = absmax.float()
    indices = (blocks / absmax[:, None])[..., None].sub(NF4).abs().argmin(-1)
    flat = indices.flatten()
    state = {
        "quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape),
        "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset,
    }  # fmt: skip
    name = "quant_state.bitsandbytes__nf4"
    stored[name] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    stored = {f"weight.{last}": tensor for last, tensor in stored.items()}
    stored["weight"] = (flat[::2] << 4 | flat[1::2]).to(torch.uint8)[:, None]
    return stored, (NF4.double()[indices] * absmax[:, None]).reshape(weight.shape)


def int8_rows(weight):
    scale = weight.double().abs().amax(1).float()
    integers = (weight.double() * 127 / scale[:, None]).round().to(torch.int8)
    return {"weight": integers, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}, (
        integers.double() * scale[:, None] / 127
    )


def ct(form, **weights):
    group = {"weights": {"type": "int", "symmetric": True, **weights}, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "quantization_status": "compressed",
    }  # fmt: skip


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
W4 = {"num_bits": 4, "strategy": "group", "group_size": GROUP}
BNB = {"quant_method": "bitsandbytes"}
FORMATS = {
    "gptq": (GPTQ | {"sym": True}, gptq),
    "gptq-asymmetric": (GPTQ, lambda weight: gptq(weight, symmetric=False)),
    "gptq-act-order": (GPTQ | {"desc_act": True}, lambda weight: gptq(weight, act_order=True, symmetric=False)),
    "gptq-v2-int8": (
        GPTQ | {"bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"},
        lambda weight: gptq(weight, 8, weight.shape[1], v2=True),
    ),
    "gptq-int2": (GPTQ | {"bits": 2}, lambda weight: gptq(weight, 2, symmetric=False)),
    "awq": (AWQ, awq),
    "w4a16": (ct("pack-quantized", **W4), pack_quantized),
    "w4a16-asymmetric": (ct("pack-quantized", **W4 | {"symmetric": False}),
                         lambda weight: pack_quantized(weight, symmetric=False)),
    "w8a16": (ct("pack-quantized", **W4 | {"num_bits": 8}), lambda weight: pack_quantized(weight, 8)),
    "w8a8": (ct("int-quantized", num_bits=8, strategy="channel"), int_quantized),
    "w8a8-float": (ct("float-quantized", num_bits=8, type="float", strategy="channel"),
                   lambda weight: float8(weight, last="weight_scale")),
    "w8a8-float-blocks": (
        ct("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[32, 64]),
        lambda weight: float8(weight, (32, 64), "weight_scale"),
    ),
    **{
        form: (ct(form, type="float", **json.loads(json.dumps(of, default=str))), partial(microscaled, form=form))
        for form, of in MICROSCALED.items()
    },
    "fp8-blocks": (FP8 | {"weight_block_size": [24, 48]}, lambda weight: float8(weight, (24, 48))),
    "fp8-even-blocks": (FP8 | {"weight_block_size": [32, 64]}, lambda weight: float8(weight, (32, 64))),
    "nf4": (BNB | {"load_in_4bit": True}, nf4),
    "nf4-nested": (BNB | {"load_in_4bit": True}, lambda weight: nf4(weight, nested=True)),
    "int8": (BNB | {"load_in_8bit": True}, int8_rows),
}  # fmt: skip


@pytest.fixture(scope="module")
def quantized(plain, tmp_path_factory):
    """Return a function that writes the model in a format; it returns the folder, and the matrices that are meant."""
    root, made = tmp_path_factory.mktemp("quantized"), {}

    def write(name):
        if name in made:
            return made[name]
        options, quantize = FORMATS[name]
        folder = root / name
        shutil.copytree(plain, folder)
        torch.manual_seed(11)
        tensors, meant = {}, {}
        for key, tensor in load_file(plain / "model.safetensors").items():
            if not key.endswith("_proj.weight"):
                tensors[key] = meant[key] = tensor
                continue
            stored, meant[key] = quantize(tensor)
            module = key.removesuffix(".weight")
            tensors |= {f"{module}.{last}": each.contiguous() for last, each in stored.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text()) | {"quantization_config": options}
        (folder / "config.json").write_text(json.dumps(config))
        made[name] = folder, meant
        return made[name]

    return write


def logits_of(plain, meant):
    """Return the logits of transformers' module with given matrices, in float64."""
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float64, attn_implementation="eager")
    model.load_state_dict({name: tensor.double() for name, tensor in meant.items()}, strict=False)
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits[0].numpy()


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_those_that_the_integers_mean(plain, quantized, name):
    folder, meant = quantized(name)
    weights = open_source(folder).weights()
    same = open_source(plain).weights()
    assert list(weights) == list(same)
    for ours in weights:
        theirs = weights._places[ours].tensor
        expected = meant[theirs] if theirs in meant else same[ours]
        torch.testing.assert_close(weights[ours].double(), expected.double(), atol=1e-6, rtol=1e-6)
        rows = slice(1, 7)
        torch.testing.assert_close(weights.read_rows(ours, rows), weights[ours][rows], atol=0, rtol=0)
    assert any(not torch.allclose(weights[ours], same[ours], atol=1e-4) for ours in weights), "nothing was rounded"


COPIED = {
    "gptq": ("int4", {}), "gptq-asymmetric": ("int4", {"symmetric": False}), "awq": ("int4", {"symmetric": False}),
    "gptq-v2-int8": ("int8", {"block": 64}), "w4a16": ("int4", {}),
    "w4a16-asymmetric": ("int4", {"symmetric": False}), "w8a16": ("int8", {"block": 16}),
    "w8a8": ("int8", {"activations": "per_token"}), "int8": ("int8", {"activations": "per_token"}),
}  # fmt: skip
"""The precision and the options with which the integers of a format are those of the bundle."""


@pytest.mark.parametrize("name", COPIED)
def test_integers_are_copied_and_verified(plain, quantized, tmp_path, name):
    precision, options = COPIED[name]
    chosen = make_quantization(precision, QuantizationOverrides(**options))
    result = export_model(quantized(name)[0], tmp_path / "bundle", precision=precision, quantization=chosen)
    report = json.loads((result.path / "parity" / "report.json").read_text())
    [copied] = [check for check in json_checks(report) if check["name"] == "weights: copied blocks"]
    assert copied["value"] == 0
    assert "quantization_config" not in json.loads((result.path / "config.json").read_text())


def json_checks(found):
    """Yield the checks of a report, wherever they stand in it."""
    if isinstance(found, dict):
        if {"name", "value", "limit"} <= found.keys():
            yield found
        for each in found.values():
            yield from json_checks(each)
    elif isinstance(found, list):
        for each in found:
            yield from json_checks(each)


@pytest.mark.parametrize("name", ["gptq-act-order", "fp8-blocks", "nf4-nested"])
def test_a_bundle_computes_what_the_checkpoint_means(plain, quantized, tmp_path, name):
    folder, meant = quantized(name)
    bundle = export_model(folder, tmp_path / "bundle", precision="fp32").path
    found = load(bundle).forward(IDS[0])
    np.testing.assert_allclose(np.asarray(found).reshape(-1, 96), logits_of(plain, meant), atol=2e-5)
    assert np.abs(logits_of(plain, meant) - logits_of(plain, {})).max() > 1e-3, "the control: rounding shows"


@pytest.fixture(scope="module")
def qlora(plain, quantized, tmp_path_factory):
    """Return a function of a format: the folder of a base, an adapter, and PEFT's logits without and with it.

    PEFT's base is plain, and has the matrices that the integers mean: in float64, no kernel of a format takes part.
    """

    def make(name):
        folder, meant = quantized(name)
        root = tmp_path_factory.mktemp(name)
        base = shutil.copytree(plain, root / "meant")
        save_file({key: each.double() for key, each in meant.items()}, base / "model.safetensors", {"format": "pt"})
        adapter = make_adapter(base, root / "adapter", target_modules="all-linear")
        adapted = adapted_outputs(base, adapter, "AutoModelForCausalLM", input_ids=torch.tensor(IDS))
        return folder, adapter, logits_of(plain, meant), adapted.logits[0].numpy()

    return functools.cache(make)


@pytest.mark.parametrize("name", ["nf4", "nf4-nested", "awq"])
def test_an_adapter_is_merged_into_what_a_quantized_base_means(qlora, name):
    folder, adapter, alone, expected = qlora(name)
    source = merge_adapter(open_source(folder), adapter)
    reference = Reference(model_spec_of(source.config), source.weights())
    with torch.no_grad():
        found = reference.run(torch.tensor(IDS))[0][0].numpy()
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max()
    assert np.abs(alone - expected).max() > 1e-2 * np.abs(expected).max(), "the control: without it they differ"


@pytest.mark.slow  # exports
@pytest.mark.parametrize(
    ("name", "precision", "options", "allowed"),
    [("nf4", "fp32", {}, 1e-5), ("awq", "int4", {"symmetric": False, "head": "fp32"}, 0.05)],
)
def test_an_adapter_runs_beside_a_quantized_base(qlora, tmp_path, name, precision, options, allowed):
    """Integers of AWQ stay what they are; their products round activations."""
    folder, adapter, alone, expected = qlora(name)
    chosen = make_quantization(precision, QuantizationOverrides(**options)) if options else None
    result = export_model(
        folder, tmp_path / "bundle", precision=precision, quantization=chosen, adapters={"tuned": adapter}
    )
    copied = [check.value for check in result.report.checks if check.name == "weights: copied blocks"]
    assert copied == ([0] if options else [])
    found = load(result.path).new_decoder(1, len(IDS[0]), "tuned").prefill_all(0, IDS[0])
    assert np.abs(found - expected).max() < allowed * np.abs(expected).max()
    assert np.abs(alone - expected).max() > 3 * allowed * np.abs(expected).max()


def test_an_export_compares_with_what_transformers_reads(plain, quantized, tmp_path):
    """transformers makes plain weights of float8; a scale that is read otherwise is refused."""
    folder, _ = quantized("fp8-even-blocks")
    compared = compare_modules(open_source(folder), open_source(folder).weights())
    assert compared.difference is not None and compared.difference < 1e-6
    wrong = dict(open_source(folder).weights())
    wrong["blocks.0.feed_forward.gate.weight"] = wrong["blocks.0.feed_forward.gate.weight"] * 1.01
    with pytest.raises(ExportError, match="does not compute what transformers"):
        compare_modules(open_source(folder), wrong)


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name][0]["quant_method"] == "compressed-tensors"])
def test_compressed_tensors_are_those_of_their_package(quantized, name):
    source = open_source(quantized(name)[0])
    compared = compare_modules(source, source.weights())
    assert compared.difference is not None and compared.difference < 1e-6


MISREAD_FAULTS = {
    "half bytes swapped": ("weight_packed", lambda packed: (packed << 4) | (packed >> 4)),
    "scale of the matrix left out": ("weight_global_scale", torch.ones_like),
    "scales read as e5m2": ("weight_scale", lambda scales: scales.view(torch.float8_e5m2)),
    "groups transposed": ("weight_scale", lambda scales: scales.float().T.reshape(scales.shape)),
}  # fmt: skip


@pytest.mark.parametrize("fault", MISREAD_FAULTS)
def test_verification_refuses_nvfp4_read_wrong(quantized, monkeypatch, fault):
    """A reading of our own that is wrong differs from that of the package."""
    last, wrong = MISREAD_FAULTS[fault]
    original = compressed.read
    monkeypatch.setattr(
        compressed, "read", lambda stored, name: (wrong if name.endswith(last) else torch.clone)(original(stored, name))
    )
    if last == "weight_packed":
        numbers = microscaling.float4_numbers
        monkeypatch.setattr(microscaling, "float4_numbers", lambda packed: numbers(wrong(packed)))
    source = open_source(quantized("nvfp4-pack-quantized")[0])
    with pytest.raises(ExportError, match="does not compute what transformers"):
        compare_modules(source, source.weights())


def halves_swapped(packed):
    """Exchange both halves of every byte."""
    flat = packed.contiguous().view(torch.uint8)
    return ((flat << 4) | (flat >> 4)).view(packed.dtype)


def transposed(scales):
    return scales.T.reshape(scales.shape)


FAULTS = {
    "gptq, half bytes swapped": ("gptq", "qweight", halves_swapped),
    "gptq, zero points one lower": ("gptq-asymmetric", "qzeros", lambda words: words - 0x11111111),
    "gptq, groups transposed": ("gptq", "scales", transposed),
    "gptq, order of activations ignored": ("gptq-act-order", "g_idx", lambda order: order.sort().values),
    "gptq, groups in another order": ("gptq-act-order", "g_idx", lambda order: order.flip(0)),
    "gptq_v2, zero points one higher": ("gptq-v2-int8", "qzeros", lambda words: words + 0x01010101),
    "awq, half bytes swapped": ("awq", "qweight", halves_swapped),
    "awq, zero points one lower": ("awq", "qzeros", lambda words: words - 0x11111111),
    "awq, groups transposed": ("awq", "scales", transposed),
    "w4a16, half bytes swapped": ("w4a16", "weight_packed", halves_swapped),
    "w4a16, zero points one lower": ("w4a16-asymmetric", "weight_zero_point", lambda words: words - 0x11111111),
    "w4a16, groups transposed": ("w4a16", "weight_scale", transposed),
    "w4a16, scales of other groups": ("w4a16", "weight_scale", lambda scales: scales.flip(1)),
    "w8a8, scales of other outputs": ("w8a8", "weight_scale", lambda scales: scales.roll(1, 0)),
    "fp8, blocks in another order": ("fp8-even-blocks", "weight_scale_inv", lambda scales: scales.flip(0)),
    "nf4, half bytes swapped": ("nf4", "weight", halves_swapped),
    "nf4, blocks in another order": ("nf4", "weight.absmax", lambda absmax: absmax.roll(1)),
    "int8 by rows, scales of other rows": ("int8", "SCB", lambda scales: scales.roll(1)),
}  # fmt: skip
"""A format, a tensor of it, and what a reader that is wrong would make of it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_the_weights(quantized, tmp_path, fault):
    """The negative control: the order of fields, zero points, groups and scales each decide about the weights."""
    name, last, wrong = FAULTS[fault]
    folder, meant = quantized(name)
    shutil.copytree(folder, tmp_path / "wrong")
    tensors = load_file(folder / "model.safetensors")
    key = f"model.layers.1.mlp.up_proj.{last}"
    tensors[key] = wrong(tensors[key]).contiguous()
    save_file(tensors, tmp_path / "wrong" / "model.safetensors", {"format": "pt"})
    found = open_source(tmp_path / "wrong").weights()["blocks.1.feed_forward.up.weight"]
    assert (found.double() - meant["model.layers.1.mlp.up_proj.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant_method": "aqlm"}, "quant_method = 'aqlm'; weights are read in gptq, awq, compressed-tensors, fp8"),
        ({"bits": 4}, "quant_method = None; weights are read in"),
        (GPTQ | {"bits": 3}, r"quantization_config\.bits = 3, and edgeformer reads gptq where it is one of 2, 4, 8"),
        (AWQ | {"version": "gemv"}, r"quantization_config\.version = 'gemv', and edgeformer reads awq where"),
        (ct("marlin-24"), r"quantization_config\.format = 'marlin-24', and edgeformer reads compressed-tensors"),
        (
            ct("pack-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            r"quantization_config\.sparsity_config = .* where it is dense",
        ),
        (
            FP8 | {"weight_block_size": 128},
            r"weight_block_size = 128, and edgeformer reads fp8 where it is two numbers",
        ),
    ],
)
def test_formats_that_are_not_read_are_refused(plain, tmp_path, options, message):
    shutil.copytree(plain, tmp_path / "model")
    config = json.loads((plain / "config.json").read_text()) | {"quantization_config": options}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        open_source(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "last", "wrong", "message"),
    [
        ("gptq-act-order", "g_idx", lambda order: order + 1, r"has columns in group 4 \(g_idx\)"),
        (
            "nf4",
            "weight.quant_state.bitsandbytes__nf4",
            lambda state: state[:9],
            "does not say the shape of its matrix",
        ),
        ("awq", "scales", lambda scales: scales[:3], r"scales is \[3, 64\], and \[4, 64\] follows from"),
    ],
)
def test_tensors_that_do_not_fit_are_named(quantized, tmp_path, name, last, wrong, message):
    folder, _ = quantized(name)
    shutil.copytree(folder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    key = f"model.layers.0.mlp.down_proj.{last}"
    tensors[key] = wrong(tensors[key]).contiguous()
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=message):
        dict(open_source(tmp_path / "model").weights())


def test_plain_weights_that_claim_a_format_are_refused(plain, tmp_path):
    shutil.copytree(plain, tmp_path / "model")
    config = json.loads((plain / "config.json").read_text()) | {"quantization_config": GPTQ}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"says that weights are quantized, and the checkpoint has none that are"):
        open_source(tmp_path / "model").weights()


@pytest.mark.parametrize(
    ("name", "last", "message"),
    [
        ("gptq", "scales", r"lacks model\.layers\.0\.mlp\.down_proj\.scales, without which the integers mean nothing"),
        ("gptq", "qzeros", r"lacks .*qzeros"),
        ("awq", "qzeros", r"lacks .*qzeros"),
        ("w4a16", "weight_scale", r"lacks .*weight_scale"),
        ("w4a16", "weight_shape", r"lacks .*weight_shape"),
        ("w8a8", "weight", r"lacks .*weight, without"),
        ("nf4", "weight.absmax", r"lacks .*absmax"),
    ],
)
def test_a_missing_tensor_is_named(quantized, tmp_path, name, last, message):
    folder, _ = quantized(name)
    shutil.copytree(folder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"model.layers.0.mlp.down_proj.{last}"]
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=message):
        open_source(tmp_path / "model").weights()
