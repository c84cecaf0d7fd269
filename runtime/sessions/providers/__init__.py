"""How sessions run on each of onnxruntime's execution providers: a file for each provider."""

from edgeformer.manifest.providers import PROVIDERS, Provider, ProviderName
from edgeformer.runtime.sessions.providers.cpu import CpuSessions
from edgeformer.runtime.sessions.providers.cuda import CudaSessions
from edgeformer.runtime.sessions.providers.provider_sessions import ProviderSessions
from edgeformer.runtime.sessions.providers.unproven import UnprovenSessions
from edgeformer.runtime.sessions.providers.webgpu import WebGpuSessions

__all__ = ["DEVICES", "ProviderSessions", "sessions_of"]

_SESSIONS: dict[ProviderName, ProviderSessions] = {
    "cpu": CpuSessions(),
    "cuda": CudaSessions(),
    "webgpu": WebGpuSessions(),
}

DEVICES = [each for each in _SESSIONS.values() if each.provider.on_device]
"""The sessions that `auto` takes before those of the CPU, the first one first."""


def sessions_of(provider: Provider) -> ProviderSessions:
    """Return how sessions run on a provider."""
    return _SESSIONS[provider.name] if provider is PROVIDERS[provider.name] else UnprovenSessions(provider)
