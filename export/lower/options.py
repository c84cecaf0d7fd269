"""Options of a lowering: the op set, and what may vary within it."""

from dataclasses import dataclass

from edgeformer.contract.tensors import CacheForm
from edgeformer.export.lower.providers import RULES, ProviderRules
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.parts import OpSet
from edgeformer.manifest.providers import Provider, ProviderName, find_provider
from edgeformer.manifest.quantization import Quantization


@dataclass(frozen=True, kw_only=True)
class LoweringOptions:
    """An op set with its options.

    Attributes:
        ops: the op set.
        provider: the execution provider whose kernels must exist, for `ort`.
        cache_form: how the graph keeps its caches.
        functions: keep canonical ops as functions of the model, for `portable`.
        quantization: of the weights.
        primitive_gathers: gather from quantized embeddings with primitives.
        cache_scales: scales of a quantized cache.
        calibrated: matrices that GPTQ has rounded.
        twin: give a float32 graph for CUDA the nodes of one in half precision, so that the CPU can run them.
        adapted: parameters whose products also take an adapter as input.
    """

    ops: OpSet = "ort"
    provider: ProviderName = "cpu"
    cache_form: CacheForm = "any"
    functions: bool = False
    quantization: Quantization | None = None
    primitive_gathers: bool = False
    cache_scales: CacheScales | None = None
    calibrated: Calibrated | None = None
    twin: bool = False
    adapted: frozenset[str] = frozenset()

    @property
    def runs_on(self) -> Provider:
        """The execution provider."""
        return find_provider(self.provider)

    @property
    def rules(self) -> ProviderRules:
        """The rules of its kernels."""
        return RULES[self.provider]
