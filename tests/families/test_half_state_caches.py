"""A float16 cache of keys and values beside states of fixed size, which stay in float32."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from rows import FAMILIES, fields_of
from slow_rows import slow_unless

from edgeformer.export import export_model
from edgeformer.runtime import load

HYBRIDS = (
    "bamba", "falcon_h1", "granitemoehybrid", "lfm2", "lfm2_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
)  # fmt: skip
PROMPT = list(range(5, 45))
CHECKS = {f"fp16 cache, {each}: differing" for each in ("numbers", "logits")}


@pytest.mark.parametrize("family", slow_unless(["falcon_h1", "qwen3_5_text"], HYBRIDS))
def test_a_hybrid_keeps_keys_alone_in_float16(make_model, tmp_path, family):
    bundle, options = tmp_path / "bundle", fields_of(family, next(iter(FAMILIES[family].models)))
    result = export_model(make_model(family, **options), bundle, precision="int8", deployment="desktop")
    manifest = result.manifest
    assert manifest.plan.cache_precision == "fp16"
    assert {check.name for check in result.report.checks} >= CHECKS
    graph = onnx.load(bundle / "onnx/model.onnx", load_external_data=False).graph
    declared = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    tensors = manifest.cache.tensors()
    assert len({tensor.per_token for tensor in tensors}) == 2
    for tensor in tensors:
        wanted = TensorProto.FLOAT16 if tensor.per_token else TensorProto.FLOAT
        assert declared[tensor.past] == declared[tensor.present] == wanted
    model = load(bundle)
    assert model.generate(PROMPT, max_new_tokens=8).token_ids == run_plain(bundle, manifest, PROMPT, 8)
    decoder = model.new_decoder(1, 60)
    model.prefix_cache.keep(decoder, 0, PROMPT, decoder.prefill(0, PROMPT))
    model.save_session(tmp_path / "session")
    kept = [each for part in decoder.cache.read(len(PROMPT)) for each in part]
    again = load(bundle)
    again.load_session(tmp_path / "session")
    decoder = again.new_decoder(1, 60)
    assert again.prefix_cache.restore(decoder, 0, np.array(PROMPT)).length == len(PROMPT)
    for tensor, restored in zip(kept, (each for part in decoder.cache.read(len(PROMPT)) for each in part), strict=True):
        np.testing.assert_array_equal(tensor, restored)


def run_plain(bundle, manifest, prompt, steps):
    """Return the greedy continuation of plain onnxruntime, over a cache that grows."""
    session = ort.InferenceSession(bundle / "onnx/model.onnx")
    dtypes = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
    types = {each.name: dtypes[each.type] for each in session.get_inputs() if each.type in dtypes}
    tensors = manifest.cache.tensors()
    past = {tensor.past: np.zeros(tensor.shape(1, 0), types[tensor.past]) for tensor in tensors}
    ids, found = np.array([prompt]), []
    for step in range(steps):
        mask = np.ones((1, len(prompt) + step), np.int64)
        logits, *presents = session.run(None, {"input_ids": ids, "attention_mask": mask, **past})
        past = dict(zip(past, presents, strict=True))
        found.append(int(logits[0, -1].argmax()))
        ids = np.array([found[-1:]])
    return found
