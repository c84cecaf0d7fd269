"""The ops of graphs that more than one layer knows: their inputs by name, the form of their caches, and their cost.

`edgeformer.export` emits them, `edgeformer.check` reads them in files, and `edgeformer.runtime` counts them. Inputs and
outputs have the names of their schemas (ContribOperators.md of onnxruntime 1.31, Operators.md of ONNX).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from edgeformer.contract.tensors import CacheForm

T = TypeVar("T")

DOMAIN, CONTRIB, ONNX = "edgeformer", "com.microsoft", ""
"""The domains of canonical ops and of functions that have kernels, of onnxruntime's own ops, and of ONNX's."""

UNPACK_BITS = {bits: f"Unpack{bits}Bits" for bits in (3, 5, 6)}
"""Functions that make integers of 4 or 8 bits of those that lack some, by the bits that these have. They read weights
alone, so that runtimes compute them once, when they load a graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Op:
    """An op.

    Attributes:
        name, domain: as in nodes.
        inputs, outputs: their names, in order; () where nobody asks for them.
        cache: the form of a cache whose past it reads; None for an op that reads none.
        cheap: whether it takes a small part of the time of a model, so that one thread may do all of its nodes.
    """

    name: str
    domain: str = ONNX
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cache: CacheForm | None = None
    cheap: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Domain and name, by which nodes are compared."""
        return self.domain, self.name

    def place(self, name: str) -> int:
        """Return the index of an input."""
        return self.inputs.index(name)

    def named(self, inputs: Sequence[T]) -> dict[str, T]:
        """Return the inputs of a node by name, as far as it has them."""
        return dict(zip(self.inputs, inputs, strict=False))

    def ordered(self, **values: T | None) -> list[T | None]:
        """Return the inputs of a node in order, up to the last one that is named here."""
        last = max(self.inputs.index(name) for name in values)
        return [values.get(name) for name in self.inputs[: last + 1]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Function(Op):
    """A function of domain `edgeformer` around one node of onnxruntime, for which a kernel may stand in.

    Attributes:
        body: the op of that node.
        body_inputs: its inputs, None for those that calls of the function never have.
    """

    body: Op
    body_inputs: tuple[str | None, ...]


def _function(
    name: str, body: Op, *, without: Sequence[str] = (), inputs: int | None = None, outputs: Sequence[str] = ()
) -> Function:
    """Return a function whose calls lack some inputs. inputs: of its body, None for all. outputs: of calls."""
    kept = body.inputs[:inputs]
    return Function(
        name=name,
        domain=DOMAIN,
        inputs=tuple(each for each in kept if each not in without),
        outputs=tuple(outputs),
        cache=body.cache,
        body=body,
        body_inputs=tuple(None if each in without else each for each in kept),
    )


ATTENTION = Op(
    name="GroupQueryAttention",
    domain=CONTRIB,
    inputs=(
        "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
        "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale",
    ),
    outputs=("output", "present_key", "present_value"),
    cache="any",
)  # fmt: skip

INT8_CACHE: dict[str, str | int] = {
    "k_quant_type": "PER_CHANNEL",
    "v_quant_type": "PER_CHANNEL",
    "kv_cache_bit_width": 8,
}
"""Attributes of ATTENTION with an int8 cache."""

FP8_CACHE = INT8_CACHE | {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
"""Attributes with a float8 cache, which differs from an int8 cache of the same scales in its type alone."""

SCALES = ("k_scale", "v_scale")
"""Inputs of ATTENTION with a quantized cache."""

SOURCE_ATTENTION = Op(
    name="MultiHeadAttention",
    domain=CONTRIB,
    inputs=("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value"),
    outputs=("output",),
)

LINEAR_ATTENTION = Op(
    name="LinearAttention",
    domain=CONTRIB,
    inputs=("query", "key", "value", "past_state", "decay", "beta"),
    outputs=("output", "present_state"),
)

BLOCK_PRODUCT = Op(
    name="MatMulNBits",
    domain=CONTRIB,
    inputs=("A", "B", "scales", "zero_points", "g_idx", "bias"),
    outputs=("Y",),
)

INTEGER_PRODUCT = Op(
    name="MatMulIntegerToFloat",
    domain=CONTRIB,
    inputs=("A", "B", "a_scale", "b_scale", "a_zero_point", "b_zero_point", "bias"),
)

PRODUCT = Op(name="MatMul", inputs=("A", "B"))

TRANSPOSED_PRODUCT = Op(name="FusedMatMul", domain=CONTRIB, inputs=("A", "B"))
"""In graphs of edgeformer its weight is always transposed."""

QUANTIZED_PRODUCTS = (BLOCK_PRODUCT, INTEGER_PRODUCT)
"""Products with weights of integers."""

ROUNDING = Op(name="QuantizeLinear", inputs=("x", "y_scale", "y_zero_point"))
"""It rounds the activations that an INTEGER_PRODUCT reads."""

BLOCK_GATHER = Op(
    name="GatherBlockQuantized", domain=CONTRIB, inputs=("data", "indices", "scales", "zero_points"),
    cheap=True,
)  # fmt: skip

EXPERTS = Op(
    name="MoE",
    domain=CONTRIB,
    inputs=(
        "input", "router_probs", "fc1_experts_weights", "fc1_experts_bias", "fc2_experts_weights", "fc2_experts_bias",
        "fc3_experts_weights", "fc3_experts_bias",
    ),
)  # fmt: skip

QUANTIZED_EXPERTS = Op(
    name="QMoE",
    domain=CONTRIB,
    inputs=(
        "input", "router_probs", "fc1_experts_weights", "fc1_scales", "fc1_experts_bias", "fc2_experts_weights",
        "fc2_scales", "fc2_experts_bias", "fc3_experts_weights", "fc3_scales", "fc3_experts_bias", "fc1_zero_points",
        "fc2_zero_points", "fc3_zero_points", "router_weights",
    ),
)  # fmt: skip

CONVOLUTION = Op(name="CausalConvWithState", domain=CONTRIB)

MASKED_CONVOLUTION = Op(
    name="MaskedCausalConv",
    domain=DOMAIN,
    inputs=("x", "weight", "bias", "past", "token_mask"),
    outputs=("y", "present"),
)

MASKED_LINEAR_ATTENTION = Op(
    name="MaskedLinearAttention",
    domain=DOMAIN,
    inputs=("query", "key", "value", "past", "token_mask", "decay", "beta"),
    outputs=("output", "present"),
)
"""Functions of the canonical ops, for which edgeformer-kernels has kernels."""

RMS_NORM = Op(name="SimplifiedLayerNormalization", cheap=True)
"""onnxruntime has it in ONNX's domain."""

