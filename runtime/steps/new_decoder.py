"""Choose the cache and the memory of steps for a bundle's graph, and where it runs."""

from typing import Any

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.caches.cache_types import cache_types
from edgeformer.runtime.caches.dynamic_cache import DynamicCache
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.steps.decode_graph import DecodeGraph
from edgeformer.runtime.steps.device import CapturedSteps, DeviceSteps
from edgeformer.runtime.steps.memory import GrowingSteps, HostSteps
from edgeformer.runtime.steps.runner import StepRunner

MASK_STEP = 32
"""The mask of a step over rows that come and go is as long as the longest row, rounded up to this many tokens, so that
it is seldom bound.

Attention computes as many scores as the mask has columns: steps of 64 rows of up to 191 tokens took 14.1 ms with masks
in steps of 256, and 12.4 ms in steps of 16 (tiny-llama, the fastest of 96).
"""


def new_decoder(
    session: Any,
    manifest: Manifest,
    batch_size: int,
    capacity: int,
    provider: Provider = CPU,
    encoder_outputs: EncoderOutputs | None = None,
    captured: CapturedSteps | None = None,
    cache: CacheGeometry | None = None,
) -> StepRunner:
    """Return a runner of `batch_size` empty rows of up to `capacity` tokens, for the graph's form of cache.

    encoder_outputs: keys and values of the sources, of an encoder-decoder. captured: memory of steps that CUDA graphs
    replay; None for no CUDA graphs. cache: what the graph's layers keep; None for what those of the model keep.
    """
    graph = DecodeGraph(session, manifest, encoder_outputs, cache=cache)
    if manifest.plan.cache_form == "dynamic":
        arguments = graph.cache, cache_types(manifest), batch_size, capacity, provider, graph.cache_prefix
        growing = DynamicCache(*arguments)
        return StepRunner(growing, GrowingSteps(graph, growing))
    if provider.on_device:
        return device_runner(graph, batch_size, capacity, provider, captured)
    static = new_static_cache(graph, batch_size, capacity, provider)
    return StepRunner(static, HostSteps(graph, static))


def device_runner(
    graph: DecodeGraph, rows: int, capacity: int, provider: Provider, captured: CapturedSteps | None
) -> StepRunner:
    """Return a runner of rows that begin together, on a device. captured: where its memory comes from, if any."""
    asked = capacity
    if captured is not None:
        capacity = captured.capacity_for(capacity)

    def new_memory() -> DeviceSteps:
        cache = new_static_cache(graph, rows, capacity, provider)
        return DeviceSteps(graph, cache, provider, captures=captured is not None)

    memory = new_memory() if captured is None else captured.take(rows, capacity, new_memory)
    runner = StepRunner(memory.cache, memory)
    runner.expect(asked)
    if captured is not None:
        captured.lend(runner, rows, capacity, memory)
    return runner


def new_row_runner(
    graph: DecodeGraph, rows: int, capacity: int, provider: Provider, captures: bool = False
) -> StepRunner:
    """Return a runner of rows that come and go, over a static cache.

    On the CPU, memory of a row is taken as it is written, and given back by `StepRunner.release`; on a device all rows
    take it now. captures: whether CUDA graphs replay its steps, where no state and no window would advance in rows that
    do not run.
    """
    cache = new_static_cache(graph, rows, capacity, provider, reserved=not provider.on_device)
    if not provider.on_device:
        return StepRunner(cache, HostSteps(graph, cache, MASK_STEP))
    return StepRunner(cache, DeviceSteps(graph, cache, provider, captures and cache.trimmable, MASK_STEP))


def new_static_cache(
    graph: DecodeGraph, batch_size: int, capacity: int, provider: Provider, reserved: bool = False
) -> StaticCache:
    """Return an empty static cache for a decode graph."""
    manifest, prefix = graph.manifest, graph.cache_prefix
    windows = layer_windows(graph.session, graph.cache, prefix)
    types = cache_types(manifest)
    cache = StaticCache(graph.cache, types, batch_size, capacity, provider, windows, prefix, reserved)
    if needs_numbers(manifest) and not reserved:  # reserved memory is zero
        cache.fill(0)
    return cache


def layer_windows(session: Any, geometry: CacheGeometry, prefix: str) -> list[int | None]:
    """Return the cache length of each layer where the graph fixes it to a window, else None."""
    dims = {value.name: value.shape for value in session.get_inputs()}
    windows: list[int | None] = [None] * geometry.num_layers
    for tensor in geometry.tensors(prefix):
        if tensor.per_token and isinstance(dims[tensor.past][2], int):
            windows[tensor.layer] = dims[tensor.past][2]
    return windows


def needs_numbers(manifest: Manifest) -> bool:
    """Return whether unused slots of a static cache must be finite: ONNX's Attention multiplies them with zero."""
    return manifest.plan.ops == "standard" and manifest.plan.cache_form == "static"
