"""The differences between sessions of onnxruntime's execution providers. Methods are given onnxruntime, as a module."""

from dataclasses import dataclass
from typing import Any

from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider
from edgeformer.runtime.sessions.providers.cuda_options import CudaOptions


@dataclass(frozen=True)
class WhyNot:
    """Why `auto` leaves a provider. surprises: whether a user is told; advice: what to do, then."""

    reason: str
    advice: str
    surprises: bool


class ProviderSessions:
    """The sessions of a provider."""

    provider: Provider

    def why_not(self, ort: Any, manifest: Manifest) -> WhyNot | None:
        """Return why a bundle is not run here where nobody chose the provider; None where it is."""
        return None

    def check(self, ort: Any, manifest: Manifest) -> None:
        """Raise RequestError for a bundle that does not run on the provider, and where the provider cannot start."""

    def execution_providers(self, cuda: CudaOptions) -> list[Any]:
        """Return the `providers` of an `onnxruntime.InferenceSession`, the first one first."""
        return [self.provider.execution_provider]

    def captures(self, cuda: CudaOptions) -> bool:
        """Return whether runs of a session can be captured, and replayed later."""
        return False

    def prepare(self, ort: Any) -> None:
        """Load what sessions need before one is opened."""

    def on_this_machine(self, ort: Any) -> str:
        """Return a sentence about this machine, for errors of sessions that cannot be opened; may be empty."""
        return ""

    def check_opened(self, ort: Any, session: Any) -> None:
        """Raise RequestError for a session that onnxruntime has opened on another provider."""

    def lacks_machine(self, ort: Any) -> bool:
        """Return whether onnxruntime has no such provider, or the machine no device."""
        return self.provider.execution_provider not in ort.get_available_providers()

    def pinned_memory(self, state: Any) -> Any:
        """Return the device whose memory of the host is page-locked; None for none. state: onnxruntime's extension."""
        return None

    def free_memory(self, ort: Any) -> int | None:
        """Return the bytes that caches can take now; None where the system does not tell."""
        return None
