"""What a graph is lowered to."""

from dataclasses import dataclass

from edgeformer.cache_scales import CacheScales
from edgeformer.contract import CacheForm
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.manifest import Manifest, OpSet, Provider
from edgeformer.quantization import Quantization


@dataclass(frozen=True, kw_only=True)
class LoweringOptions:
    """An op set, and what may vary within it.

    provider: whose kernels must exist, for `ort`. cache_form: how the graph keeps its caches. functions: for
    `portable`, leave our ops in the graph as functions of the model. quantization: of the weights. plain_lookups:
    read quantized embeddings with primitives. cache_scales: of an int8 cache. calibrated: matrices that a text has
    rounded for the recipe.
    """

    ops: OpSet = "ort"
    provider: Provider = "cpu"
    cache_form: CacheForm = "any"
    functions: bool = False
    quantization: Quantization | None = None
    primitive_gathers: bool = False
    cache_scales: CacheScales | None = None
    calibrated: Calibrated | None = None


def lowering_options_of(manifest: Manifest) -> LoweringOptions:
    """What the graphs of a bundle were lowered to."""
    return LoweringOptions(
        ops=manifest.ops,
        provider=manifest.provider,
        cache_form=manifest.cache_form,
        functions=manifest.functions,
        quantization=manifest.quantization,
        cache_scales=manifest.cache_scales,
    )
