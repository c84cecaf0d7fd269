"""Checkpoints that libraries wrote, and what they mean by these: tools/checkpoints/quantized_fixtures.py."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from edgeformer.checkpoints.quantized.torchao import untiled
from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.tensor_files import open_tensors
from edgeformer.errors import ConfigError, WeightsError
from edgeformer.export import export_model
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization

FOLDER = Path(__file__).parent / "quantized_checkpoints"
NAMES = sorted(path.name for path in FOLDER.iterdir())
MATRIX = "model.layers.0.mlp.gate_proj.weight"
"""A matrix of more than 128 outputs."""


def digest(weight):
    return hashlib.sha256((weight + 0.0).contiguous().numpy().tobytes()).hexdigest()


def of_library(folder):
    return json.loads((folder / "dequantized.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_that_the_library_dequantizes(name):
    """All bits of all matrices."""
    stored, expected = open_tensors(FOLDER / name), of_library(FOLDER / name)
    assert len(expected) == 7
    assert {key: digest(stored[key].get_tensor(key)) for key in expected} == expected
    part = stored[MATRIX].get_slice(MATRIX)[3:9]
    torch.testing.assert_close(part, stored[MATRIX].get_tensor(MATRIX)[3:9], atol=0, rtol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("torchao-int")])
def test_all_integers_of_torchao_are_copied(name):
    files, stored = open_tensors(FOLDER / name), load_file(FOLDER / name / "model.safetensors")
    bits = 4 if "int4" in name else 8
    middle, block = 1 << (bits - 1), None if bits == 8 and "groups" not in name else 32
    for key in of_library(FOLDER / name):
        raw = {last: stored[key.replace(".weight", f"._weight_{last}")] for last in ("qdata", "scale", "zero_point")}
        integers, scales, zeros = files[key].get_slice(key).blocks(bits, block, symmetric="asymmetric" not in name)
        assert torch.equal(integers.flatten(1).int() - middle, raw["qdata"].int())
        assert torch.equal(scales, raw["scale"].float())
        assert torch.equal(zeros.int() - middle, raw["zero_point"].int())


def test_integers_of_awq_in_modelopt_are_copied():
    folder = FOLDER / "modelopt-awq"
    files, stored = open_tensors(folder), load_file(folder / "model.safetensors")
    integers, scales, zeros = files[MATRIX].get_slice(MATRIX).blocks(4, 32, symmetric=True)
    halves = torch.stack([stored[MATRIX] % 16, stored[MATRIX] // 16], 1).flatten(0, 1).int()
    assert torch.equal(integers.flatten(1).int() - 8, halves - 16 * (halves > 7).int())
    assert torch.equal(scales, stored[f"{MATRIX}_scale"]) and bool((zeros == 8).all())
    factors = f"{DOWN}.weight"
    assert getattr(files[factors].get_slice(factors), "blocks", None) is None, "inputs have factors"


def test_integers_of_bitsandbytes_are_copied():
    folder = FOLDER / "bitsandbytes-int8"
    files, stored = open_tensors(folder), load_file(folder / "model.safetensors")
    for key in of_library(folder):
        integers, scales, zeros = files[key].get_slice(key).blocks(8, None, symmetric=True)
        assert torch.equal(integers.flatten(1).int() - 128, stored[key].int()) and bool((zeros == 128).all())
        assert torch.equal(scales[:, 0], stored[key.replace(".weight", ".SCB")] / 127)


@pytest.mark.parametrize("kind", ["w8a8", "w8a8-gptq"])
def test_bytes_of_llm_compressor_are_copied(kind):
    folder = FOLDER / f"llmcompressor-{kind}"
    files, stored = open_tensors(folder), load_file(folder / "model.safetensors")
    for key in of_library(folder):
        integers, scales, zeros = files[key].get_slice(key).blocks(8, None, symmetric=True)
        assert torch.equal(integers.flatten(1).int() - 128, stored[key].int()) and bool((zeros == 128).all())
        assert torch.equal(scales, stored[f"{key}_scale"].float())


@pytest.mark.parametrize("kind", ["w4a16", "w4a16-asymmetric", "w4a16-gptq"])
def test_integers_of_llm_compressor_are_copied(kind):
    folder = FOLDER / f"llmcompressor-{kind}"
    files, stored = open_tensors(folder), load_file(folder / "model.safetensors")
    packed = stored[MATRIX.replace(".weight", ".weight_packed")]
    halves = torch.stack([packed >> 4 * place & 15 for place in range(8)], -1).flatten(1)
    integers, scales, zeros = files[MATRIX].get_slice(MATRIX).blocks(4, 32, symmetric="asymmetric" not in kind)
    assert torch.equal(integers.flatten(1).int(), halves.int())
    assert torch.equal(scales, stored[MATRIX.replace(".weight", ".weight_scale")])
    assert bool((zeros == 8).all()) == ("asymmetric" not in kind)


WORDS = {
    "gptqmodel-gptq": (4, 32, True), "gptqmodel-gptq-asymmetric": (4, 32, False),
    "gptqmodel-gptq-v2-int8": (8, 32, False), "gptqmodel-awq": (4, 32, False),
    "gptqmodel-awq-symmetric": (4, 32, False), "gptqmodel-awq-groups-of-64": (4, 64, False),
    "autoawq-groups-of-16": (4, 16, False), "autoawq-groups-of-32": (4, 32, False),
    "autoawq-groups-of-64": (4, 64, False),
}  # fmt: skip
"""Bits, inputs of a group, and whether the integers need no zero points."""


@pytest.mark.parametrize("name", WORDS)
def test_integers_of_gptq_and_awq_are_copied(name):
    """Field by field of the words, in plain Python."""
    (bits, size, symmetric), folder = WORDS[name], FOLDER / name
    files, stored = open_tensors(folder), load_file(folder / "model.safetensors")
    for key in of_library(folder):
        words, zeros, scales = (stored[key.replace("weight", last)] for last in ("qweight", "qzeros", "scales"))
        integers, ours, middle = files[key].get_slice(key).blocks(bits, size, symmetric=symmetric)
        outputs, inputs = files[key].get_slice(key).get_shape()
        awq, fields = "awq" in name, 32 // bits
        lowered = int(not awq and "v2" not in name)

        def field(row, place, awq=awq, fields=fields):
            """Return a field of a row of words; in AWQ the first of eight outputs are 0, 2, 4, 6, 1, 3, 5, 7."""
            shift = (0, 4, 1, 5, 2, 6, 3, 7)[place % fields] if awq else place % fields
            return row[place // fields] >> shift * bits & (1 << bits) - 1

        rows = words.tolist() if awq else words.T.tolist()
        found = [[field(row, place) for place in range(outputs if awq else inputs)] for row in rows]
        expected = torch.tensor(found).T if awq else torch.tensor(found)
        assert torch.equal(integers.flatten(1).long(), expected)
        found = [[field(row, place) + lowered for place in range(outputs)] for row in zeros.tolist()]
        assert torch.equal(middle.long(), torch.tensor(found).T) and torch.equal(ours, scales.float().T)


def test_groups_in_the_order_of_activations_are_not_copied():
    files, name = open_tensors(FOLDER / "gptqmodel-gptq-act-order"), f"{DOWN}.weight"
    order = load_file(FOLDER / "gptqmodel-gptq-act-order" / "model.safetensors")[f"{DOWN}.g_idx"]
    assert not torch.equal(order, order.sort().values), "the library ordered them"
    assert files[name].get_slice(name).blocks(4, 32, symmetric=False) is None


@pytest.mark.slow  # the integers themselves are compared above
@pytest.mark.parametrize(
    ("name", "precision", "options"),
    [
        ("torchao-int4-asymmetric", "int4", {"symmetric": False}),
        ("torchao-int4-dynamic", "int4", {}),
        ("torchao-int8-dynamic", "int8", {"activations": "per_token"}),
        ("gptqmodel-gptq", "int4", {}),
        ("gptqmodel-gptq-v2-int8", "int8", {"block": 32, "symmetric": False}),
        ("gptqmodel-awq", "int4", {"symmetric": False}),
        ("autoawq-groups-of-64", "int4", {"symmetric": False}),
    ],
)
def test_copied_integers_are_verified(tmp_path, name, precision, options):
    chosen = make_quantization(precision, QuantizationOverrides(**options))
    result = export_model(FOLDER / name, tmp_path / "bundle", precision=precision, quantization=chosen)
    report = json.loads((result.path / "parity" / "report.json").read_text())
    copied = [check for check in report["checks"] if check["name"] == "weights: copied blocks"]
    assert [check["value"] for check in copied] == [0]


def test_the_certificate_says_that_nothing_was_compared():
    source = open_source(FOLDER / "torchao-float8")
    compared = compare_modules(source, source.weights())
    assert compared.difference is None
    assert compared.reason == "transformers does not read torchao as plain weights"


def rewritten(name, folder, change):
    """Copy a checkpoint, with its tensors and metadata changed in place."""
    shutil.copytree(FOLDER / name, folder)
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(path)
    change(tensors, metadata)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path, metadata)
    return folder


def half_bytes_swapped(words):
    """Exchange the halves of every byte of words."""
    packed = words.view(torch.uint8)
    return ((packed << 4) | (packed >> 4)).view(words.dtype)


FAULTS = {
    "half bytes swapped": ("modelopt-nvfp4", "", lambda packed: (packed << 4) | (packed >> 4)),
    "half bytes of torchao swapped": ("torchao-mxfp4", "qdata", lambda packed: (packed << 4) | (packed >> 4)),
    "scale of the matrix left out": ("modelopt-nvfp4", "_2", torch.ones_like),
    "scales read as e5m2": ("modelopt-nvfp4", "_scale", lambda scales: scales.view(torch.float8_e5m2)),
    "tiles of scales in other rows": ("torchao-nvfp4", "scale", lambda scales: scales.view(torch.uint8).flip(0)),
    "zero points one higher": ("torchao-int4-asymmetric", "zero_point", lambda zeros: zeros + 1),
    "groups transposed": ("torchao-int8-groups", "scale", lambda scales: scales.T.reshape(scales.shape)),
    "exponents one higher": ("modelopt-mxfp8", "_scale", lambda scales: scales + 1),
    "half bytes of AWQ swapped": ("modelopt-awq", "", lambda packed: (packed << 4) | (packed >> 4)),
    "zero of AWQ one higher": ("modelopt-awq", "", lambda packed: (packed & 0x77) + 0x11 ^ packed & 0x88),
    "groups of AWQ transposed": ("modelopt-awq", "_scale", lambda scales: scales.T.reshape(scales.shape)),
    "factors of inputs left out": ("modelopt-awq", "factors", torch.ones_like),
    "half bytes of bitsandbytes swapped": ("bitsandbytes-nf4", ".weight", lambda packed: (packed << 4) | (packed >> 4)),
    "scales of bitsandbytes transposed": ("bitsandbytes-fp4", ".weight.absmax", lambda scales: scales.flip(0)),
    "zero points of llm-compressor lost": ("llmcompressor-w4a16-asymmetric", ".weight_zero_point", torch.zeros_like),
    "scales of llm-compressor in other rows": ("llmcompressor-w8a8", ".weight_scale", lambda scales: scales.flip(0)),
    "blocks of llm-compressor's float8 elsewhere": (
        "llmcompressor-fp8-blocks", ".weight_scale", lambda scales: scales.flip(0)
    ),
    "scales of llm-compressor's float8 in other rows": (
        "llmcompressor-fp8", ".weight_scale", lambda scales: scales.flip(0)
    ),
    "scale of llm-compressor's float8 lost": ("llmcompressor-fp8-tensor", ".weight_scale", torch.ones_like),
    "scale of llm-compressor's w8a8 lost": ("llmcompressor-w8a8-tensor", ".weight_scale", torch.ones_like),
    "groups of llm-compressor transposed": (
        "llmcompressor-w4a16-gptq", ".weight_scale", lambda scales: scales.T.reshape(scales.shape)
    ),
    "float8 of a mixture in NVFP4": ("modelopt-mixed", "_2", torch.ones_like),
    "half bytes of GPTQ swapped": ("gptqmodel-gptq", ".qweight", half_bytes_swapped),
    "zero points of GPTQ one higher": ("gptqmodel-gptq-asymmetric", ".qzeros", lambda words: words + 0x11111111),
    "zero points of GPTQ v2 one lower": ("gptqmodel-gptq-v2-int8", ".qzeros", lambda words: words - 0x01010101),
    "groups of GPTQ transposed": ("gptqmodel-gptq", ".scales", lambda scales: scales.T.reshape(scales.shape)),
    "order of activations ignored": ("gptqmodel-gptq-act-order", ".g_idx", lambda order: order.sort().values),
    "half bytes of gptqmodel's AWQ swapped": ("gptqmodel-awq", ".qweight", half_bytes_swapped),
    "zero points of AWQ one lower": ("gptqmodel-awq", ".qzeros", lambda words: words - 0x11111111),
    "half bytes of autoawq swapped": ("autoawq-groups-of-32", ".qweight", half_bytes_swapped),
    "zero points of autoawq one lower": ("autoawq-groups-of-32", ".qzeros", lambda words: words - 0x11111111),
    "groups of autoawq transposed": (
        "autoawq-groups-of-64", ".scales", lambda scales: scales.T.reshape(scales.shape)
    ),
    "groups of gptqmodel's AWQ transposed": (
        "gptqmodel-awq", ".scales", lambda scales: scales.T.reshape(scales.shape)
    ),
}  # fmt: skip
DOWN = "model.layers.0.mlp.down_proj"
PARTS = {"": ".weight", "_2": ".weight_scale_2", "factors": ".pre_quant_scale"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_written_checkpoint_shows(tmp_path, fault):
    """The negative control: all that is read decides about the weights."""
    name, part, wrong = FAULTS[fault]
    torchao = name.startswith("torchao")
    suffix = f"._weight_{part}" if torchao else part if part.startswith(".") else PARTS.get(part, ".weight_scale")
    key = DOWN + suffix

    def change(tensors, metadata):
        tensors[key] = wrong(tensors[key]).view(tensors[key].dtype) if "tiles" in fault else wrong(tensors[key])

    folder = rewritten(name, tmp_path / "wrong", change)
    found = open_tensors(folder)[f"{DOWN}.weight"].get_tensor(f"{DOWN}.weight")
    assert digest(found) != of_library(folder)[f"{DOWN}.weight"]


def tiled(integers):
    """Pack integers [N, K] as PyTorch's kernel for tensor cores does: for each word, the fields of its lane in turn."""
    rows, columns = integers.shape
    packed = (integers[:, ::2] << 4 | integers[:, 1::2]).tolist()
    words = torch.zeros(rows // 8, columns // 128, 32, 4, dtype=torch.int64)
    for tile, outer, lane, pair in torch.cartesian_prod(*map(torch.arange, words.shape)).tolist():
        first = (outer * 8 + 2 * pair) * 8 + lane % 4
        row = packed[8 * tile + lane // 4]
        for place, byte in enumerate(row[first + step] for step in (0, 4, 8, 12)):
            words[tile, outer, lane, pair] |= (byte >> 4) << 4 * place | (byte & 15) << 16 + 4 * place
    return words.to(torch.uint32).view(torch.int32)


def of_class(kind, parts, **data):
    """Return a change that stores a matrix as a class of torchao."""

    def change(tensors, metadata):
        for last in ("qdata", "scale", "zero_point"):
            del tensors[f"{DOWN}._weight_{last}"]
        tensors.update({f"{DOWN}._weight_{last}": tensor for last, tensor in parts.items()})
        metadata[f"{DOWN}.weight"] = json.dumps({"_type": kind, "_data": data})

    return change


def test_int4_in_tiles_of_tensor_cores_is_read(tmp_path):
    """Made for CUDA alone, 160 inputs filled up to 1,024: the writer here follows PyTorch's kernel."""
    integers, scale = torch.randint(0, 16, (32, 1024)), torch.rand(32, 32).bfloat16()
    zero = torch.randn(32, 32).bfloat16()
    both = torch.stack([scale, zero], -1).transpose(0, 1).contiguous()  # [G, N, 2]
    assert torch.equal(untiled(tiled(integers)).long(), integers)
    assert not torch.equal(untiled(tiled(integers).flip(2)).long(), integers), "the control: lanes decide"
    parts = {"qdata": tiled(integers), "scale_and_zero": both}
    change = of_class("Int4TilePackedTo4dTensor", parts, block_size=[1, 32], shape=[32, 160])
    files = open_tensors(rewritten("torchao-int4-groups", tmp_path / "model", change))
    steps = (integers.float() - 8).unflatten(1, (-1, 32)) * scale.float()[..., None] + zero.float()[..., None]
    found = files[f"{DOWN}.weight"].get_slice(f"{DOWN}.weight")
    torch.testing.assert_close(found[...], steps.flatten(1)[:, :160], atol=1e-6, rtol=1e-6)
    assert found.blocks(4, 32, False) is None, "zero points are floats"


@pytest.mark.parametrize("symmetric", [False, True])
def test_plain_int4_is_read(tmp_path, symmetric):
    """Made on GPUs alone, by mslk: signed, the first in the low half, zero points that are added."""
    integers, scale = torch.randint(-8, 8, (32, 160)), torch.rand(5, 32).bfloat16()
    zero = torch.zeros(5, 32).bfloat16() if symmetric else torch.randn(5, 32).bfloat16()
    qdata = ((integers[:, ::2] & 15) | (integers[:, 1::2] << 4)).to(torch.int8)
    parts = {"qdata": qdata, "scale": scale, "zero_point": zero}
    change = of_class("Int4Tensor", parts, block_size=[1, 32], shape=[32, 160])
    files = open_tensors(rewritten("torchao-int4-groups", tmp_path / "model", change))
    found = files[f"{DOWN}.weight"].get_slice(f"{DOWN}.weight")
    expected = integers.float().unflatten(1, (-1, 32)) * scale.T.float()[..., None] + zero.T.float()[..., None]
    torch.testing.assert_close(found[...], expected.flatten(1), atol=1e-6, rtol=1e-6)
    copied = found.blocks(4, 32, True)
    assert (copied is not None) == symmetric, "a float that is added is no zero point of ours"
    if copied is not None:
        assert torch.equal(copied[0].flatten(1).long() - 8, integers)


def set_class(tensors, metadata):
    metadata[MATRIX] = json.dumps({"_type": "Int4PlainInt32Tensor", "_data": {}})


def drop_description(tensors, metadata):
    del metadata[MATRIX]


def scale_inputs(tensors, metadata):
    tensors[f"{DOWN}._weight_act_pre_scale"] = torch.ones(160)


def drop_scale(tensors, metadata):
    del tensors[f"{DOWN}._weight_scale"]


def drop_group(tensors, metadata):
    tensors[f"{DOWN}._weight_scale"] = tensors[f"{DOWN}._weight_scale"][:, 1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_class, r"gate_proj\.weight is a Int4PlainInt32Tensor of torchao, and those that are read are Int8Tensor"),
        (drop_description, r"does not say which class of torchao .*gate_proj\.weight has"),
        (scale_inputs, r"down_proj scales its inputs \(act_pre_scale\)"),
        (drop_scale, r"lacks .*down_proj\._weight_scale"),
        (drop_group, r"down_proj\._weight_scale is \[32, 4\], and \[32, 5\] follows"),
    ],
)
def test_a_checkpoint_of_torchao_that_does_not_fit_is_refused(tmp_path, change, message):
    with pytest.raises(WeightsError, match=message):
        open_tensors(rewritten("torchao-int4-groups", tmp_path / "model", change))


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_pickles_of_torchao_are_refused_by_a_sentence(tmp_path, allow_pickle):
    folder = shutil.copytree(FOLDER / "torchao-int8-groups", tmp_path / "model")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="pickles of torchao hold objects of its own classes. Load the model with"):
        open_tensors(folder, allow_pickle)


