"""Options of onnxruntime's CUDA provider that users choose."""

from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from edgeformer.errors import RequestError
from edgeformer.runtime.request_values import count, flag, shown
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions

ArenaStrategy = Literal["kNextPowerOfTwo", "kSameAsRequested"]


@dataclass(frozen=True, kw_only=True)
class CudaOptions(ProviderOptions):
    """Options of the CUDA provider, under onnxruntime's names; they have no effect on others.

    use_tf32: multiply float32 by TF32, which rounds factors to 10 bits of mantissa. It is off here (onnxruntime's own
        default is on), and always in verification. Graphs in fp16 and bf16 do not change.
    gpu_mem_limit: bytes of GPU memory for the arena of each session: weights and activations. Caches of requests are
        not in it. None for no limit. A session that would take more fails with an error.
    arena_extend_strategy: `kNextPowerOfTwo` doubles what the arena takes from the device, which is onnxruntime's
        default; `kSameAsRequested` takes no more than is needed.
    enable_cuda_graph: capture the kernels of a decode step once, and replay them in later steps: for decoder-only
        models with a static cache. One thread at a time may use such a model, and while its first step of a shape
        runs, no other thread may allocate memory of the GPU. The caches of finished requests are kept.

    Source: onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html. Raises RequestError for other values.
    """

    use_tf32: bool = False
    gpu_mem_limit: int | None = None
    arena_extend_strategy: ArenaStrategy = "kNextPowerOfTwo"
    enable_cuda_graph: bool = False

    def __post_init__(self) -> None:
        flag("use_tf32", self.use_tf32)
        flag("enable_cuda_graph", self.enable_cuda_graph)
        if self.gpu_mem_limit is not None:
            count("gpu_mem_limit", self.gpu_mem_limit, most=2**63 - 1)
        known = get_args(ArenaStrategy)
        if not isinstance(self.arena_extend_strategy, str) or self.arena_extend_strategy not in known:
            given = shown(self.arena_extend_strategy)
            raise RequestError(f"arena_extend_strategy is {given}; it must be {' or '.join(known)}.")

    def for_onnxruntime(self) -> dict[str, str]:
        """Return the options as a session takes them."""
        options = {"use_tf32": str(int(self.use_tf32)), "arena_extend_strategy": self.arena_extend_strategy}
        if self.gpu_mem_limit is not None:
            options["gpu_mem_limit"] = str(self.gpu_mem_limit)
        if self.enable_cuda_graph:
            options["enable_cuda_graph"] = "1"
        return options

    def without_graphs(self) -> Self:
        """Return the options of a session whose runs are not captured."""
        return replace(self, enable_cuda_graph=False)
