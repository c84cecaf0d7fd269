"""Towers of models that see, with weights of int8: what is stored, what verification runs, and faults that it finds."""

import shutil
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import ExternalDataInfo
from picture_text_rows import MODELS, save

from edgeformer.errors import ExportError
from edgeformer.export import export_model
from edgeformer.export.parity.trials.pictures.picture_text import LARGE, PictureTextTrial
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.manifest.quantization import QuantizationOverrides

WIDE = {"hidden_size": 64, "intermediate_size": 124, "num_attention_heads": 2}
"""A tower whose matrices have whole blocks, but the second of a feed-forward: zeros fill its last one."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smolvlm")
    row = MODELS["smolvlm"]["tiles"]
    with patch.dict(MODELS["smolvlm"], {"wide": replace(row, vision=row.vision | WIDE)}):
        save("smolvlm", "wide", folder)
    return folder


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    """Return a function that returns a bundle in int8 and its report; overrides: of quantization."""

    def make(verify="quick", **overrides):
        folder = tmp_path_factory.mktemp("bundle") / "bundle"
        quantization = QuantizationOverrides(**overrides)
        result = export_model(checkpoint, folder, precision="int8", quantization=quantization, verify=verify)
        return folder, result.report

    return make


@pytest.fixture(scope="module")
def int8(exported):
    return exported(tower="int8", block=32)


def tower_of(folder):
    return onnx.load(folder / "onnx" / "vision_encoder.onnx", load_external_data=False).graph


def test_a_tower_stays_float_unless_it_is_asked_for(exported):
    graph = tower_of(exported(verify=None)[0])
    assert not any(tensor.data_type == onnx.TensorProto.UINT8 for tensor in graph.initializer)


def test_all_matrices_of_a_tower_are_stored_as_integers(int8):
    graph = tower_of(int8[0])
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    matrices = {name for name in kinds if "position" not in name and "stem" not in name and "norm" not in name}
    matrices = {name for name in matrices if name.startswith(("tower.", "projector.")) and ".weight" in name}
    assert len(matrices) == 2 * 13 and all(name.endswith((".integers", ".scales")) for name in matrices)
    # The patches' projection and the table of positions stay as they are.
    assert kinds["tower.stem.convolution.weight"] == kinds["tower.position_embedding.weight"] == onnx.TensorProto.FLOAT


def test_graphs_that_read_pictures_are_verified_as_they_are_used(int8):
    """With rounded activations the tower errs ten thousand times as much, as eager that rounds alike does."""
    checks = {check.name: check for check in int8[1].checks}
    exact, used = (checks[f"pictures, {stage}tower: max error"] for stage in ("", "int8 activations, "))
    assert exact.value < 2e-6 and used.value > 1e-3
    assert used.eager == pytest.approx(used.value, rel=0.5)
    assert "pictures, int8 activations, text with pictures: mean KL" in checks


def test_one_scale_per_output_rounds_activations_per_token(exported):
    folder, report = exported(tower="int8", activations="per_token")
    assert not any(node.op_type == "MatMulNBits" for node in tower_of(folder).node)
    assert any(check.name.startswith("pictures, int8 activations, tower") for check in report.checks)


def stored(folder, name):
    """Return a tensor of the tower's weights as an array over the file."""
    tensor = next(tensor for tensor in tower_of(folder).initializer if tensor.name == name)
    info = ExternalDataInfo(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(folder / "onnx" / info.location, dtype, "r+", info.offset, tuple(tensor.dims))


def doubled_scale(folder):
    stored(folder, "tower.blocks.1.feed_forward.up.weight.scales")[0] *= 2


def integers_of_another_output(folder):
    integers = stored(folder, "projector.output.weight.integers")
    integers[:] = np.roll(integers, 1, axis=0)


def nothing(folder):
    """Change nothing: the control."""


@pytest.mark.parametrize(
    ("fault", "fails"), [(doubled_scale, True), (integers_of_another_output, True), (nothing, False)]
)
def test_wrong_integers_of_a_tower_are_refused(int8, checkpoint, tmp_path, fault, fails):
    folder = shutil.copytree(int8[0], tmp_path / "bundle")
    subject = open_subject(folder, checkpoint)
    fault(folder)
    report = verify_graph(folder, subject.manifest, subject.model_spec, subject.weights)
    assert any(not check.passed for check in report.checks) == fails


@pytest.fixture(scope="module")
def of_any_size(tmp_path_factory):
    """Return an int8 bundle of a tower that reads pictures of any size, and its checkpoint."""
    folder = tmp_path_factory.mktemp("qwen3_vl")
    row = MODELS["qwen3_vl"]["deepstack"]
    wide = row.vision | {"hidden_size": 64, "intermediate_size": 128, "num_heads": 1}
    with patch.dict(MODELS["qwen3_vl"], {"wide": replace(row, vision=wide)}):
        save("qwen3_vl", "wide", folder / "checkpoint")
    quantization = QuantizationOverrides(tower="int8", block=32)
    export_model(folder / "checkpoint", folder / "bundle", precision="int8", quantization=quantization, verify=None)
    return folder / "bundle", folder / "checkpoint"


def verified(bundle, checkpoint):
    subject = open_subject(bundle, checkpoint)
    return verify_graph(bundle, subject.manifest, subject.model_spec, subject.weights)


def test_attention_rotates_patches_and_projectors_are_integers(of_any_size):
    """The tower of Qwen3-VL has no product but the first that is a float, and no rotation beside its attention."""
    graph = tower_of(of_any_size[0])
    attention = [node for node in graph.node if node.op_type == "SelfAttention"]
    assert len(attention) == 3 and all(len(node.input) >= 7 and not any(node.input[1:3]) for node in attention)
    assert [node.input[1] for node in graph.node if node.op_type in ("MatMul", "Gemm")] == ["tower.stem.weight"]


def test_a_large_picture_is_verified_as_it_is_used(of_any_size):
    """From 257 patches on, attention rounds where the processor multiplies pairs of bfloat16."""
    report = verified(*of_any_size)
    large = [check for check in report.checks if "large picture" in check.name]
    assert report.passed and large
    assert all("activations" in check.name or "kernels" in check.name for check in large)


def test_wrong_states_of_a_large_picture_are_refused(of_any_size, monkeypatch):
    states = PictureTextTrial._states

    def wrong(self, picture):
        found = states(self, picture)
        return np.roll(found, 1, 0) if len(picture["pixel_values"]) > LARGE else found

    monkeypatch.setattr(PictureTextTrial, "_states", wrong)
    failed = [check.name for check in verified(*of_any_size).checks if not check.passed]
    assert failed and all("large picture" in name for name in failed)


def test_a_model_without_a_tower_has_no_precision_for_one(tmp_path):
    with pytest.raises(ExportError, match="--tower-precision is for models that see or hear"):
        export_model("tiny-llama", tmp_path / "b", precision="int8", quantization=QuantizationOverrides(tower="int8"))
    assert not list(tmp_path.iterdir())
