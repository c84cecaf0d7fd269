"""Integers of 3, 5 and 6 bits: a file lacks the bits that they do not use, and a graph makes bytes of them again."""

import shutil

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper

from edgeformer.errors import ConfigError, ExportError
from edgeformer.export import export_model
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.importers.opened_bundle import open_subject
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.export.parity.verify import verify_graph
from edgeformer.export.plan import make_plan
from edgeformer.export.quantize.packing import PACKINGS, pack_groups, unpack_groups
from edgeformer.export.quantize.rounding import round_blocks
from edgeformer.manifest.quantization import Quantization, QuantizationOverrides, QuantizationRule, WeightFormat
from edgeformer.options.export import ExportOptions

USED = {3: 0xEE, 5: 0xF8, 6: 0xFC}
"""The bits of a byte that are used; in 3 bits it holds two integers."""

DOWN = "blocks.0.feed_forward.down.weight"


@pytest.mark.parametrize("bits", PACKINGS)
def test_bytes_are_packed_into_as_many_bits_as_are_used(bits):
    drawn = torch.randint(0, 256, (5, 3, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    content, packing = drawn & USED[bits], PACKINGS[bits]
    stored = pack_groups(content, packing)
    assert torch.equal(unpack_groups(stored, packing), content)
    assert stored.numel() * 8 == content.numel() * USED[bits].bit_count()
    assert not torch.equal(unpack_groups(pack_groups(drawn, packing), packing), content), "the control: all bits used"


@pytest.mark.parametrize(("bits", "error"), [(3, 1), (4, 1 / 2), (5, 1 / 4), (6, 1 / 8), (8, 1 / 32)])
def test_a_bit_halves_the_error(bits, error):
    blocks = torch.randn(64, 8, 32, generator=torch.Generator().manual_seed(0))
    rounded = round_blocks(blocks, WeightFormat(bits=bits, block=32, rounding="mse", scales="fp16"))
    assert int(rounded.integers.max()) == 2**bits - 1
    found = float((rounded.weights() - blocks).square().mean().sqrt())
    assert found == pytest.approx(0.164 * error, rel=0.03)


@pytest.mark.parametrize("bits", PACKINGS)
def test_they_have_no_zero_points_and_no_scale_for_each_output(bits):
    for wrong, message in (
        ({"block": 32, "symmetric": False}, "bits is .; it must be 4 or 8 with zero points"),
        ({"block": None}, "block is None; it must be one of 16"),
    ):
        with pytest.raises(ConfigError, match=message):
            WeightFormat(bits=bits, **wrong)


# Bundles


def rules(scales="fp16", **bits):
    """Return a quantization config by parts of names; the rest are of 8 bits."""
    forms = {f"*{name}*.weight": number for name, number in bits.items()} | {"*.weight": 8}
    return Quantization(rules=tuple(
        QuantizationRule(pattern=pattern, format=WeightFormat(bits=number, block=32, rounding="mse", scales=scales))
        for pattern, number in forms.items()
    ))  # fmt: skip


CONFIG = rules(query=6, key=6, value=6, down=3, gate=5, up=5, embedding=6)


@pytest.fixture(scope="module")
def checkpoint(make_llama):
    return make_llama(5, num_hidden_layers=2, max_position_embeddings=64, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def bundle(checkpoint, tmp_path_factory):
    """A verified bundle whose matrices have 3, 5, 6 and 8 bits. Read-only."""
    folder = tmp_path_factory.mktemp("packed") / "bundle"
    result = export_model(checkpoint, folder, precision="int4", quantization=CONFIG)
    assert result.report.passed
    return result


def graph_of(bundle):
    return onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False)


def test_a_file_has_as_many_bytes_as_the_formats_say(bundle, checkpoint):
    model = graph_of(bundle.path)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    calls = {node.input[0]: node.op_type for node in model.graph.node if node.op_type.startswith("Unpack")}
    assert sorted(set(calls.values())) == ["Unpack3Bits", "Unpack5Bits", "Unpack6Bits"]
    for name, entry in bundle.manifest.weights.items():
        if entry.part != "integers" or name.endswith(".flat"):
            continue
        outputs, blocks = stored[name.removesuffix("integers") + "scales"].dims
        assert np.prod(stored[name].dims) == entry.quantized.part_bytes(outputs, blocks * entry.quantized.block)[0]
        assert calls.get(name) == (f"Unpack{entry.quantized.bits}Bits" if entry.quantized.unused_bits else None)
    embedding = [node for node in model.graph.node if "embedding.weight.integers" in node.input]
    assert [node.op_type for node in embedding] == ["Unpack6Bits"], "stored once for the table and the head"


def test_a_file_keeps_the_bits_that_a_head_does_not_use(checkpoint, tmp_path):
    result = export_model(checkpoint, tmp_path / "bundle", deployment="desktop")
    assert result.report.passed
    form, model = result.manifest.weights["embedding.weight.integers"].quantized, graph_of(result.path)
    assert (form.bits, form.packed, str(form)) == (6, False, "int6 in blocks of 32, mse, stored as int8")
    assert not [node for node in model.graph.node if node.op_type.startswith("Unpack")]
    (tensor,) = [each for each in model.graph.initializer if each.name == "embedding.weight.integers"]
    outputs, blocks, block = tensor.dims
    assert outputs * blocks * block == form.part_bytes(outputs, blocks * block)[0]
    place = {each.key: each.value for each in tensor.external_data}
    file = result.path / "onnx" / place["location"]
    content = np.memmap(file, np.uint8, "r", int(place["offset"]), tuple(tensor.dims))
    assert not (content % 4).any() and len(np.unique(content)) > 50
    (head,) = [node for node in model.graph.node if node.op_type == "MatMulNBits" and tensor.name in node.input]
    assert {each.name: each.i for each in head.attribute}["bits"] == 8, "clients read it as int8"


def test_a_session_unpacks_them_once_when_it_is_opened(bundle, tmp_path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "opened.onnx")
    ort.InferenceSession(bundle.path / "onnx" / "model.onnx", options, providers=["CPUExecutionProvider"])
    opened = onnx.load(tmp_path / "opened.onnx", load_external_data=False).graph
    assert not {"BitShift", "BitwiseAnd", "BitwiseOr"} & {node.op_type for node in opened.node}
    products = [node for node in opened.node if node.op_type == "MatMulNBits"]
    bits = [next(each.i for each in node.attribute if each.name == "bits") for node in products]
    assert sorted(bits) == [4, 4, 8, 8, 8, 8, 8, 8, 8]


@pytest.mark.parametrize("bits", PACKINGS)
def test_the_function_of_a_graph_unpacks_what_was_packed(bundle, bits):
    """The function stands in a graph of its own, so that nothing of edgeformer reads it."""
    model = graph_of(bundle.path)
    drawn = torch.randint(0, 256, (7, 2, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    content = drawn & USED[bits]
    stored = pack_groups(content, PACKINGS[bits]).numpy()
    value = helper.make_tensor_value_info
    alone = helper.make_graph(
        [helper.make_node(f"Unpack{bits}Bits", ["packed"], ["bytes"], domain="edgeformer")], "alone",
        [value("packed", TensorProto.UINT8, stored.shape)], [value("bytes", TensorProto.UINT8, content.shape)],
    )  # fmt: skip
    functions = [each for each in model.functions if each.name == f"Unpack{bits}Bits"]
    made = helper.make_model(alone, functions=functions, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(made)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"packed": stored})[0], content.numpy())


def test_a_byte_that_is_off_is_found(bundle, checkpoint, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(bundle.path, folder)
    subject = open_subject(folder, checkpoint)

    def failed():
        stored = StoredWeights(folder, subject.manifest, subject.model_spec)
        return {check.name for check in judge_weights(subject.weights, stored) if not check.passed}

    assert failed() == set()
    (tensor,) = [each for each in graph_of(folder).graph.initializer if each.name == f"{DOWN}.integers"]
    place = {entry.key: entry.value for entry in tensor.external_data}
    content = np.memmap(folder / "onnx" / place["location"], np.uint8, "r+", int(place["offset"]), tuple(tensor.dims))
    content[3, 1] = 255 - content[3, 1]
    content.flush()
    assert failed() == {"weights: block error"}


def test_a_function_that_unpacks_otherwise_is_found(bundle, checkpoint, tmp_path):
    """Two groups of bits exchange their places. Verification reads the weights by itself, and no function."""
    folder = tmp_path / "bundle"
    shutil.copytree(bundle.path, folder)
    model = graph_of(folder)
    (function,) = [each for each in model.functions if each.name == "Unpack5Bits"]
    constants = {node.output[0]: node.attribute[0].t for node in function.node if node.op_type == "Constant"}
    first, second, *_ = [constants[node.input[1]] for node in function.node if node.op_type == "BitShift"]
    first.raw_data, second.raw_data = second.raw_data, first.raw_data
    onnx.save(model, folder / "onnx" / "model.onnx")
    subject = open_subject(bundle.path, checkpoint)
    report = verify_graph(folder, subject.manifest, subject.model_spec, subject.weights)
    failed = {check.name.split(":")[0] for check in report.failures()}
    assert failed >= {"prefill", "decode", "int8 activations, prefill"} and "weights" not in failed


def test_files_in_ort_format_have_none(checkpoint, tmp_path):
    """Nothing would unpack them once: onnxruntime loads such files as they are."""
    texts = [np.random.default_rng(seed).integers(0, 90, 60) for seed in range(2)]
    bits = {}
    for deployment in ("mobile", None):
        sized = export_model(checkpoint, tmp_path / str(deployment), bits=6.0, deployment=deployment,
                             calibration=texts, verify=None)  # fmt: skip
        bits[deployment] = {each.quantized.bits for each in sized.manifest.weights.values() if each.quantized}
    assert bits["mobile"] <= {4, 8} and not bits[None] <= {4, 8}
    with pytest.raises(ExportError, match="integers of 3, 5 and 6 bits are unpacked when a graph is loaded"):
        export_model(
            checkpoint, tmp_path / "other", precision="int4", quantization=rules("fp32", down=3), deployment="mobile"
        )
    head = ExportOptions(deployment="mobile", quantization=QuantizationOverrides(head="int6"))
    assert make_plan(head, None).quantization.format_of("head.weight").bits == 6, "a file keeps its bits"
