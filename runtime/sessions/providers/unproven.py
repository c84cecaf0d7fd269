"""Sessions on an execution provider that onnxruntime has and edgeformer has proven nothing of, such as OpenVINO's."""

import warnings
from pathlib import Path
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions
from edgeformer.runtime.sessions.providers.provider_sessions import ProviderSessions

LIBRARY = "library_path"
"""onnxruntime's name of the path of a plugin among what it knows of a device."""


def register_plugin(ort: Any, library: Path) -> None:
    """Register a plugin, whose providers can be named then. Raises RequestError for a file that is none."""
    try:
        ort.register_execution_provider_library(library.name, str(library.absolute()))
    # onnxruntime's errors have no common class.
    except Exception as error:
        raise RequestError(f"onnxruntime {ort.__version__} cannot register the plugin {library}: {error}") from error


class UnprovenProviderWarning(UserWarning):
    """A bundle runs on a provider on which nobody has compared it with PyTorch."""


class UnprovenSessions(ProviderSessions):
    """The sessions of a provider by onnxruntime's name of it, of its build or of a plugin that was registered."""

    def __init__(self, provider: Provider):
        self.provider = provider

    def check(self, ort: Any, manifest: Manifest, given: ProviderOptions | None = None) -> None:
        """Raise RequestError where onnxruntime has no such provider, and for a bundle for a device; else warn."""
        name = self.provider.execution_provider
        known = sorted({*ort.get_available_providers(), *(each.ep_name for each in ort.get_ep_devices())})
        if name not in known:
            raise RequestError(
                f"onnxruntime {ort.__version__} has no {name}; it has {', '.join(known)}. Install the build that has "
                "it, or register its plugin: onnxruntime.register_execution_provider_library(name, path), or "
                "edgeformer verify --plugin path."
            )
        if manifest.plan.provider != CPU.name:
            raise RequestError(
                f"this bundle is for {manifest.plan.runs_on.title}, and {name} takes graphs for the CPU. Export it "
                "without --provider."
            )
        warnings.warn(
            f"nothing was proven of {name}: what it computes may be wrong. Prove it on this machine: edgeformer verify "
            f"BUNDLE --provider {name}",
            UnprovenProviderWarning,
            stacklevel=5,
        )

    def choose(self, ort: Any, session_options: Any, given: ProviderOptions | None = None) -> list[Any]:
        """Return the provider of a session, or none where it is a plugin: the session's options name its devices.

        onnxruntime lists a registered plugin among the providers of its build, and opens no session by that name; the
        devices of a plugin say where its library is.
        """
        name = self.provider.execution_provider
        devices = [each for each in ort.get_ep_devices() if each.ep_name == name and LIBRARY in each.ep_metadata]
        if not devices:
            return [name]
        session_options.add_provider_for_devices(devices, {})
        return []

    def check_opened(self, ort: Any, session: Any) -> None:
        """Raise RequestError for a session that onnxruntime has opened without the provider."""
        if self.provider.execution_provider not in session.get_providers():
            raise RequestError(f"onnxruntime opened the graph without {self.provider.execution_provider}.")

    def environment(self, ort: Any) -> dict[str, str]:
        """Return the name of the provider: that of its memory is the host's."""
        return {"provider": self.provider.execution_provider}

    def lacks_machine(self, ort: Any, manifest: Manifest) -> bool:
        """Return False: `check` refuses a provider that is not here."""
        return False
