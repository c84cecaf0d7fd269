"""The questions that lowerings ask about the kernels of a provider, with the answers of one that has all of them."""

import onnx_ir as ir

from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.quantization import WeightFormat


class ProviderRules:
    """The limits of kernels of a provider; a method returns why the one of an op cannot compute a node, else None.

    Attributes:
        float32_alone: whether attention to a source and linear attention have float32 kernels alone.
        scales_queries: whether attention is faster where the scale is folded into the projection of its query.
        rotates: whether rotations that attention does not do by itself were tried with RotaryEmbedding's kernel.
        fills_blocks: whether products were tried with matrices whose last block is filled with zeros.
        fuses_products: whether quantized products that read the same input are faster as one.
        transposes_in_products: whether there is a FusedMatMul, which reads a weight as the embedding stores it.
        widens_bfloat16: whether some ops lack bfloat16, and take casts around them.
        evicts: whether attention writes into a cache that is shorter than the text, and evicts what left its window.
        evicts_with_bias: whether attention with a bias of scores can evict tokens from its cache.
        routes_by_logits: whether quantized experts are routed by logits, as others are, and not by choice and weights.
        loops: whether it runs the loops of a graph, and what is in them, on its device.
        exact_tanh: whether Tanh keeps the digits of small numbers.
        exact_softplus: whether Softplus keeps the digits of small results.
        smallest_ratio: lower bound of a weight of an expert over the sum of its token's, whose logarithm is taken; None
            where that of the weight itself is.
    """

    float32_alone = False
    scales_queries = False
    rotates = False
    fills_blocks = False
    fuses_products = False
    transposes_in_products = True
    widens_bfloat16 = False
    evicts = True
    evicts_with_bias = True
    routes_by_logits = False
    loops = True
    exact_tanh = True
    exact_softplus = True
    smallest_ratio: float | None = None

    def attention(self, node: ir.Node, scales: CacheScales | None, twin: bool) -> str | None:
        """Judge a GroupQueryAttention. scales: of a quantized cache. twin: see `LoweringOptions`."""
        return None

    def shared_attention(self, node: ir.Node) -> str | None:
        """Judge an attention that reads the keys and values of an earlier layer."""
        return None

    def cross_attention(self, node: ir.Node) -> str | None:
        """Judge an attention to a source."""
        return None

    def experts(self, node: ir.Node, form: WeightFormat | None) -> str | None:
        """Judge types and sizes of a mixture of experts. form: of its quantized weights."""
        return None