LAYER_NORM = Op(name="LayerNormalization", inputs=("X", "Scale", "B"), cheap=True)

CANONICAL_RMS_NORM = Op(name="RMSNorm", domain=DOMAIN)

SKIP_RMS_NORM = Op(
    name="SkipSimplifiedLayerNormalization",
    domain=CONTRIB,
    inputs=("input", "skip", "gamma", "bias"),
    outputs=("output", "mean", "inv_std_var", "input_skip_bias_sum"),
    cheap=True,
)

SKIP_LAYER_NORM = Op(
    name="SkipLayerNormalization",
    domain=CONTRIB,
    inputs=("input", "skip", "gamma", "beta", "bias"),
    outputs=("output", "mean", "inv_std_var", "input_skip_bias_sum"),
    cheap=True,
)

_UNQUANTIZED = ("position_ids", *SCALES)
_PRESENTS = ("output", "present_key", "present_value")

CACHED_ATTENTION = _function("CachedAttention", ATTENTION, without=_UNQUANTIZED, outputs=_PRESENTS)
FP16_CACHED_ATTENTION = _function("Fp16CachedAttention", ATTENTION, without=_UNQUANTIZED, outputs=_PRESENTS)
INT8_CACHED_ATTENTION = _function("Int8CachedAttention", ATTENTION, without=("position_ids",), outputs=_PRESENTS)
WINDOWED = {
    each: _function(name, ATTENTION, without=lacks, outputs=_PRESENTS)
    for each, name, lacks in (
        (CACHED_ATTENTION, "WindowedAttention", _UNQUANTIZED),
        (FP16_CACHED_ATTENTION, "Fp16WindowedAttention", _UNQUANTIZED),
        (INT8_CACHED_ATTENTION, "Int8WindowedAttention", ("position_ids",)),
    )
}
"""Functions that stand for attention with a cache, and those with a cache that evicts."""
SHARED_CACHE_ATTENTION = _function("SharedCacheAttention", ATTENTION, without=_UNQUANTIZED, outputs=("output",))
PER_TOKEN_ATTENTION = {
    CACHED_ATTENTION.name: "Int8PerTokenAttention",
    FP16_CACHED_ATTENTION.name: "Int8PerTokenAttention",
    WINDOWED[CACHED_ATTENTION].name: "Int8PerTokenWindowedAttention",
    WINDOWED[FP16_CACHED_ATTENTION].name: "Int8PerTokenWindowedAttention",
    SHARED_CACHE_ATTENTION.name: "Int8PerTokenSharedAttention",
}
"""Functions with a cache of floats, and kernels of the same over int8 with a scale for each key and value.

No graph of a file calls these (`edgeformer.runtime.sessions.graphs.int8_cache`).
"""
SELF_ATTENTION, CAUSAL_SELF_ATTENTION = (
    _function(name, ATTENTION, without=(*_UNQUANTIZED, "past_key", "past_value"), outputs=("output",))
    for name in ("SelfAttention", "CausalSelfAttention")
)
FLOAT_PRODUCTS = {
    precision: (
        _function(f"{prefix}MatMul", PRODUCT, outputs=("Y",)),
        _function(f"{prefix}TransposedMatMul", TRANSPOSED_PRODUCT, outputs=("Y",)),
    )
    for precision, prefix in (("fp32", ""), ("bf16", "Bf16"))
}
"""Functions of products with float32 activations, by the type of their weights."""

