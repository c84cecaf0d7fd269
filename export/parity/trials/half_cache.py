"""Check a float16 cache of a float32 graph by the same graph with a cache of float32.

Both have the same nodes and differ in the type of the cache alone: a past of float16 is cast before attention, and the
present behind it. So the trial over a float32 cache judges every node, as exactly as in any float32
graph, and here the float16 graph must return just these numbers: what it caches of a prompt is what the other caches,
rounded, and behind the same past both compute the same logits. Kernels of edgeformer round new keys and values before
they attend to them; their trials are compared with eager PyTorch that does so, too.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgeformer.contract.tensors import past_names, present_names
from edgeformer.export.bundle.ort_format import SUFFIX, load_onnx
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity.block_products import BlockProducts
from edgeformer.export.parity.feeding import Graph, Tokens
from edgeformer.export.parity.float_products import open_rewritten, replace_integer_products
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider

LENGTH, STEPS = 40, 3
"""Tokens of the prompt, and of the text behind its cache."""


def open_float_products(
    path: Path, manifest: Manifest, provider: Provider, products: BlockProducts, *, widened: bool
) -> Any:
    """Open an `onnxruntime.InferenceSession` on a graph with a float16 cache whose products do not round activations.

    products: the dequantized matrices of graphs that share its weights. widened: whether its cache becomes float32.
    Raises BundleError for a graph that onnxruntime cannot load.
    """
    model = inline_functions(load_onnx(path))
    replace_integer_products(model.graph)
    caches = {*past_names(manifest.cache), *present_names(manifest.cache)} if widened else set()
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.name in caches:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in model.graph.node:
        if node.op_type == "Cast" and node.output[0] in caches:
            node.attribute[0].i = TensorProto.FLOAT
    return open_rewritten(model, path, provider, products.dequantize(model, path) if path.suffix != SUFFIX else {})


def with_wide_cache(manifest: Manifest) -> Manifest:
    """Return the manifest of a bundle whose cache has the precision of activations."""
    return replace(manifest, plan=replace(manifest.plan, cache_precision=None))


def judge_half_cache(half: Graph, widened: Graph) -> list[Check]:
    """Compare a graph with the same one over a float32 cache: over a prompt, one token behind it, and a few more."""
    tokens = random_tokens(LENGTH + STEPS, half.manifest.vocab_size, salt=30)[: half.manifest.context_length]
    prompt = len(tokens) - STEPS
    return compare_half_cache(half, widened, tokens, (prompt, prompt + 1, len(tokens)))


def compare_half_cache(half: Graph, widened: Graph, tokens: Tokens, ends: Sequence[int]) -> list[Check]:
    """Compare both graphs run by run, each over what the first has cached. ends: of the runs, the last one of all.

    The tokens of one run attend to each other's keys as float32 in both, and to those of earlier runs as cached.
    """
    decoder, wide = (graph.decoder(1, len(tokens)) for graph in (half, widened))
    cached = computed = start = 0
    for end in ends:
        logits, expected = (each.prefill_all(0, tokens[start:end], chunk=end - start) for each in (decoder, wide))
        computed += _differing(logits, expected)
        kept, wanted = (each.cache.read(end) for each in (decoder, wide))
        pairs = [pair for cache, exact in zip(kept, wanted, strict=True) for pair in zip(cache, exact, strict=True)]
        cached += sum(_differing(part, exact.astype(part.dtype)) for part, exact in pairs)
        past = [tuple(part.astype(np.float32) for part in cache) for cache in kept]
        wide.cache.write(end, past.__getitem__)
        start = end
    reason = "both graphs have the same nodes, and casts are exact or the same"
    return [
        Check(
            name="numbers: differing", what="keys, values and states that differ from float32's, rounded",
            value=float(cached), limit=0.0, eager=None, reason=reason,
        ),
        Check(
            name="logits: differing", what="logits over the same cache that differ from float32's",
            value=float(computed), limit=0.0, eager=None, reason=reason,
        ),
    ]  # fmt: skip


def _differing(found: NDArray[Any], wanted: NDArray[Any]) -> int:
    return int(np.sum(found != wanted)) if found.shape == wanted.shape else wanted.size
