"""Products of the same input in one: they compute the same to the last bit, and others are left alone."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from build_graph import build_graph

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.export.lower import LoweringOptions
from edgeformer.export.lower import ort as op_set
from edgeformer.export.lower.ort.fuse_gemms import fuse_gemms
from edgeformer.families import read_model_config
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.models.model_spec import model_spec_of

LLAMA = {
    "model_type": "llama", "vocab_size": 31, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 31, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 32}


def lowered(data, quantization, **lowering):
    """A graph, and what the rule changed in it."""
    config = read_model_config(data)[1]
    lowering = LoweringOptions(quantization=quantization, **lowering)
    graph, how = build_graph(model_spec_of(config), RandomWeights(config, 0), lowering=lowering)
    return graph, next(rule for rule in how.rules if rule.name == "fuse_gemms")


def said(graph, tokens=5):
    """What a graph says to a few tokens behind an empty cache."""
    session = ort.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    sizes = {"batch_size": 2, "sequence_length": tokens, "total_sequence_length": tokens}
    feeds = {}
    for each in session.get_inputs():
        shape = [size if isinstance(size, int) else sizes.get(size, 0) for size in each.shape]
        ids = np.arange(2 * tokens).reshape(2, tokens)
        feeds[each.name] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}.get(
            each.name, np.zeros(shape, np.float32 if each.type == "tensor(float)" else np.int64)
        )
    return session.run(None, feeds)


def products(graph):
    return sum(node.op_type.startswith("MatMulNBits") for node in graph.graph)


@pytest.mark.parametrize(("bits", "symmetric"), [("int4", True), ("int4", False), ("int8", True), ("int8", False)])
def test_joined_products_are_the_same_to_the_last_bit(bits, symmetric, monkeypatch):
    chosen = make_quantization(bits, QuantizationOverrides(symmetric=symmetric, rounding="nearest"))
    graph, report = lowered(LLAMA, chosen)
    assert report.changed == 2
    others = [rule for rule in op_set.RULES if rule is not fuse_gemms]
    monkeypatch.setattr(op_set, "RULES", (*others, lambda model, lowering: report))
    plain, _ = lowered(LLAMA, chosen)
    assert (products(graph), products(plain)) == (2 * 4 + 1, 2 * 5 + 1)
    for ours, theirs in zip(said(graph), said(plain), strict=True):
        assert ours.any() and np.array_equal(ours, theirs)


def test_the_fused_weight_has_both_names_and_is_the_only_one():
    graph, report = lowered(LLAMA, make_quantization("int4"))
    names = [name for name in graph.graph.initializers if "feed_forward." in name and name.startswith("blocks.1.")]
    assert sorted(names) == [
        f"blocks.1.feed_forward.{layer}.weight.{part}"
        for layer in ("down", "gate_up")
        for part in ("integers", "scales")
    ]
    stored = graph.graph.initializers["blocks.1.feed_forward.gate_up.weight.integers"].const_value.stored()
    assert stored.parameters == ("blocks.1.feed_forward.gate.weight", "blocks.1.feed_forward.up.weight")
    assert report.places == [f"blocks.{layer}.feed_forward.gate/MatMul" for layer in range(2)]


PER_TOKEN = make_quantization("int8", QuantizationOverrides(activations="per_token"))


@pytest.mark.parametrize(("data", "lowering"), [
    (LLAMA, {"quantization": make_quantization("int4", QuantizationOverrides(keep=("*.up.weight",)))}),  # one stays
    (LLAMA, {"quantization": make_quantization("int4", QuantizationOverrides(keep=("*.gate.weight",)))}),
    (LLAMA, {"quantization": PER_TOKEN}),  # per-token products stay apart
    (LLAMA, {"quantization": make_quantization("int4"), "provider": "cuda"}),
    (LLAMA | {"mlp_bias": True}, {"quantization": make_quantization("int4")}),  # the kernel adds biases, but to no part
    (GPT2, {"quantization": make_quantization("int4")}),  # nothing beside anything
    (LLAMA, {"quantization": None}),
])  # fmt: skip
def test_others_are_left_as_they_are(data, lowering):
    graph, report = lowered(data, **lowering)
    assert report.changed == 0
    assert not any("gate_up" in name for name in graph.graph.initializers)
