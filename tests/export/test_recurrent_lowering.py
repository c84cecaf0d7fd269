"""The ops of recurrent layers in every op set: what they compute, padding, states that are updated in place."""

import copy
import functools

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from test_function_bodies import Call, in_onnx
from test_recurrent_bodies import MASKS, RULES, SCALE, attention_tensors, conv_tensors, feeds_of, in_precision
from torch import nn

from edgeformer import ops
from edgeformer.config import DeltaNetConfig, StateSpaceConfig
from edgeformer.export.graph.recurrent_bodies import CHUNK
from edgeformer.export.lower import LoweringOptions
from edgeformer.export.lower.lowering import lower
from edgeformer.layers import Context
from edgeformer.layers.recurrent.delta_net import DeltaNet
from edgeformer.layers.recurrent.state_space import StateSpace

OP_SETS = {
    "ort": LoweringOptions(),
    "ort, dynamic": LoweringOptions(cache_form="dynamic"),
    "standard": LoweringOptions(ops="standard", cache_form="static"),
    "portable": LoweringOptions(ops="portable", cache_form="static"),
    "functions": LoweringOptions(ops="portable", cache_form="static", functions=True),
}
CASES = [None, *RULES]
"""The convolution, and the rules of linear attention."""


def case(rule, length, padding="full", dtype=torch.float32):
    """Return an op with its inputs and attributes."""
    make = conv_tensors if rule is None else functools.partial(attention_tensors, rule)
    op, attributes = (ops.causal_conv, {"silu": True}) if rule is None else (ops.linear_attention, SCALE)
    return op, in_precision(make(length, MASKS[padding](length)), dtype), attributes


@functools.cache
def traced(rule, dtype):
    """Return the graph of the op, whose number of new tokens is free."""
    op, tensors, attributes = case(rule, 3, dtype=dtype)
    present = feeds_of(tensors)
    absent = {name: None for name, tensor in tensors.items() if tensor is None}
    fixed = ("past", "weight", "bias")
    axes = tuple(None if name in fixed else {1: torch.export.Dim.DYNAMIC} for name in present)
    module = Call(op, list(present), attributes | absent)
    exported = torch.export.export(module, tuple(present.values()), strict=False, dynamic_shapes=(axes,))
    return in_onnx(exported, list(present))


@functools.cache
def lowered(rule, dtype, lowering):
    """Return a session of the lowered op, and its graph."""
    model = traced(rule, dtype).clone()
    report = lower(model, lowering)
    return ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString()), model, report


def exact(op, tensors, attributes):
    return op(**in_precision(tensors, torch.float64), **attributes)


def error(actual, expected):
    return np.abs(actual.astype(np.float64) - expected.numpy()).max() / expected.abs().max()


TOLERANCES = {torch.float32: 1e-6, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OP_SETS)
@pytest.mark.parametrize("rule", CASES)
def test_every_op_set_computes_the_op(rule, name, dtype):
    session, _, _ = lowered(rule, dtype, OP_SETS[name])
    for length in (1, 3, CHUNK + 5):
        for padding in MASKS if rule is not None or "dynamic" in name else ("full", "right-padded"):
            op, tensors, attributes = case(rule, length, padding, dtype)
            actual, state = session.run(None, {each: value.numpy() for each, value in feeds_of(tensors).items()})
            output, present = exact(op, tensors, attributes)
            tokens = tensors["token_mask"].numpy()
            assert error(actual[tokens], output[tensors["token_mask"]]) < TOLERANCES[dtype]
            assert error(state, present) < TOLERANCES[dtype]


