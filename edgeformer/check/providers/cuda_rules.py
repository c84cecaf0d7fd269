"""Requirements of CUDA kernels of onnxruntime beyond types: attributes, and sizes of tensors.

Each rule names the source file of onnxruntime that holds it. `tests/check/test_cuda_provider.py` runs a node on either
side of every rule with the provider of onnxruntime 1.31.1, where its wheel is at hand, and compares.
"""

from collections.abc import Iterator

from edgeformer.check.providers.attribute_rules import Broken, Rules, input_of, size_of
from edgeformer.check.providers.typed_nodes import TypedNode
from edgeformer.contract.ops import (
    ATTENTION,
    BLOCK_PRODUCT,
    CONVOLUTION,
    EXPERTS,
    LINEAR_ATTENTION,
    QUANTIZED_EXPERTS,
)

SOURCES = "onnxruntime/contrib_ops/"
SHARED_MEMORY = {"H100": 232_448, "A100": 166_912, "GeForce RTX 30 and 40": 101_376}
"""Bytes of shared memory that a block may ask for, by device (CUDA C++ Programming Guide, compute capabilities)."""


def _attention(node: TypedNode) -> Iterator[Broken]:
    kernel, helper = f"{SOURCES}cuda/bert/group_query_attention.cc", f"{SOURCES}cpu/bert/group_query_attention_helper.h"
    quantized = node.attributes.get("k_quant_type", b"NONE") != b"NONE"
    size, rotary = _head_size(node), size_of(node, "cos_cache", -1) * 2
    if size % 8:
        yield Broken(f"head_dim is {size}, and the kernel takes multiples of 8", helper)
    if size > 512:
        yield Broken(f"head_dim is {size}, and the kernel takes 512 at most", kernel)
    if node.attributes.get("do_rotary", 0) and (size % 16 or rotary % 16):
        yield Broken(f"it rotates {rotary} of {size} numbers of a head, and both must be multiples of 16", helper)
    if not node.attributes.get("causal", 1) and node.attributes.get("local_window_size", -1) != -1:
        yield Broken("it has a window and is not causal, and the kernel wants it causal then", kernel)
    bias = input_of(node, "attention_bias") is not None
    if bias and (input_of(node, "head_sink") is not None or node.attributes.get("smooth_softmax", 0)):
        yield Broken("it has a bias of scores and a sink, of which the kernel takes one", kernel)
    if bias and quantized:
        yield Broken("it has a bias of scores and a quantized cache, of which the kernel takes one", kernel)
    if quantized and size > 256:
        yield Broken(f"head_dim is {size}, and a quantized cache has kernels up to 256", kernel)
    if node.attributes.get("qk_output", 0):
        yield Broken("it returns scores, which the kernel does not", kernel)


def _head_size(node: TypedNode) -> int:
    """The size of a head, by the cache or the queries; 0 if the file does not tell."""
    size = size_of(node, "past_key", 3)
    if size:
        return size * 2 if node.attributes.get("kv_cache_bit_width", 0) == 4 else size
    heads = node.attributes.get("num_heads", 0)
    if input_of(node, "key") is None:
        heads += 2 * node.attributes.get("kv_num_heads", 0)
    return size_of(node, "query", -1) // heads if heads else 0


def _product(node: TypedNode) -> Iterator[Broken]:
    source = f"{SOURCES}cuda/quantization/matmul_nbits.cc"
    bits, block = node.attributes.get("bits", 4), node.attributes.get("block_size", 0)
    if bits not in (2, 4, 8):
        yield Broken(f"its weights have {bits} bits, and there are kernels for 2, 4 and 8", source)
    if bits == 4 and block > 128:
        source = f"{SOURCES}cuda/quantization/matmul_4bits.cu"
        yield Broken(f"its blocks have {block} weights, and the kernel of one row takes 128 at most", source)


def _experts(node: TypedNode) -> Iterator[Broken]:
    source, kind = f"{SOURCES}cuda/moe/moe.cc", node.types.get("T")
    multiple = 4 if kind == "float" else 8
    down = "fc2_experts_weights"
    sizes = {"hidden_size": size_of(node, down, 1), "intermediate_size": size_of(node, down, 2)}
    for name, size in sizes.items():
        if size and (size < 16 or size % multiple):
            yield Broken(f"{name} is {size}; the kernel takes multiples of {multiple}, from 16 on", source)


def _quantized_experts(node: TypedNode) -> Iterator[Broken]:
    source = f"{SOURCES}cuda/moe/moe_quantization.cc"
    bits, block = node.attributes.get("expert_weight_bits", 4), node.attributes.get("block_size", 0)
    if node.attributes.get("quant_type", b"int") != b"int":
        return
    packed = {"hidden_size": "fc1_experts_weights", "intermediate_size": "fc2_experts_weights"}
    sizes = {name: size_of(node, weights, 2) * 8 // bits for name, weights in packed.items()}
    for name, size in sizes.items():
        if size % 64:
            yield Broken(f"{name} is {size}, and the kernel takes multiples of 64", source)
    if block and block % 32:
        yield Broken(f"its blocks have {block} weights, and the kernel takes multiples of 32", source)
    if node.attributes.get("weights_prepacked", -1) != 0:
        problem = "weights_prepacked is not 0, so the kernel takes its weights for ones in CUDA's layout"
        yield Broken(problem, source, "unknown")


def _linear_attention(node: TypedNode) -> Iterator[Broken]:
    source = f"{SOURCES}cuda/bert/linear_attention_impl.cu"
    key, value = size_of(node, "past_state", 2), size_of(node, "past_state", 3)
    if key in (64, 128) and value % 32 == 0:
        return
    needed = (4 * value + 8) * key  # the state in float32, and two rows
    lacking = [name for name, there in SHARED_MEMORY.items() if needed > there]
    if lacking:
        problem = f"its state needs {needed:,} bytes of shared memory, more than there are on {', '.join(lacking)}"
        yield Broken(problem, source, "error" if "H100" in lacking else "warning")


def _convolution(node: TypedNode) -> Iterator[Broken]:
    if node.attributes.get("ndim", 1) != 1:
        yield Broken("its ndim is not 1", f"{SOURCES}cuda/bert/causal_conv_with_state.cc")


RULES: Rules = {
    ATTENTION.key: _attention,
    BLOCK_PRODUCT.key: _product,
    EXPERTS.key: _experts,
    QUANTIZED_EXPERTS.key: _quantized_experts,
    LINEAR_ATTENTION.key: _linear_attention,
    CONVOLUTION.key: _convolution,
}
