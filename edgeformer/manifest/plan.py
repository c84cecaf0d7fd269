"""The plan of an export, which its manifest keeps: every choice, made once by `edgeformer.export.plan.make_plan`."""

from dataclasses import dataclass

from edgeformer.contract.tensors import CacheForm
from edgeformer.manifest.deployment import DEPLOYMENTS, Deployment, DeploymentName
from edgeformer.manifest.parts import Arithmetic, CachePrecision, OpSet, Precision, QuantizedCache
from edgeformer.manifest.providers import Provider, ProviderName, find_provider
from edgeformer.manifest.quantization import Quantization


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """The choices that graphs and files of a bundle follow from.

    A choice with the name of an option (`edgeformer.options.export`) is what was asked for, or decided from it.

    Attributes:
        deployment: where the bundle is to run; None for no particular place.
        ops: op set of the graphs.
        provider: execution provider that the graphs are lowered for.
        cache_form: how the graphs keep their caches.
        precision: data type of the weights.
        arithmetic: data type of activations, and of caches and weights that are not quantized.
        functions: whether edgeformer's ops are functions in the graphs.
        quantization: the quantization config; None where weights are not integers.
        cache_precision: data type of the cache; None for that of activations.
        smooth: whether the weights are smoothed before they are quantized.
    """

    deployment: DeploymentName | None = None
    ops: OpSet = "ort"
    provider: ProviderName = "cpu"
    cache_form: CacheForm = "any"
    precision: Precision = "fp32"
    arithmetic: Arithmetic = "fp32"
    functions: bool = False
    quantization: Quantization | None = None
    cache_precision: CachePrecision | None = None
    smooth: bool = False

    @property
    def runs_on(self) -> Provider:
        """The execution provider, with what its kernels have."""
        return find_provider(self.provider)

    @property
    def place(self) -> Deployment:
        """The deployment, with the files that it has a use for."""
        return DEPLOYMENTS[self.deployment].on(self.provider)

    @property
    def quantized_cache(self) -> QuantizedCache | None:
        """The data type of a cache whose numbers have scales; None for one of floats."""
        return self.cache_precision if self.cache_precision in ("int8", "fp8") else None

    @property
    def half_cache(self) -> bool:
        """Whether a graph that computes in float32 keeps its cache in float16."""
        return self.cache_precision == "fp16"

    @property
    def per_token(self) -> bool:
        """Whether the weights' products quantize their activations per token."""
        return self.quantization is not None and self.quantization.per_token