def with_options(folder, name, options):
    """Copy a checkpoint of modelopt as older versions write it: options in hf_quant_config.json alone."""
    shutil.copytree(FOLDER / name, folder)
    config = json.loads((folder / "config.json").read_text())
    of_file = {"exclude_modules": ["lm_head"], **config.pop("quantization_config"), **options}
    (folder / "config.json").write_text(json.dumps(config))
    whole = {"producer": {"name": "modelopt", "version": "0.23.0"}, "quantization": of_file}
    (folder / "hf_quant_config.json").write_text(json.dumps(whole))
    return folder


@pytest.mark.parametrize("name", ["modelopt-fp8", "modelopt-mixed", "modelopt-awq"])
def test_options_of_older_modelopt_are_in_their_own_file(tmp_path, name):
    folder = with_options(tmp_path / "model", name, {"kv_cache_quant_algo": "FP8"})
    stored, expected = open_tensors(folder), of_library(FOLDER / name)
    assert {key: digest(stored[key].get_tensor(key)) for key in expected} == expected
    assert open_source(folder).quantization["quant_method"] == "modelopt"
    (folder / "hf_quant_config.json").unlink()
    with pytest.raises(
        WeightsError, match=r"weight_scale"
    ):  # the control: without it, scales are no tensors of a model
        open_source(folder).weights()


