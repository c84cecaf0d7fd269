"""Mixtures of experts in onnxruntime's own op: where its attributes say what the model means, and only there."""

import sys
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "families"))

from op_set_kinds import attention, block, expert, experts, model, rotary, routed

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.export.capture.trace import capture
from edgeformer.export.lower import LoweringOptions, lower
from edgeformer.export.passes import expected_changes
from edgeformer.manifest.quantization import make_quantization
from edgeformer.models.model_spec import model_spec_of


def lowered(config, dtype=torch.float32, **options):
    model_spec = model_spec_of(config)
    (spec,) = model_spec.graphs
    graph = capture(spec, model_spec, RandomWeights(config, 0), dtype)
    reports = lower(graph, LoweringOptions(**options), expected_changes(config))
    return graph, reports


def kernels(graph):
    return [node for node in graph.graph if node.op_type == "MoE"]


@pytest.mark.parametrize(
    ("router", "normalizes", "nodes_of_router"),
    [({}, 1, 0), ({"normalized": False}, 0, 0), ({"scoring": "sigmoid"}, 1, 1), ({"scale": 2.0}, 1, 1)],
)
def test_a_softmax_router_is_part_of_the_kernel(router, normalizes, nodes_of_router):
    graph, reports = lowered(routed(experts(router), experts(router)))
    assert [node.attributes.get_int("normalize_routing_weights") for node in kernels(graph)] == [normalizes] * 2
    assert sum(node.op_type == "TopK" for node in graph.graph) == 2 * nodes_of_router
    assert reports.fallbacks == []


def test_the_attributes_of_gpt_oss():
    config = routed(experts({"bias": True}, expert(bias=True, beta=1.702, limit=7.0, up_offset=1.0)))
    (node,) = kernels(lowered(config)[0])
    found = {name: attribute.value for name, attribute in node.attributes.items()}
    assert found == {
        "k": 2, "normalize_routing_weights": 1, "activation_type": "swiglu", "swiglu_fusion": 1,
        "activation_alpha": pytest.approx(1.702), "activation_beta": 1.0, "swiglu_limit": 7.0,
    }  # fmt: skip
    weight, bias = node.inputs[2].const_value, node.inputs[3].const_value
    assert (weight.sizes, bias.sizes) == ([6, 48, 32], [6, 48])
    stored = weight.stored()
    assert stored.interleaved
    assert stored.parameters == tuple(f"blocks.0.feed_forward.experts.{name}.weight" for name in ("gate", "up"))
    gate, up = (weight.values[name] for name in stored.parameters)
    assert torch.equal(weight.read()[:, ::2], gate)
    assert torch.equal(weight.read()[:, 1::2], up)


REFUSED = {
    "weighs outputs, and these are weighted inputs": (experts({}, weighted_input=True), torch.float32, {}),
    "has no gate with gelu_tanh": (experts({}, expert("gelu_tanh")), torch.float32, {}),
    "has no gate with silu and tanh": (experts({}, expert(up_activation="tanh")), torch.float32, {}),
    "has no activation gelu": (experts({}, expert("gelu", gated=False)), torch.float32, {}),
    "may be negative": (experts({"expert_scale": True}), torch.float32, {}),
    "the CPU kernel takes float32 only": (experts({}), torch.float16, {}),
    "multiples of 8, from 16 on, and these are [32, 20]": (
        experts({}, expert(intermediate_size=20)),
        torch.float16,
        {"provider": "cuda"},
    ),
    "compared by nobody": (
        experts({}, expert("gelu_tanh", gated=False)),
        torch.float16,
        {"provider": "cuda"},
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_kernel_cannot_compute_is_a_loop(reason):
    feed_forward, dtype, options = REFUSED[reason]
    graph, reports = lowered(routed(feed_forward), dtype, **options)
    assert not kernels(graph)
    assert sum(node.op_type == "Loop" for node in graph.graph) == 1
    (told,) = reports.fallbacks
    assert told.startswith("MixtureOfExperts decomposed in 1 place: ")
    assert reason in told


@pytest.mark.parametrize("precision", [None, "int4", "int8"])
@pytest.mark.parametrize("router", [{}, {"scoring": "sigmoid"}], ids=["softmax", "sigmoid"])
def test_cuda_has_kernels_in_half_precision(router, precision):
    """Those of integers lay their weights out when they are loaded, and route by logits alone."""
    wide = expert(intermediate_size=64)
    blocks = block(attention(rotary=rotary(16), head_dim=16), feed_forward=experts(router, wide))
    quantization = None if precision is None else make_quantization(precision)
    graph, reports = lowered(model(blocks, hidden_size=64), torch.float16, provider="cuda", quantization=quantization)
    (node,) = [node for node in graph.graph if node.op_type in ("MoE", "QMoE")]
    assert node.op_type == ("MoE" if precision is None else "QMoE")
    assert reports.fallbacks == []
    assert node.attributes.get_int("normalize_routing_weights") == 1
    if precision is not None:
        assert node.attributes.get_int("weights_prepacked") == 0
        assert len(node.inputs) == 7
        integers, scales = (node.inputs[place].const_value for place in (2, 3))
        assert (scales.dtype, len(scales.tobytes())) == (ir.DataType.FLOAT16, 2 * scales.size)
        assert integers.dtype == ir.DataType.UINT8
    # cuDNN, which is optional, has the maxima.
    assert not any(node.op_type == "ReduceMax" for node in graph.graph)


def test_integers_of_sizes_that_cuda_lacks_are_said():
    narrow = routed(experts({}, expert(intermediate_size=32)))
    _, reports = lowered(narrow, torch.float16, provider="cuda", quantization=make_quantization("int4"))
    (told,) = reports.fallbacks
    assert told == (
        "MixtureOfExperts decomposed in 1 place: the CUDA kernel takes sizes in multiples of 64, from 16 on, and these "
        "are [32, 32]; these experts are not quantized"
    )


def test_dense_blocks_stay_beside_experts():
    dense = block(attention(rotary=rotary()))
    graph, _ = lowered(model(dense, block(attention(rotary=rotary()), feed_forward=experts({}))))
    assert len(kernels(graph)) == 1
    assert sum(node.op_type == "Sigmoid" for node in graph.graph) == 1
