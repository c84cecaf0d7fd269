"""Check a float16 cache of a float32 graph by the same graph with a cache of float32.

Both have the same nodes and differ in the type of the cache alone: a past of float16 is cast before attention, and the
present behind it. So the trial over a float32 cache judges every node, as exactly as in any float32
graph, and here the float16 graph must return just these numbers: what it caches of a prompt is what the other caches,
rounded, and behind the same past both compute the same logits. Kernels of edgeformer round new keys and values before
they attend to them; their trials are compared with eager PyTorch that does so, too.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgeformer.contract.tensors import past_names, present_names
from edgeformer.export.bundle.ort_format import SUFFIX, load_onnx
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity import feeding
from edgeformer.export.parity.block_products import BlockProducts
from edgeformer.export.parity.feeding import Graph
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


def judge_half_cache(half: Graph, widened: Graph) -> list[Check]:
    """Compare a graph with the same one over a float32 cache: what both cache of a prompt, and logits behind that."""
    tokens = random_tokens(LENGTH + STEPS, half.manifest.vocab_size, salt=30)
    tokens = tokens[: half.manifest.context_length]
    prompt, rest = tokens[:-STEPS], tokens[-STEPS:]
    (logits, decoder), (expected, wide) = (feeding.prefill(graph, prompt) for graph in (half, widened))
    caches, wanted = (each.cache.read(len(prompt)) for each in (decoder, wide))
    pairs = [pair for cache, exact in zip(caches, wanted, strict=True) for pair in zip(cache, exact, strict=True)]
    cached = sum(_differing(part, exact.astype(np.float16)) for part, exact in pairs)

    def past(layer: int) -> feeding.Cache:
        return tuple(part.astype(np.float32) for part in caches[layer])

    # One token alone attends to its own keys as float32 in both, the next one to what was cached of it.
    behind = [feeding.after_past(graph, rest[:1], len(prompt), past) for graph in (half, widened)]
    chunk = [feeding.after_past(graph, rest, len(prompt), past, chunk=STEPS) for graph in (half, widened)]
    computed = _differing(logits, expected) + _differing(*behind) + _differing(*chunk)
    reason = "both graphs have the same nodes, and casts are exact or the same"
    return [
        Check(
            name="numbers: differing", what="keys and values of a prompt that differ from float32's, rounded",
            value=float(cached), limit=0.0, eager=None, reason=reason,
        ),
        Check(
            name="logits: differing", what="logits of a prompt, and behind its cache, that differ from float32's",
            value=float(computed), limit=0.0, eager=None, reason=reason,
        ),
    ]  # fmt: skip


def _differing(found: NDArray[Any], wanted: NDArray[Any]) -> int:
    return int(np.sum(found != wanted)) if found.shape == wanted.shape else wanted.size
