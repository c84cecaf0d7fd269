"""Options of a lowering: the plan of the graphs, and what calibration found for it."""

from dataclasses import dataclass

from edgeformer.export.lower.providers import RULES, ProviderRules
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.plan import ExportPlan


@dataclass(frozen=True, kw_only=True)
class LoweringOptions(ExportPlan):
    """A plan, completed for one graph.

    Attributes:
        cache_scales: scales of a quantized cache.
        calibrated: matrices that GPTQ has rounded.
        twin: give a float32 graph for CUDA the nodes of one in half precision, so that the CPU can run them.
        adapted: parameters whose products also take an adapter as input.
    """

    cache_scales: CacheScales | None = None
    calibrated: Calibrated | None = None
    twin: bool = False
    adapted: frozenset[str] = frozenset()

    @property
    def rules(self) -> ProviderRules:
        """The rules of its provider's kernels."""
        return RULES[self.provider]
