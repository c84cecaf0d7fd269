"""Rotations that attention does not do by itself: a kernel of the CPU computes what the function body computes."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from build_graph import build_graph

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.export.capture.trace import capture
from edgeformer.export.lower import LoweringOptions, lower
from edgeformer.families import read_model_config
from edgeformer.models.model_spec import model_spec_of

LAYERS = 2


def lowered(provider: str, head_dim: int, partial: float, family: str, dtype: torch.dtype) -> ir.Model:
    """Return the graph of a decoder whose attention rotates nothing: its heads are no multiples of 16."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": partial}
    data = {
        "model_type": family, "vocab_size": 31, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim,
        "max_position_embeddings": 32, "rope_parameters": rope, "pad_token_id": 0,
    }  # fmt: skip
    config = read_model_config(data)[1]
    model_spec = model_spec_of(config)
    graph = capture(*model_spec.graphs, model_spec, RandomWeights(config, 0), dtype)
    lower(graph, LoweringOptions(provider=provider))
    return graph


def run(graph: ir.Model, dtype: torch.dtype) -> list[np.ndarray]:
    """Return logits and caches of a row of 4 tokens and of two rows of one, behind 3 tokens each."""
    session = ort.InferenceSession(ir.serde.serialize_model(graph).SerializeToString())
    random, numbers = np.random.default_rng(0), np.float16 if dtype == torch.float16 else np.float32
    results = []
    for rows, tokens in ((1, 4), (2, 1)):
        feeds = {
            "input_ids": random.integers(0, 31, (rows, tokens)),
            "attention_mask": np.ones((rows, 3 + tokens), np.int64),
        }
        for each in session.get_inputs()[2:]:
            feeds[each.name] = random.normal(size=[rows, each.shape[1], 3, each.shape[3]]).astype(numbers)
        results += session.run(None, feeds)
    return results


@pytest.mark.parametrize(("head_dim", "partial", "family", "dtype"), [
    (24, 1.0, "llama", torch.float32),
    (40, 0.3, "glm", torch.float32),  # neighbours, of a part of a head
    (24, 1.0, "llama", torch.float16),
])  # fmt: skip
def test_a_kernel_rotates_as_the_body_does(head_dim, partial, family, dtype):
    graph, body = (lowered(provider, head_dim, partial, family, dtype) for provider in ("cpu", "webgpu"))
    ops = [[node.op_type for node in each.graph].count("RotaryEmbedding") for each in (graph, body)]
    assert ops == [2 * LAYERS, 0]
    for ours, wanted in zip(run(graph, dtype), run(body, dtype), strict=True):
        np.testing.assert_allclose(ours, wanted, atol=2e-6 if dtype == torch.float32 else 4e-3)


def test_wrong_pairs_would_be_seen():
    graph = lowered("cpu", 24, 1.0, "llama", torch.float32)
    wanted = run(graph, torch.float32)
    for node in graph.graph:
        if node.op_type == "RotaryEmbedding":
            node.attributes["interleaved"] = ir.AttrInt64("interleaved", 1)
    assert np.abs(run(graph, torch.float32)[0] - wanted[0]).max() > 1e-4


@pytest.mark.parametrize("ops", ["ort", "standard"])
def test_rows_may_share_their_positions(ops):
    """All rows of an encoder begin at 0, and kernels take positions of each row."""
    data = {
        "model_type": "modernbert", "vocab_size": 31, "hidden_size": 48, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32, "pad_token_id": 0,
        "global_attn_every_n_layers": 2, "local_attention": 8,
    }  # fmt: skip
    config = read_model_config(data)[1]
    results = []
    for chosen in (ops, "portable"):
        lowering = LoweringOptions(ops=chosen, cache_form="dynamic")
        graph, _ = build_graph(model_spec_of(config), RandomWeights(config, 0), lowering=lowering)
        count = [node.op_type for node in graph.graph].count("RotaryEmbedding")
        assert count == (0 if chosen == "portable" else 2 * LAYERS)
        session = ort.InferenceSession(ir.serde.serialize_model(graph).SerializeToString())
        ids = np.random.default_rng(0).integers(1, 31, (3, 9))
        results.append(session.run(None, {"input_ids": ids, "attention_mask": np.ones((3, 9), np.int64)})[0])
    np.testing.assert_allclose(*results, atol=2e-6)
