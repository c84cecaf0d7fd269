"""The differences between sessions of onnxruntime's execution providers. Methods are given onnxruntime, as a module."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeformer.errors import BundleError, EdgeformerError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions


@dataclass(frozen=True)
class WhyNot:
    """Why `auto` leaves a provider. surprises: whether a user is told; advice: what to do, then."""

    reason: str
    advice: str
    surprises: bool


class ProviderSessions:
    """The sessions of a provider.

    options: the class of its options; those of another provider have no effect on it.
    """

    provider: Provider
    options: type[ProviderOptions] = ProviderOptions

    def own(self, given: ProviderOptions | None) -> Any:
        """Return the given options if they are of this provider, else its defaults."""
        return given if isinstance(given, self.options) else self.options()

    def why_not(self, ort: Any, manifest: Manifest, given: ProviderOptions | None = None) -> WhyNot | None:
        """Return why a bundle is not run here where nobody chose the provider; None where it is."""
        return None

    def check(self, ort: Any, manifest: Manifest, given: ProviderOptions | None = None) -> None:
        """Raise RequestError for a bundle that does not run on the provider, and where the provider cannot start."""

    def execution_providers(self, given: ProviderOptions | None = None) -> list[Any]:
        """Return the `providers` of an `onnxruntime.InferenceSession`, the first one first."""
        return [self.provider.execution_provider]

    def choose(self, ort: Any, session_options: Any, given: ProviderOptions | None = None) -> list[Any]:
        """Return the `providers` of a session, or none where its options, `session_options`, are made to name them."""
        return self.execution_providers(given)

    def captures(self, given: ProviderOptions | None) -> bool:
        """Return whether runs of a session can be captured, and replayed later."""
        return False

    def prepare(self, ort: Any) -> None:
        """Load what sessions need before one is opened."""

    def on_this_machine(self, ort: Any) -> str:
        """Return a sentence about this machine, for errors of sessions that cannot be opened; may be empty."""
        return ""

    def not_opened(self, ort: Any, graph: Path, error: Exception, given: ProviderOptions | None) -> EdgeformerError:
        """Return the error to raise for one of onnxruntime's, which did not open a graph."""
        return BundleError(f"onnxruntime cannot load {graph}: {error}{self.on_this_machine(ort)}")

    def advice(self, error: Exception) -> str:
        """Return a sentence on an error of a run that no bundle is the cause of; empty for others."""
        return ""

    def check_weights(self, ort: Any, graph: Path, given: ProviderOptions | None = None) -> None:
        """Raise RequestError for a graph with a weight that the device has no memory for in one piece."""

    def environment(self, ort: Any) -> dict[str, str]:
        """Return what a report of verification says about the device, by name."""
        return {}

    def most_tokens(self, ort: Any) -> int | None:
        """Return the most tokens of a row that a run computes rightly; None for any number."""
        return None

    def nodes_on_host(self, session: Any) -> list[str] | None:
        """Return the names of the nodes that an open session runs on the CPU; None where the provider does not tell."""
        return None

    def check_opened(self, ort: Any, session: Any) -> None:
        """Raise RequestError for a session that onnxruntime has opened on another provider."""

    def lacks_machine(self, ort: Any, manifest: Manifest) -> bool:
        """Return whether onnxruntime has no such provider, or the machine no device that can run a bundle."""
        return self.provider.execution_provider not in ort.get_available_providers()

    def pinned_memory(self, state: Any) -> Any:
        """Return the device whose memory of the host is page-locked; None for none. state: onnxruntime's extension."""
        return None

    def free_memory(self, ort: Any) -> int | None:
        """Return the bytes that caches can take now; None where the system does not tell."""
        return None
