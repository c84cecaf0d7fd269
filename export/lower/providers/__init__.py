"""The needs of onnxruntime's own ops, by the provider whose kernels compute them: a file for each provider."""

from edgeformer.export.lower.providers.cpu import CpuRules
from edgeformer.export.lower.providers.cuda import CudaRules
from edgeformer.export.lower.providers.rules import ProviderRules
from edgeformer.export.lower.providers.webgpu import WebGpuRules
from edgeformer.manifest.providers import ProviderName

__all__ = ["RULES", "ProviderRules"]

RULES: dict[ProviderName, ProviderRules] = {"cpu": CpuRules(), "cuda": CudaRules(), "webgpu": WebGpuRules()}
"""The rules of every provider."""