@pytest.mark.parametrize("name", OP_SETS)
@pytest.mark.parametrize("rule", CASES)
def test_padding_that_overflows_harms_nobody(rule, name):
    session, _, _ = lowered(rule, torch.float32, OP_SETS[name])
    op, tensors, attributes = case(rule, 7, "right-padded")
    clean = session.run(None, {each: value.numpy() for each, value in feeds_of(tensors).items()})
    padding = ~tensors["token_mask"]
    for each in ("x", "query", "key", "value", "decay", "beta"):
        if tensors.get(each) is not None:
            tensors[each][padding] = float("nan")
    run = session.run(None, {each: value.numpy() for each, value in feeds_of(tensors).items()})
    for output, state in (run, [each.numpy() for each in op(**tensors, **attributes)]):
        np.testing.assert_allclose(output[~padding.numpy()], clean[0][~padding.numpy()], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(state, clean[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OP_SETS)
@pytest.mark.parametrize("rule", CASES)
def test_a_state_is_updated_in_place(rule, name):
    """Past and present are one buffer, for a prompt, chunks and steps of the same graph."""
    session, _, _ = lowered(rule, torch.float32, OP_SETS[name])
    output, present = (each.name for each in session.get_outputs())
    buffer = ort.OrtValue.ortvalue_from_numpy(case(rule, 1)[1]["past"].numpy().copy())
    past = case(rule, 1)[1]["past"]
    for length in (2 * CHUNK + 1, 1, 5, 1, 1):
        op, tensors, attributes = case(rule, length)
        binding = session.io_binding()
        for each, tensor in feeds_of(tensors).items():
            if each != "past":
                binding.bind_cpu_input(each, tensor.numpy())
        binding.bind_ortvalue_input("past", buffer)
        binding.bind_output(output)
        binding.bind_ortvalue_output(present, buffer)
        session.run_with_iobinding(binding)
        expected, past = exact(op, tensors | {"past": past}, attributes)
        assert error(binding.get_outputs()[0].numpy(), expected) < 1e-5
        assert error(buffer.numpy(), past) < 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_linear_attention_is_one_node_of_onnxruntime(rule):
    _, model, report = lowered(rule, torch.float32, OP_SETS["ort"])
    (node,) = (node for node in model.graph if node.domain == "com.microsoft")
    assert node.op_type == "LinearAttention" and node.attributes.get_string("update_rule") == rule
    assert report.fallbacks == []
    assert not any(node.op_type in ("Scan", "Cast") for node in model.graph)


@pytest.mark.parametrize("rule", RULES)
def test_float16_is_computed_in_float32(rule):
    """The kernels for CPUs have no other type."""
    _, model, _ = lowered(rule, torch.float16, OP_SETS["ort"])
    assert sum(node.op_type == "LinearAttention" for node in model.graph) == 1
    assert sum(node.op_type == "Cast" for node in model.graph) == 6 + sum(RULES[rule])


def test_cuda_has_kernels_for_float16():
    _, model, report = lowered("gated_delta", torch.float16, LoweringOptions(provider="cuda"))
    assert report.fallbacks == [] and not any(node.op_type == "Cast" for node in model.graph)


def test_a_state_may_be_wider_than_the_rest():
    """A float32 state keeps small decays and updates, which float16 loses."""
    op, tensors, attributes = case("gated_delta", 200, dtype=torch.float16)
    tensors["decay"] = torch.full_like(tensors["decay"], -1e-3)
    tensors["beta"] *= 0.05
    wide = tensors | {"past": tensors["past"].float()}
    output, present = op(**wide, **attributes)
    assert (output.dtype, present.dtype) == (torch.float16, torch.float32)
    expected = exact(op, tensors, attributes)[1]
    assert error(present.numpy(), expected) < 1e-5
    assert error(op(**tensors, **attributes)[1].numpy(), expected) > 1e-3


HIDDEN = 24
LAYERS = {
    DeltaNet: DeltaNetConfig(
        num_key_heads=2, num_value_heads=4, key_dim=8, value_dim=16, kernel_size=4, norm_eps=1e-5
    ),
    StateSpace: StateSpaceConfig(
        num_heads=6, head_dim=8, state_size=16, num_groups=2, kernel_size=4, input_bias=False, conv_bias=True,
        output_bias=False, norm_eps=1e-5, norm_groups=2, max_step=2.0, part_scales=(0.5, 0.8, 1.25, 0.6, 1.5),
    ),
}  # fmt: skip


class Layer(nn.Module):
    """A recurrent layer whose inputs and outputs are tensors."""

    def __init__(self, layer_class):
        super().__init__()
        torch.manual_seed(0)
        self.layer = layer_class(LAYERS[layer_class], HIDDEN, torch.float32)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0.0, 0.4)

    def forward(self, x, token_mask, conv, state):
        nothing = torch.empty(0)
        context = Context(attention_mask=nothing, positions=nothing, key_positions=nothing, token_mask=token_mask)
        output, present = self.layer(x, (conv, state), context)
        return (output, *present)


NAMES = ["x", "token_mask", "conv", "state"]


@functools.cache
def traced_layer(layer_class):
    """Return a layer, and its graph, whose rows and tokens are free."""
    module = Layer(layer_class)
    states = [torch.zeros(2, *state.dims) for state in LAYERS[layer_class].states]
    given = torch.randn(2, 3, HIDDEN), torch.ones(2, 3, dtype=torch.bool), *states
    free = torch.export.Dim.DYNAMIC
    exported = torch.export.export(
        module, given, strict=False, dynamic_shapes=({0: free, 1: free}, {0: free, 1: free}, {0: free}, {0: free})
    )
    return copy.deepcopy(module).double(), in_onnx(exported, NAMES)


@pytest.mark.parametrize("name", OP_SETS)
@pytest.mark.parametrize("layer_class", LAYERS)
def test_a_layer_runs_in_every_op_set(layer_class, name):
    """A padded first prompt, then a chunk and steps."""
    torch.manual_seed(0)
    module, graph = traced_layer(layer_class)
    graph = graph.clone()
    lower(graph, OP_SETS[name])
    session = ort.InferenceSession(ir.serde.serialize_model(graph).SerializeToString())
    states = [torch.zeros(2, *state.dims) for state in LAYERS[layer_class].states]
    exact = [state.double() for state in states]
    states = [state.numpy() for state in states]
    for length, short in ((CHUNK + 3, 20), (5, 5), (1, 1), (1, 1)):
        x, mask = torch.randn(2, length, HIDDEN), torch.ones(2, length, dtype=torch.bool)
        mask[1, short:] = False
        output, *states = session.run(None, dict(zip(NAMES, (x.numpy(), mask.numpy(), *states), strict=True)))
        expected, *exact = module(x.double(), mask, *exact)
        assert error(output[mask.numpy()], expected[mask].detach()) < 1e-5
        for state, right in zip(states, exact, strict=True):
            assert error(state, right.detach()) < 1e-5
