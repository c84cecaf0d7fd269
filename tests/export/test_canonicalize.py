"""Passes for graphs of modules that were not written for our ops: each keeps what the graph computes.

The module here lays heads out as transformers' do, and is captured in float64. Before and after each pass the graph is
decomposed and run: logits and caches must agree to 1e-12.
"""

import functools

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import nn

from edgeformer import ops
from edgeformer.contract.tensors import CacheGeometry, past_names
from edgeformer.export.capture.trace import capture
from edgeformer.export.graph.function_bodies import decompose_all
from edgeformer.export.passes import (
    canonicalize,
    fold_rotary,
    pack_qkv,
    replace_rare_ops,
    simplify_layout,
    transpose_weights,
    widen_rotary,
)
from edgeformer.models.model_spec import ModelSpec

LAYERS, HEADS, KV_HEADS, WIDTH, TURNING = 2, 4, 2, 16, 8
CACHE = CacheGeometry.of_attention(num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=WIDTH)


class Layer(nn.Module):
    """Attention as transformers writes it: heads on axis 1, norms there, a part of each head turned."""

    def __init__(self, dtype, part, *, norm=False, chunk=False, order=(0, 1), heads_axis=1):
        super().__init__()
        self.part, self.chunk, self.order, self.heads_axis = part, chunk, order, heads_axis
        self.q = nn.Linear(32, HEADS * WIDTH, dtype=dtype)
        self.k, self.v = (nn.Linear(32, KV_HEADS * WIDTH, dtype=dtype) for _ in range(2))
        self.gain = nn.Parameter(torch.empty(WIDTH, dtype=dtype)) if norm else None
        self.o = nn.Linear(HEADS * WIDTH, 32, dtype=dtype)

    def turn(self, heads, positions, cos, sin):
        """[B, H, S, D] → the same with its leading elements turned."""
        if self.part == WIDTH:
            return self.rotate(heads, positions, cos, sin)
        if self.chunk:
            parts = list(heads.split([self.part, WIDTH - self.part], -1))
        else:
            parts = [heads[..., : self.part], heads[..., self.part :]]
        parts[0] = self.rotate(parts[0], positions, cos, sin)
        return torch.cat([parts[place] for place in self.order], -1)

    def rotate(self, heads, positions, cos, sin):
        flat = heads.transpose(1, 2) if self.heads_axis == 1 else heads  # [B, S, H, R]
        turned = ops.rotary_embedding(flat.flatten(2), positions, cos, sin, flat.shape[2], False)
        turned = turned.unflatten(-1, flat.shape[2:])
        return turned.transpose(1, 2) if self.heads_axis == 1 else turned

    def forward(self, x, mask, positions, past, cos, sin):
        shape = (*x.shape[:-1], -1, WIDTH)
        q, k, v = (project(x).view(shape) for project in (self.q, self.k, self.v))
        if self.heads_axis == 1:
            q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        if self.gain is not None:
            q, k = (ops.rms_norm(heads, self.gain, 1e-5) for heads in (q, k))
        q, k = (self.turn(heads, positions, cos, sin) for heads in (q, k))
        flat = ((heads.transpose(1, 2) if self.heads_axis == 1 else heads).flatten(2) for heads in (q, k, v))
        output, *present = ops.group_query_attention(*flat, *past, mask, HEADS, KV_HEADS, 0.25)
        output = output.unflatten(-1, (HEADS, WIDTH)).reshape(*x.shape[:-1], -1)
        return x + self.o(output[:, slice(0, None)]), tuple(present)


