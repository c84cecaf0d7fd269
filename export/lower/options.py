"""What a graph is lowered to."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.cache_scales import CacheScales
from edgeformer.contract import CacheForm
from edgeformer.errors import ExportError
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.manifest import Arithmetic, Manifest, OpSet, Provider
from edgeformer.quantization import Quantization

CacheChoice = Literal["dynamic", "static"]


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

    @property
    def arithmetic(self) -> Arithmetic:
        """Of a quantized graph, what its other weights and its activations are made of: the fastest that the provider
        has.
        """
        return "fp16" if self.provider == "cuda" else "fp32"


def lowering_options(
    ops: OpSet = "ort",
    provider: Provider = "cpu",
    cache: CacheChoice | None = None,
    functions: bool = False,
    quantization: Quantization | None = None,
    *,
    primitive_gathers: bool = False,
) -> LoweringOptions:
    """What a user asks for. Raises ExportError for what excludes each other."""
    if quantization is not None and ops != "ort":
        raise ExportError(f"quantized products are ops of onnxruntime's own. Leave ops {ops} out, or quantization.")
    if functions and ops != "portable":
        raise ExportError(f"functions are for the op set portable; {ops} has ops of its own for what they compute.")
    if ops == "ort":
        if cache is not None:
            raise ExportError("a graph of the op set ort takes a dynamic cache and a static one; leave cache out.")
        return LoweringOptions(provider=provider, quantization=quantization, primitive_gathers=primitive_gathers)
    return LoweringOptions(ops=ops, provider=provider, cache_form=cache or "dynamic", functions=functions)


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
