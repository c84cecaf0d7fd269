"""Sessions on a GPU of NVIDIA."""

from pathlib import Path
from typing import Any

from edgeformer.errors import EdgeformerError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, CUDA
from edgeformer.runtime.sessions.providers.cuda_machine import cuda_machine, driver, free_gpu_memory, has_gpu_files
from edgeformer.runtime.sessions.providers.cuda_options import CudaOptions
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions
from edgeformer.runtime.sessions.providers.provider_sessions import ProviderSessions, WhyNot

ON_THE_CPU = "To run without a GPU, use provider cpu."

HOST_ACCESSIBLE, NVIDIA = 5, 0x10DE
"""onnxruntime's numbers of the type of memory (`OrtDeviceMemoryType`) and of the vendor (`OrtDeviceVendorId`)."""


class CudaSessions(ProviderSessions):
    """The sessions of CUDA."""

    provider = CUDA
    options = CudaOptions

    def why_not(self, ort: Any, manifest: Manifest, given: ProviderOptions | None = None) -> WhyNot | None:
        """Return why `auto` is not CUDA; None where it is, also where CUDA cannot start on the GPU of the machine."""
        if CUDA.execution_provider not in ort.get_available_providers():
            advice = "To use the GPU of this machine: pip uninstall onnxruntime, then pip install 'edgeformer[gpu]'"
            return WhyNot("the installed onnxruntime is for the CPU", advice, has_gpu_files())
        if not _has_kernels(manifest):
            advice = "To use the GPU of this machine, export it with --provider cuda"
            return WhyNot("this bundle is fp32 for the CPU", advice, not driver().absent)
        if driver().absent:
            return WhyNot(driver().problem or "", "To run without this warning, use provider cpu", True)
        return None

    def check(self, ort: Any, manifest: Manifest, given: ProviderOptions | None = None) -> None:
        """Raise RequestError if onnxruntime has no CUDA, CUDA cannot start, or it has no kernels for the bundle."""
        available = ort.get_available_providers()
        if CUDA.execution_provider not in available:
            raise RequestError(
                "provider cuda was asked for, and the installed onnxruntime has no CUDAExecutionProvider (it has "
                f"{', '.join(available)}). Install it with: pip install 'edgeformer[gpu]', or use provider cpu."
            )
        if not _has_kernels(manifest):
            raise RequestError(
                "this bundle is fp32 for the CPU, and its attention has no float32 CUDA kernel. Export it with "
                "--precision fp16, with --provider cuda or with --ops standard."
            )
        machine = cuda_machine(ort)
        if machine.problem is not None:
            problem = f"{machine.problem[:1].upper()}{machine.problem[1:]}"
            raise RequestError(f"provider cuda cannot start: {machine}. {problem}. {ON_THE_CPU}")

    def execution_providers(self, given: ProviderOptions | None = None) -> list[Any]:
        """Return the `providers` of an `onnxruntime.InferenceSession`, the first one first."""
        return [(CUDA.execution_provider, self.own(given).for_onnxruntime()), CPU.execution_provider]

    def captures(self, given: ProviderOptions | None) -> bool:
        """Return whether CUDA graphs can replay runs of a session."""
        return bool(self.own(given).enable_cuda_graph)

    def prepare(self, ort: Any) -> None:
        """Load the libraries of CUDA that pip installed."""
        ort.preload_dlls()

    def on_this_machine(self, ort: Any) -> str:
        """Return the versions of driver and libraries, as a sentence."""
        return f" On this machine {cuda_machine(ort)}."

    def not_opened(self, ort: Any, graph: Path, error: Exception, given: ProviderOptions | None) -> EdgeformerError:
        """Return the error to raise for one of onnxruntime's, which may be of a graph that cannot be captured."""
        if self.captures(given) and "graph capture" in str(error):
            return RequestError(
                f"CUDA graphs cannot capture {graph}: onnxruntime computes some of its nodes on the CPU, or it has "
                "branches. Load it without enable_cuda_graph. Graphs of --ops ort in fp16, bf16, int8 and int4 can be "
                "captured, but for some recurrent layers; edgeformer check --provider cuda lists the nodes."
            )
        return super().not_opened(ort, graph, error, given)

    def check_opened(self, ort: Any, session: Any) -> None:
        """Raise RequestError for a session that fell back to the CPU."""
        if CUDA.execution_provider not in session.get_providers():
            raise RequestError(
                f"onnxruntime could not start its CUDAExecutionProvider; its log above says why."
                f"{self.on_this_machine(ort)} {ON_THE_CPU}"
            )

    def lacks_machine(self, ort: Any, manifest: Manifest) -> bool:
        """Return whether onnxruntime has no CUDA, or the machine no GPU."""
        return super().lacks_machine(ort, manifest) or driver().absent

    def pinned_memory(self, state: Any) -> Any:
        """Return the device of the host's memory that CUDA copies from and to at once."""
        return state.OrtDevice(state.OrtDevice.cuda(), HOST_ACCESSIBLE, NVIDIA, 0)

    def free_memory(self, ort: Any) -> int | None:
        """Return the bytes that are free on the GPU; None if CUDA's runtime does not tell."""
        return free_gpu_memory(ort)


def _has_kernels(manifest: Manifest) -> bool:
    """Return whether the attention of a bundle has CUDA kernels: onnxruntime's own op has none of float32."""
    plan = manifest.plan
    return plan.arithmetic != "fp32" or plan.provider == CUDA.name or plan.ops != "ort"