def test_factors_of_inputs_are_part_of_nvfp4_with_awq(tmp_path):
    factors = torch.linspace(0.5, 2, 160)

    def scale_inputs(tensors, metadata):
        tensors[f"{DOWN}.pre_quant_scale"] = factors

    folder, key = rewritten("modelopt-nvfp4", tmp_path / "model", scale_inputs), f"{DOWN}.weight"
    plain = open_tensors(FOLDER / "modelopt-nvfp4")[key].get_tensor(key)
    found = open_tensors(folder)[key].get_slice(key)
    assert found.get_shape() == list(plain.shape) == [32, 160]
    assert torch.equal(found[...], plain * factors)


def test_a_cache_that_modelopt_quantized_leaves_weights_plain(tmp_path):
    folder = with_options(tmp_path / "model", "modelopt-fp8", {"quant_algo": None, "kv_cache_quant_algo": "FP8"})
    assert open_source(folder).quantization is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quant_algo": "W4A8_AWQ"}, "quantization_config.quant_algo = 'W4A8_AWQ', and edgeformer reads modelopt"),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a.b": {"quant_algo": "W8A16"}}},
            "quantized_layers = .*W8A16.*reads modelopt where it is layers of quant_algo FP8",
        ),
    ],
)
def test_options_of_older_modelopt_are_refused(tmp_path, options, said):
    folder = with_options(tmp_path / "model", "modelopt-fp8", options)
    with pytest.raises(ConfigError, match=f"hf_quant_config.json of .*{said}"):
        open_source(folder)


def test_other_algorithms_of_modelopt_are_refused(tmp_path):
    folder = shutil.copytree(FOLDER / "modelopt-fp8", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["quant_algo"] = "W4A8_AWQ"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=r"quant_algo = 'W4A8_AWQ', and edgeformer reads modelopt where it is one of FP8"
    ):
        open_source(folder)
