"""Nodes on either side of every rule about WebGPU kernels; `test_webgpu_provider.py` runs each there and on the CPU.

Case.problem is a part of the finding about a node whose kernel fails, computes something else, or does not exist.
"""

from cuda_cases import FLOAT, INT32, UINT8, Case, attention, experts, linear, product


def source_attention(name, problem=None, mask=False, bias=False):
    """Three tokens over five of a source."""
    inputs = [
        ("query", FLOAT, [1, 3, 16]), ("key", FLOAT, [1, 2, 5, 8]), ("value", FLOAT, [1, 2, 5, 8]), None,
        ("ones", INT32, [1, 5]) if mask else None, ("bias", FLOAT, [1, 2, 3, 5]) if bias else None,
    ]  # fmt: skip
    return Case(name, "MultiHeadAttention", inputs, [("y", FLOAT)], problem, {"num_heads": 2})


def quantized_experts(name, problem=None, tokens=3, hidden=32, wide=32):
    inputs = [
        ("x", FLOAT, [tokens, hidden]), ("logits", FLOAT, [tokens, 4]),
        ("up", UINT8, [4, 2 * wide, hidden // 2]), ("up_scales", FLOAT, [4, 2 * wide, hidden // 32]), None,
        ("down", UINT8, [4, hidden, wide // 2]), ("down_scales", FLOAT, [4, hidden, wide // 32]),
    ]  # fmt: skip
    attributes = {
        "k": 2, "expert_weight_bits": 4, "block_size": 32, "activation_type": "swiglu", "swiglu_fusion": 1,
        "normalize_routing_weights": 1, "activation_alpha": 1.0, "activation_beta": 0.0,
    }  # fmt: skip
    return Case(name, "QMoE", inputs, [("y", FLOAT)], problem, attributes)


CASES = [
    attention("attention", kind=FLOAT),
    attention("attention, heads of 8", kind=FLOAT, dim=8),
    attention("attention, heads of 40", kind=FLOAT, dim=40),
    attention("attention, heads of 256", kind=FLOAT, dim=256),
    attention("attention, rotated", kind=FLOAT, dim=32, rotary=32),
    attention("attention, partly rotated", kind=FLOAT, dim=64, rotary=32),
    attention("attention, pairs rotated", kind=FLOAT, dim=32, rotary=32, rotary_interleaved=1),
    attention("attention, window", kind=FLOAT, local_window_size=7),
    attention("attention, bias", kind=FLOAT, bias=True),
    attention("attention, sink", kind=FLOAT, sink=True),
    attention("attention, chunk", kind=FLOAT, tokens=5),
    attention("attention, another scale", kind=FLOAT, scale=0.3),
    attention("attention, soft-cap", "it has a soft-cap, which the kernel ignores", kind=FLOAT, softcap=0.5),
    attention("attention, not causal", "it is not causal, and the kernel is", kind=FLOAT, tokens=5, causal=0),
    source_attention("source attention"),
    source_attention("source attention, bias", bias=True),
    source_attention("source attention, mask", "it has a mask of padding, which the kernel does not take", mask=True),
    product("product, 4 bits", kind=FLOAT),
    product("product, 4 bits, blocks of 16", kind=FLOAT, block=16),
    product("product, 4 bits, blocks of 256", kind=FLOAT, block=256),
    product("product, 8 bits", kind=FLOAT, bits=8),
    product("product, 2 bits", kind=FLOAT, bits=2),
    product("product, zero points", kind=FLOAT, zeros=UINT8),
    product("product, zero points of float32", "there is no kernel for T3 = float", kind=FLOAT, zeros=FLOAT),
    experts("experts, float32", "there is no kernel of this op", kind=FLOAT),
    quantized_experts("experts in integers, a token", "wrong in a run of more than one token", tokens=1),
    quantized_experts("experts in integers", "wrong in a run of more than one token"),
    linear("linear attention", kind=FLOAT),
    linear("linear attention, odd sizes", kind=FLOAT, key=8, value=12),
]

RIGHT_IN_THAT_RUN = {"experts in integers, a token"}
"""Cases that are refused for what other runs of the same node return."""