class Model(nn.Module):
    """Two such layers; cos and sin are parameters, so that a test needs no constants."""

    def __init__(self, dtype, part, **options):
        super().__init__()
        self.embedding = nn.Embedding(31, 32, dtype=dtype)
        self.cos, self.sin = (nn.Parameter(torch.empty(40, TURNING // 2, dtype=dtype)) for _ in range(2))
        self.layers = nn.ModuleList(Layer(dtype, part, **options) for _ in range(LAYERS))
        self.head = nn.Linear(32, 31, bias=False, dtype=dtype)

    def forward(self, input_ids, attention_mask, caches):
        positions = ops.token_positions(attention_mask, input_ids)
        x, presents = self.embedding(input_ids), []
        for layer, past in zip(self.layers, caches, strict=True):
            x, present = layer(x, attention_mask, positions, past, self.cos, self.sin)
            presents.append(present)
        return self.head(x), presents


def captured(**options) -> ir.Model:
    return traced(**options).clone()


@functools.cache
def traced(part=TURNING, **options) -> ir.Model:
    model_spec = ModelSpec(
        build=lambda dtype: Model(dtype, part, **options), constants=dict, cache=CACHE, vocab_size=31, context_length=40
    )
    generator = torch.Generator().manual_seed(0)
    shapes = model_spec.parameter_shapes()
    weights = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return capture(*model_spec.graphs, model_spec, weights, torch.float64)


def run(graph: ir.Model) -> list[np.ndarray]:
    """All outputs for 4 tokens that follow 3; run on a decomposed copy."""
    copy = ir.serde.deserialize_model(ir.serde.serialize_model(graph))
    decompose_all(copy)
    session = ort.InferenceSession(ir.serde.serialize_model(copy).SerializeToString())
    random = np.random.default_rng(0)
    feeds = {"input_ids": random.integers(0, 31, (2, 4)), "attention_mask": np.ones((2, 7), np.int64)}
    feeds |= {name: random.normal(size=(2, KV_HEADS, 3, WIDTH)) for name in past_names(CACHE)}
    return session.run(None, feeds)


def assert_keeps_the_maths(graph: ir.Model, rewrite):
    before = run(graph)
    report = rewrite(graph)
    for old, new in zip(before, run(graph), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=1e-12)
    return report


def count(graph: ir.Model, *op_types: str) -> int:
    return sum(node.op_type in op_types for node in graph.graph)


def test_simplify_layout_leaves_no_detour():
    graph = captured(part=WIDTH)
    report = assert_keeps_the_maths(graph, simplify_layout)
    assert report.changed > 50
    assert count(graph, "Reshape", "Concat", "Shape", "Slice") == 0
    assert count(graph, "Transpose") == 4 * LAYERS + 1  # those of weights
    assert simplify_layout(graph).changed == 0


def test_simplify_layout_takes_transposes_through_norms_of_heads():
    graph = captured(part=WIDTH, norm=True)
    assert_keeps_the_maths(graph, simplify_layout)
    assert count(graph, "RMSNorm") == 2 * LAYERS
    assert count(graph, "Transpose") == 4 * LAYERS + 1


def test_widen_rotary_turns_whole_heads():
    graph = captured()
    simplify_layout(graph)
    report = assert_keeps_the_maths(graph, widen_rotary)
    assert (report.changed, report.missed) == (2 * LAYERS, [])
    assert count(graph, "Slice", "Concat") == 0


def test_widen_rotary_leaves_what_is_put_back_elsewhere():
    """[turned, rest] → [rest, turned] is another model, and as legitimate."""
    graph = captured(order=(1, 0))
    simplify_layout(graph)
    report = assert_keeps_the_maths(graph, widen_rotary)
    assert report.changed == 0


def test_replace_rare_ops_split_without_sequences():
    graph = captured(chunk=True)
    assert count(graph, "SplitToSequence") == 2 * LAYERS
    report = assert_keeps_the_maths(graph, replace_rare_ops)
    assert (report.changed, report.missed) == (2 * LAYERS, [])
    assert count(graph, "SplitToSequence", "SequenceAt") == 0


@pytest.mark.parametrize("options", [{}, {"chunk": True}, {"norm": True}, {"heads_axis": 2}, {"part": WIDTH}])
def test_straightened_graphs_are_what_the_other_passes_know(options):
    graph = captured(**options)
    assert_keeps_the_maths(graph, canonicalize)
    transpose_weights(graph)
    assert fold_rotary(graph).changed == LAYERS
    packed = pack_qkv(graph)
    assert packed.changed == (0 if "norm" in options else LAYERS), packed.missed


def test_a_cast_to_the_type_of_another_value_is_a_cast():
    x, y = (ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([2])) for name, dtype in (
        ("x", ir.DataType.FLOAT), ("y", ir.DataType.INT64),
    ))  # fmt: skip
    like = ir.Node("", "CastLike", [x, y], outputs=[ir.Value(name="like", type=ir.TensorType(ir.DataType.INT64))])
    same = ir.Node("", "CastLike", [x, x], outputs=[ir.Value(name="same", type=ir.TensorType(ir.DataType.FLOAT))])
    ends = [
        ir.Node("", "Neg", node.outputs, outputs=[ir.Value(name=f"out_{node.outputs[0].name}")])
        for node in (like, same)
    ]
    graph = ir.Graph([x, y], [end.outputs[0] for end in ends], nodes=[like, same, *ends], opset_imports={"": 20})
    model = ir.Model(graph, ir_version=10)
    assert replace_rare_ops(model).changed == 2
    assert [node.op_type for node in graph] == ["Cast", "Neg", "Neg"]
    assert ends[1].inputs[0] is x
