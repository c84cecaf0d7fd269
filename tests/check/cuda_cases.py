"""Nodes on either side of every rule about attributes of CUDA kernels; each is a graph of its own with static sizes."""

from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto, helper

HALF, FLOAT, BFLOAT16 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16
INT8, UINT8, INT32, INT64, FP8 = (
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT8E4M3FN,
)  # fmt: skip

Input = tuple[str, int, list[int]] | None


@dataclass(frozen=True)
class Case:
    """A node. inputs: None where left out. problem: a part of the finding about it; None if it runs on CUDA."""

    name: str
    op: str
    inputs: list[Input]
    outputs: list[tuple[str, int]]
    problem: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """A graph of this node. An input named `total` is a constant 64, as its value is read when the node runs."""
        given = [each for each in self.inputs if each is not None]
        names = [each[0] if each is not None else "" for each in self.inputs]
        node = helper.make_node(
            self.op, names, [name for name, _ in self.outputs], domain="com.microsoft", name="tested", **self.attributes
        )
        graph = helper.make_graph(
            [node],
            "graph",
            [helper.make_tensor_value_info(*each) for each in given if each[0] != "total"],
            [helper.make_tensor_value_info(name, kind, None) for name, kind in self.outputs],
            [helper.make_tensor("total", INT32, [], [64])] if "total" in names else [],
        )
        opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def attention(
    name,
    problem=None,
    kind=HALF,
    cache=None,
    dim=64,
    bias=False,
    sink=False,
    scales=False,
    rotary=0,
    heads=4,
    tokens=1,
    scaled="PER_CHANNEL",
    **attributes,
):
    """New tokens in a cache of 64, heads over 2. rotary: how many numbers of a head are rotated."""
    cache = cache or kind
    stored = dim // 2 if cache == UINT8 else dim
    optional: list[Input] = [
        ("cos", kind, [128, rotary // 2]) if rotary else None,
        ("sin", kind, [128, rotary // 2]) if rotary else None,
        None,
        ("bias", kind, [1, heads, tokens, 64]) if bias else None,
        ("sink", kind, [heads]) if sink else None,
        ("k_scale", FLOAT, [2 * dim if scaled == "PER_CHANNEL" else 1]) if scales else None,
        ("v_scale", FLOAT, [2 * dim if scaled == "PER_CHANNEL" else 1]) if scales else None,
    ]
    attributes |= {"num_heads": heads, "kv_num_heads": 2, "do_rotary": int(rotary > 0)}
    if scales:
        bits = 4 if cache == UINT8 else 8
        attributes |= {"k_quant_type": scaled, "v_quant_type": scaled, "kv_cache_bit_width": bits}
    inputs: list[Input] = [
        ("query", kind, [1, tokens, heads * dim]), ("key", kind, [1, tokens, 2 * dim]),
        ("value", kind, [1, tokens, 2 * dim]),
        ("past_key", cache, [1, 2, 64, stored]), ("past_value", cache, [1, 2, 64, stored]),
        ("seqlens_k", INT32, [1]), ("total", INT32, []), *optional,
    ]  # fmt: skip
    outputs = [("output", kind), ("present_key", cache), ("present_value", cache)]
    return Case(name, "GroupQueryAttention", inputs, outputs, problem, attributes)


def product(name, problem=None, kind=HALF, bits=4, block=32, zeros=None):
    blocks = 256 // block
    inputs: list[Input] = [
        ("a", kind, [1, 1, 256]), ("b", UINT8, [64, blocks, block * bits // 8]), ("scales", kind, [64, blocks])
    ]  # fmt: skip
    if zeros is not None:
        inputs.append(("zeros", zeros, [64, -(-blocks * bits // 8)] if zeros == UINT8 else [64, blocks]))
    attributes = {"K": 256, "N": 64, "bits": bits, "block_size": block}
    return Case(name, "MatMulNBits", inputs, [("y", kind)], problem, attributes)


def experts(name, problem=None, kind=HALF, hidden=64, wide=96):
    inputs: list[Input] = [
        ("x", kind, [3, hidden]), ("logits", kind, [3, 4]), ("up", kind, [4, wide, hidden]), None,
        ("down", kind, [4, hidden, wide]),
    ]  # fmt: skip
    return Case(name, "MoE", inputs, [("y", kind)], problem, {"k": 2, "activation_type": "silu"})


def linear(name, problem=None, kind=HALF, key=64, value=64):
    inputs: list[Input] = [
        ("query", kind, [1, 70, 2 * key]), ("key", kind, [1, 70, 2 * key]), ("value", kind, [1, 70, 2 * value]),
        ("past", kind, [1, 2, key, value]), ("decay", kind, [1, 70, 2]), ("beta", kind, [1, 70, 2]),
    ]  # fmt: skip
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated_delta"}
    return Case(name, "LinearAttention", inputs, [("y", kind), ("present", kind)], problem, attributes)


CASES = [
    attention("attention, float16"),
    attention("attention, bfloat16", kind=BFLOAT16),
    attention("attention, float32", "no kernel for T = float, T_CACHE = float", kind=FLOAT),
    attention("attention, heads of 512", dim=512),
    attention("attention, heads of 520", "head_dim is 520, and the kernel takes 512 at most", dim=520),
    attention("attention, heads of 40", dim=40),
    attention("attention, heads of 12", "head_dim is 12, and the kernel takes multiples of 8", dim=12),
    attention("attention, rotated", dim=32, rotary=32),
    attention("attention, partly rotated", dim=64, rotary=32),
    attention("attention, 24 rotated", "it rotates 24 of 32 numbers of a head", dim=32, rotary=24),
    attention("attention, rotated heads of 24", "it rotates 16 of 24 numbers of a head", dim=24, rotary=16),
    attention("attention, soft-cap", softcap=5.0),
    attention("attention, window", local_window_size=7),
    attention("attention, not causal", causal=0),
    attention("attention, not causal, window", "is not causal", causal=0, local_window_size=7),
    attention("attention, bias", bias=True),
    attention("attention, sink", sink=True),
    attention("attention, bias and sink", "a bias of scores and a sink", bias=True, sink=True),
    attention("attention, int8 cache", cache=INT8, scales=True),
    attention("attention, 4-bit cache", cache=UINT8, scales=True),
    attention("attention, fp8 cache", cache=FP8, scales=True),
    attention("attention, fp8 cache, a scale for each layer", cache=FP8, scales=True, scaled="PER_TENSOR"),
    attention("attention, fp8 cache, heads of 512", "up to 256", cache=FP8, scales=True, dim=512, scaled="PER_TENSOR"),
    attention(
        "attention, fp8 cache, bias",
        "a bias of scores and a quantized",
        cache=FP8,
        scales=True,
        bias=True,
        scaled="PER_TENSOR",
    ),
    attention("attention, int8 cache, bias", "a bias of scores and a quantized", cache=INT8, scales=True, bias=True),
    attention("attention, int8 cache, heads of 512", "up to 256", cache=INT8, scales=True, dim=512),
    attention("attention, int8 cache, soft-cap", cache=INT8, scales=True, softcap=5.0),
    product("product, 4 bits"),
    product("product, 4 bits, bfloat16", kind=BFLOAT16, block=128),
    product("product, 4 bits, float32", kind=FLOAT),
    product("product, 8 bits, blocks of 256", bits=8, block=256),
    product("product, 2 bits", bits=2),
    product("product, 3 bits", "its weights have 3 bits", bits=3),
    product("product, 4 bits, blocks of 256", "its blocks have 256 weights", block=256),
    product("product, zero points of 4 bits", zeros=UINT8),
    product("product, zero points of float16", zeros=HALF),
    product(
        "product, zero points of another type", "T1 = bfloat16, T2 = uint8, T3 = float16", kind=BFLOAT16, zeros=HALF
    ),
    experts("experts, float16"),
    experts("experts, float32", kind=FLOAT, hidden=20),
    experts("experts, bfloat16", kind=BFLOAT16),
    experts("experts, hidden size of 20", "hidden_size is 20; the kernel takes multiples of 8", hidden=20),
    experts("experts, hidden size of 8", "hidden_size is 8; the kernel takes", hidden=8),
    linear("linear attention, float16"),
    linear("linear attention, bfloat16", kind=BFLOAT16),
    linear("linear attention, odd sizes", key=8, value=10),
    linear("linear attention, wide heads", "needs 264,192 bytes of shared memory", key=256, value=256),
    linear("linear attention, long keys", "needs 270,336 bytes of shared memory", key=1024, value=64),
    linear("linear attention, long values", key=64, value=1024),
]