FUNCTIONS = (
    _function("MatMulNBits", BLOCK_PRODUCT, inputs=4, outputs=("Y",)),
    *FLOAT_PRODUCTS["fp32"],
    *FLOAT_PRODUCTS["bf16"],
    CACHED_ATTENTION,
    FP16_CACHED_ATTENTION,
    INT8_CACHED_ATTENTION,
    *WINDOWED.values(),
    SHARED_CACHE_ATTENTION,
    SELF_ATTENTION,
    CAUSAL_SELF_ATTENTION,
    _function("SourceAttention", SOURCE_ATTENTION, without=("bias",), inputs=5, outputs=("output",)),
    _function("AddRMSNorm", SKIP_RMS_NORM, inputs=3, outputs=("output", "input_skip_bias_sum")),
    _function("AddLayerNorm", SKIP_LAYER_NORM, inputs=4, outputs=("output", "input_skip_bias_sum")),
    _function("PostLayerNorm", SKIP_LAYER_NORM, inputs=4, outputs=("output",)),
)
"""Functions of one node of onnxruntime, for which edgeformer-kernels has kernels."""

_PRIMITIVES = (
    "Add Cast CastLike Clip Constant ConstantOfShape Div Equal Erf Exp Expand Gather GatherElements GatherND Gelu "
    "Greater Less LessOrEqual Max Min Mul Neg Pow Range ReduceMean ReduceSum Relu Reshape Shape Sigmoid Slice Softplus "
    "Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where"
)
"""ONNX's ops between those with kernels, which one thread may do."""

OPS = (
    ATTENTION, SOURCE_ATTENTION, LINEAR_ATTENTION, BLOCK_PRODUCT, INTEGER_PRODUCT, PRODUCT, TRANSPOSED_PRODUCT,
    ROUNDING, BLOCK_GATHER,
    EXPERTS, QUANTIZED_EXPERTS, CONVOLUTION, MASKED_CONVOLUTION, MASKED_LINEAR_ATTENTION, RMS_NORM, LAYER_NORM,
    CANONICAL_RMS_NORM, SKIP_RMS_NORM, SKIP_LAYER_NORM,
    Op(
        name="RotaryEmbedding", domain=CONTRIB, inputs=("input", "position_ids", "cos_cache", "sin_cache"),
    ),
    Op(name="RotaryEmbedding", inputs=("X", "cos_cache", "sin_cache", "position_ids")),
    Op(name="Attention", cache="dynamic"),
    Op(name="TensorScatter", cache="static"),
    Op(name="ScatterND", cache="static"),
    Op(name="ScatterElements", cache="static"),
    Op(name="Concat", cache="dynamic", cheap=True),
    *(Op(name=name, cheap=True) for name in _PRIMITIVES.split()),
    *FUNCTIONS,
)  # fmt: skip
"""All ops that are known here."""

_BY_KEY = {op.key: op for op in OPS}

CHEAP_OPS = frozenset(op.name for op in OPS if op.cheap)

TABLES = ("cos_cache", "sin_cache")
"""Inputs of ops that are tables of RoPE, a row for each position."""


def find_op(domain: str, name: str) -> Op | None:
    """Return an op by domain and name; None for one that is not known here."""
    return _BY_KEY.get((domain.removeprefix("ai.onnx"), name))
