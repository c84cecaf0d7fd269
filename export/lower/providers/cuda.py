"""The limits of the kernels of onnxruntime's CUDA provider (1.31); `edgeformer.check` finds them in any graph."""

import onnx_ir as ir

from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import dim, dtype_of, head_dim_of
from edgeformer.export.lower.providers.rules import ProviderRules
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.quantization import WeightFormat


class CudaRules(ProviderRules):
    """Kernels of CUDA, which compute in half precision."""

    widens_bfloat16 = True
    evicts_with_bias = False
    routes_by_logits = True
    # Logarithms near 0 are the exact ones in half precision, so those of large weights should be near it. It is the
    # smallest number that float16 has.
    smallest_ratio = 2.0**-24

    def attention(self, node: ir.Node, scales: CacheScales | None, twin: bool) -> str | None:
        """Judge by the rules of edgeformer.check.providers.cuda for what the lowering emits."""
        inputs, head_dim = canonical_inputs(node), head_dim_of(node)
        if dtype_of(inputs.query) == ir.DataType.FLOAT and not twin:
            return "there is no float32 CUDA kernel (float16 has one)"
        if inputs.attention_bias is not None and inputs.sinks is not None:
            return "the CUDA kernel takes a bias of scores or sinks, and not both"
        if head_dim > 512:
            return f"the CUDA kernel takes heads of 512 at most, and these have {head_dim}"
        if not node.attributes.get_int("causal") and node.attributes.get_int("window"):
            return "the CUDA kernel wants a window to be causal"
        if scales is not None and inputs.attention_bias is not None:
            return f"the CUDA kernel takes a bias of scores or {scales.name}, and not both"
        if scales is not None and head_dim > 256:
            return f"the CUDA kernel takes heads of 256 at most over {scales.name}, and these have {head_dim}"
        return None

    def shared_attention(self, node: ir.Node) -> str | None:
        """Refuse an attention that reads the keys and values of an earlier layer."""
        return "the CUDA kernel is not known to read an earlier layer's keys and values"

    def experts(self, node: ir.Node, form: WeightFormat | None) -> str | None:
        """Judge sizes and activation of a mixture of experts."""
        inputs = canonical_inputs(node)
        multiple, sizes = 8 if form is None else 64, [dim(inputs.up, -1), dim(inputs.down, -1)]
        if any(size < 16 or size % multiple for size in sizes):
            return f"the CUDA kernel takes sizes in multiples of {multiple}, from 16 on, and these are {sizes}"
        if form is not None and not 32 <= (form.block or 0) <= 128:
            return f"the CUDA kernel takes blocks of 32, 64 and 128 weights, and these have {form.block}"
        if node.attributes.get_string("activation") == "gelu_tanh":
            return "the approximation of gelu in the CUDA kernel was compared by nobody"
        return None
