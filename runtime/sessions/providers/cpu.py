"""Sessions on the CPU."""

import ctypes
import os
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions
from edgeformer.runtime.sessions.providers.provider_sessions import ProviderSessions


class CpuSessions(ProviderSessions):
    """The sessions of the CPU."""

    provider = CPU

    def check(self, ort: Any, manifest: Manifest, given: ProviderOptions | None = None) -> None:
        """Raise RequestError for a bundle whose arithmetic or cache the CPU has no kernels for."""
        if manifest.plan.arithmetic == "bf16":
            raise RequestError(
                f"this bundle computes in bfloat16, for which onnxruntime {ort.__version__} has no kernels of products "
                "and attention on the CPU. Use provider cuda, or export it without --provider cuda: bf16 weights are "
                "then computed with in float32."
            )
        scales, made_for = manifest.cache_scales, manifest.plan.provider
        # The twin of a graph with an fp8 cache is for the CPU, and computes it by other ops.
        if scales is not None and scales.precision not in CPU.cache_precisions and made_for != CPU.name:
            raise RequestError(
                f"this bundle caches keys and values as float8, for which onnxruntime {ort.__version__} has attention "
                "on CUDA alone. Use provider cuda, or export it with --cache-precision int8 or without that option."
            )

    def free_memory(self, ort: Any) -> int | None:
        """Return the bytes that can be allocated without swapping; None where the system does not tell."""
        return available_memory()


def available_memory() -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not tell."""
    if not os.path.exists("/proc/meminfo"):
        return None
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def give_back_memory() -> None:
    """Give memory that was freed back to the system, where its allocator is glibc's.

    glibc keeps what is freed below other memory. onnxruntime computes constants when it opens a graph: of 135 million
    packed integers of 5 bits, 960 MB stayed with the process, of which 580 were free. It takes 0.2 to 2 ms where there
    is little to give, and 3 ms in a process that exports.
    """
    if os.name == "posix":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
