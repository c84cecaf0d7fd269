"""Choose the decoder for the cache of a bundle's graph, and where it runs."""

from typing import Any

from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provider
from edgeformer.runtime.caches.encoder_outputs import CrossCache
from edgeformer.runtime.steps.decoder import Decoder, PrefillSession
from edgeformer.runtime.steps.device_decoder import CapturedSteps, DeviceDecoder
from edgeformer.runtime.steps.dynamic_decoder import DynamicDecoder
from edgeformer.runtime.steps.static_decoder import StaticDecoder


def new_decoder(
    session: Any,
    manifest: Manifest,
    batch_size: int,
    capacity: int,
    provider: Provider = "cpu",
    encoder_outputs: CrossCache | None = None,
    prefill: PrefillSession | None = None,
    captured: CapturedSteps | None = None,
) -> Decoder:
    """Return a decoder with `batch_size` empty rows of up to `capacity` tokens, for the graph's form of cache.

    encoder_outputs: keys and values of the sources, of an encoder-decoder. prefill: the session of the prefill graph,
    where the bundle has one. captured: memory of steps that CUDA graphs replay; None for no CUDA graphs.
    """
    arguments = session, manifest, batch_size, capacity, provider, encoder_outputs, prefill
    if manifest.plan.cache_form == "dynamic":
        return DynamicDecoder(*arguments)
    return StaticDecoder(*arguments) if provider == "cpu" else DeviceDecoder(*arguments, captured=captured)
