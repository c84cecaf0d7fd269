"""The limits of the kernels of onnxruntime's WebGPU provider (plugin 0.4.0), as they were found by running them.

`tests/runtime/test_webgpu_device.py` runs each of them on either side, where there is an adapter: a newer plugin that
lifts a limit fails there.
"""

import onnx_ir as ir

from edgeformer.export.lower.providers.rules import ProviderRules
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.quantization import WeightFormat


class WebGpuRules(ProviderRules):
    """Kernels of WebGPU: attention is causal, and has windows, sinks and biases, but no soft-cap."""

    evicts = False
    transposes_in_products = False
    routes_by_logits = True
    loops = False
    exact_tanh = False
    exact_softplus = False

    def attention(self, node: ir.Node, scales: CacheScales | None, twin: bool) -> str | None:
        """Judge an attention. The kernel takes a soft-cap, and computes as if there were none."""
        if node.attributes.get_float("softcap", 0.0):
            return "the WebGPU kernel ignores a soft-cap"
        if not node.attributes.get_int("causal"):
            return "the WebGPU kernel is causal"
        return None

    def shared_attention(self, node: ir.Node) -> str | None:
        """Refuse an attention that reads the keys and values of an earlier layer."""
        return "the WebGPU kernel is not known to read an earlier layer's keys and values"

    def cross_attention(self, node: ir.Node) -> str | None:
        """Refuse an attention to a source, which has a mask."""
        return "the WebGPU kernel takes no mask of padding"

    def experts(self, node: ir.Node, form: WeightFormat | None) -> str | None:
        """Refuse a mixture of experts. There is no MoE; QMoE counts tokens in memory that it does not clear."""
        return "there is no WebGPU kernel of floats" if form is None else "the WebGPU kernel is wrong for many tokens"
