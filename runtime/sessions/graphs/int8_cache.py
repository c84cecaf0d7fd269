"""Caches of int8 over graphs that were exported with caches of floats: kernels round keys and values as they come.

    past_key_values.0.key    float32 [B, K, T, D]    becomes    int8 [B, K, T, D + 4]
    CachedAttention                                  becomes    Int8PerTokenAttention

Each key and value has its own scale, its largest magnitude over 127, a float32 in the four bytes behind its integers.
So no text is needed to measure scales with. Only edgeformer-kernels have such attention; the bundle stays as it is, and
other clients read it with its own cache.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from edgeformer.config import DecoderConfig
from edgeformer.contract import protobuf as onnx
from edgeformer.contract.ops import DOMAIN, PER_TOKEN_ATTENTION
from edgeformer.contract.protobuf import read_fields, read_texts, replaced_fields, value_of_width
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.errors import BundleError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider
from edgeformer.runtime.request_values import shown
from edgeformer.runtime.sessions.graphs.graph_functions import WITH_GRAPHS
from edgeformer.runtime.sessions.graphs.optional_inputs import LARGEST_GRAPH
from edgeformer.runtime.sessions.kernels import PACKAGE, KernelChoice
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions
from edgeformer.runtime.sessions.session import Rewritten, open_session

INT8 = 3
"""The number of the element type in onnx.proto."""

SHAPE = "Shape"
"""The op that reads of a cache how many tokens it has."""

ADVICE = "Leave cache_precision out."


def with_int8_cache(folder: Path, manifest: Manifest, precision: str, kernels: KernelChoice) -> Manifest:
    """Return the manifest of a bundle whose keys and values the kernels keep in int8, which is what `precision` says.

    Raises RequestError for another precision, and where they cannot: no kernels, no decoder, or a cache that has its
    own scales.
    """
    scales = manifest.cache_scales
    if precision != "int8":
        raise RequestError(f"cache_precision is {shown(precision)}; it must be int8, or None for the bundle's cache.")
    if manifest.form != "decoder":
        raise RequestError(f"cache_precision is for decoders, and {folder} holds a model for {manifest.task}. {ADVICE}")
    if scales is not None:
        raise RequestError(f"{folder} was exported with {scales.name}, which has its own scales. {ADVICE}")
    if kernels.library is None:
        raise RequestError(
            f"only edgeformer's own kernels keep a cache in int8 that was exported with floats: {kernels.reason}. "
            f"Install them with pip install {PACKAGE} and run on the CPU, or leave cache_precision out."
        )
    if not set(PER_TOKEN_ATTENTION.values()) <= set(kernels.library.ops):
        raise RequestError(
            f"{PACKAGE} {kernels.library.version} keeps no cache in int8. Install the version that belongs to this "
            "edgeformer with: pip install 'edgeformer[kernels]'"
        )
    return replace(
        manifest, plan=replace(manifest.plan, cache_precision="int8"), cache=manifest.cache.with_scales_per_token()
    )


def mtp_geometry(manifest: Manifest) -> CacheGeometry:
    """Return what the layer of a bundle that drafts tokens keeps."""
    mtp = cast(DecoderConfig, manifest.model).mtp
    assert mtp is not None, "a manifest with a graph of drafts has its layer"
    return mtp.cache_geometry.with_scales_per_token() if manifest.has_scales_per_token else mtp.cache_geometry


def cache_geometries(manifest: Manifest) -> list[CacheGeometry]:
    """Return what the graphs of a bundle keep between runs."""
    return [manifest.cache, *([mtp_geometry(manifest)] if "mtp" in manifest.graphs else [])]


def open_over(
    graph: Path,
    manifest: Manifest,
    provider: Provider,
    threads: int | None = None,
    *,
    kernels: KernelChoice,
    options: ProviderOptions | None = None,
    content: bytes | None = None,
) -> Any:
    """Open a session of a graph as `open_session` does, over the cache that the manifest says.

    content: what stands in for that of the file. Raises RequestError where the cache is one of int8 with scales per
    token, and the kernels do not compute its attention.
    """
    if manifest.has_scales_per_token:
        content = graph_with_int8_cache(graph, cache_geometries(manifest), content) or content
    rewritten = None if content is None else Rewritten(content, {})
    return open_session(graph, provider, threads, kernels=kernels, options=options, rewritten=rewritten)


def graph_with_int8_cache(graph: Path, caches: Iterable[CacheGeometry], content: bytes | None = None) -> bytes | None:
    """Return the content of a graph over such a cache; None for a graph without keys and values of these.

    caches: of the graphs of the bundle, as they are to be. content: what stands in for that of the file. Raises
    RequestError for a graph whose attention the kernels do not compute.
    """
    if graph.suffix != ".onnx" or graph.stat().st_size > LARGEST_GRAPH:
        raise RequestError(f"the cache of {graph} cannot be int8: it is no ONNX file of nodes alone. {ADVICE}")
    model = memoryview(graph.read_bytes() if content is None else content)
    try:
        of_model = _within(model, onnx.MODEL_GRAPH)
        inputs = [content for field, content in read_fields(of_model) if field == onnx.GRAPH_INPUT]
        given = {_text(each, onnx.VALUE_NAME) for each in inputs}
        kept = [[each for each in geometry.tensors() if each.per_token] for geometry in caches]
        tensors = next((each for each in kept if given >= {tensor.past for tensor in each}), [])
        if not tensors:
            return None
        widths = {name: each.state.dims[-1] for each in tensors for name in (each.past, each.present)}
        rewritten = replaced_fields(of_model, lambda field, part: _replaced(field, part, widths, graph))
        return replaced_fields(model, lambda field, _: rewritten if field == onnx.MODEL_GRAPH else None)
    except (IndexError, ValueError, StopIteration) as problem:
        raise BundleError(f"{graph} is not an ONNX graph, or is damaged. Copy or export it again.") from problem


def _replaced(field: int, content: memoryview, widths: dict[str, int | None], graph: Path) -> bytes | None:
    """Return what takes the place of a field of a graph; None for one that stays."""
    if field in (onnx.GRAPH_INPUT, onnx.GRAPH_OUTPUT):
        name = _text(content, onnx.VALUE_NAME)
        width = widths.get(name)
        return None if width is None else value_of_width(content, width, INT8)
    if field != onnx.GRAPH_NODE:
        return None
    op = _text(content, onnx.NODE_OP_TYPE)
    reads = set(read_texts(content, onnx.NODE_INPUT)) & widths.keys()
    if op.encode() in WITH_GRAPHS:
        reads |= {name for name in widths if name.encode() in bytes(content)}
    if not reads or op == SHAPE:
        return None
    if _text(content, onnx.NODE_DOMAIN) != DOMAIN or op not in PER_TOKEN_ATTENTION:
        raise RequestError(
            f"{graph} cannot have a cache of int8: kernels do not compute {op}, which reads {min(reads)}. {ADVICE}"
        )
    kernel = PER_TOKEN_ATTENTION[op].encode()
    return replaced_fields(content, lambda number, _: kernel if number == onnx.NODE_OP_TYPE else None)


def _within(content: memoryview, wanted: int) -> memoryview:
    return next(part for field, part in read_fields(content) if field == wanted)


def _text(content: memoryview, wanted: int) -> str:
    return next(iter(read_texts(content, wanted)), "")
