"""Experts in MXFP4 are read exactly as transformers dequantizes them, one at a time, and gpt-oss exports from them."""

import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from rows import FAMILIES, VOCABULARY
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from edgeformer.checkpoints import mxfp4
from edgeformer.checkpoints.expert_weights import read_expert
from edgeformer.checkpoints.weights import CheckpointWeights
from edgeformer.errors import WeightsError
from edgeformer.export import export_model
from edgeformer.families import read_model_config

SIZES = FAMILIES["gpt_oss"].sizes | {"intermediate_size": 96, "hidden_size": 64}
PREFIX = "model.layers.{}.mlp.experts"
EXPERTS = "blocks.{}.feed_forward.experts"


@pytest.fixture(scope="module")
def folders(make_model, tmp_path_factory):
    """A gpt-oss in MXFP4, and the same one as transformers dequantizes it."""
    plain = make_model("gpt_oss", seed=1, **SIZES)
    tensors = load_file(plain / "model.safetensors")
    packed, generator = dict(tensors), torch.Generator().manual_seed(7)
    for layer in range(3):
        for name in ("gate_up_proj", "down_proj"):
            whole = f"{PREFIX.format(layer)}.{name}"
            experts, inputs, outputs = tensors[whole].shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(118, 126, blocks.shape[:-1], generator=generator, dtype=torch.uint8)
            tensors[whole] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            packed[f"{whole}_blocks"], packed[f"{whole}_scales"] = blocks, scales
            del packed[whole]
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    folder = tmp_path_factory.mktemp("mxfp4")
    shutil.copytree(plain, folder, dirs_exist_ok=True)
    save_file(packed, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, plain


def opened(folder):
    return CheckpointWeights(folder, *read_model_config(json.loads((folder / "config.json").read_text())))


def test_weights_are_those_of_transformers_bit_for_bit(folders):
    ours, theirs = map(opened, folders)
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name
        if name.startswith("blocks.1.feed_forward.experts."):
            for expert in range(5):
                assert torch.equal(read_expert(ours, name, expert), theirs[name][expert]), name


def test_every_number_and_every_scale_is_that_of_transformers():
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 250, 16, 16).contiguous()
    scales = torch.arange(2, 252, dtype=torch.uint8).view(1, 250, 1).expand(1, 250, 16).contiguous()
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).mT
    ours = mxfp4.dequantize(blocks, scales)
    assert torch.equal(ours, theirs)
    assert torch.isfinite(ours).all()
    exchanged = (blocks >> 4) | (blocks << 4)
    assert not torch.equal(mxfp4.dequantize(exchanged, scales), theirs)
    assert not torch.equal(mxfp4.dequantize(blocks, scales + 1), theirs)


def test_an_export_computes_what_transformers_computes(folders, tmp_path):
    folder, plain = folders
    exported = export_model(folder, tmp_path / "bundle")  # with its verification
    assert exported.report is not None
    assert exported.report.passed
    model = transformers.AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (1, 20))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).logits.numpy()
    session = onnxruntime.InferenceSession(exported.path / "onnx" / "model.onnx")
    feeds = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    logits = session.run(["logits"], feeds)[0]
    assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()


def test_blocks_and_scales_must_belong_together(folders, tmp_path):
    shutil.copytree(folders[0], tmp_path / "wrong")
    tensors = load_file(tmp_path / "wrong" / "model.safetensors")
    name = f"{PREFIX.format(0)}.down_proj"
    for changed, message in (
        ({f"{name}_scales": tensors[f"{name}_scales"][:, :-1].contiguous()}, r"its scales are \[5, 63, 3\]"),
        ({f"{name}_blocks": tensors[f"{name}_blocks"][..., :8].contiguous()}, r"is \[5, 64, 3, 8\] and its scales"),
        ({f"{name}_blocks": tensors[f"{name}_blocks"][:4].contiguous(),
          f"{name}_scales": tensors[f"{name}_scales"][:4].contiguous()}, r"is \[4, 64, 96\], and the config implies"),
        ({f"{name}_scales": None}, r"misshapen: .*down_proj_blocks is \[5, 64, 3, 16\]"),
        ({f"{name}_blocks": None}, r"missing: .*down_proj_blocks"),
    ):  # fmt: skip
        given = {key: value for key, value in (tensors | changed).items() if value is not None}
        save_file(given, tmp_path / "wrong" / "model.safetensors")
        with pytest.raises(WeightsError, match=message):
            opened(tmp_path / "wrong")
