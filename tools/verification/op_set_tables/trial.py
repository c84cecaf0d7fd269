"""A lowered graph on trial: opened and run where it is meant to run, and held to what its primitives come to."""

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgeformer.config import ModelConfig
from edgeformer.export.lower import LoweringOptions
from edgeformer.graph_specs import GraphSpec
from edgeformer.manifest import Precision, Provider
from edgeformer.runtime.session import CACHE_DTYPES, onnxruntime, onnxruntime_errors
from verification.op_set_tables.lowering import captured, lowered

PROVIDERS: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

LENGTHS = {"batch_size": 1, "sequence_length": 3, "total_sequence_length": 8, "source_length": 4}
PAST = {"dynamic": 5, "any": 5, "static": 8}
"""Tokens in the past, by the form of the cache: those before the 3 new ones, or room for all."""

TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "fp16": 2e-2}
"""Of the largest output; what is wrong is off by far more."""


@dataclass(frozen=True)
class Trial:
    """What came of running a graph: why it failed or is wrong, or else the ops that its provider has kernels for."""

    problem: str | None = None
    kernels: frozenset[str] = frozenset()
    ran: bool = True


@cache
def tried(config: ModelConfig, precision: Precision, target: LoweringOptions) -> Trial:
    """Run a graph where it is meant to run, if that is there."""
    if PROVIDERS[target.provider] not in onnxruntime().get_available_providers():
        return Trial(ran=False)
    spec, _ = captured(config, precision)
    try:
        output, kernels = run(lowered(config, precision, target)[0], spec, precision, target)
    except onnxruntime_errors() as error:
        return Trial(f"onnxruntime: {str(error).splitlines()[0]}")
    wanted = expected(config, precision)
    off = float(np.abs(output - wanted).max() / np.abs(wanted).max())
    if not off <= TOLERANCES[precision]:  # NaN is no agreement
        return Trial(f"it is {off:.2g} off what its primitives compute")
    return Trial(kernels=frozenset(kernels))


@cache
def expected(config: ModelConfig, precision: Precision) -> NDArray[Any]:
    """What the model comes to in primitives."""
    target = LoweringOptions(ops="portable", cache_form="dynamic")
    return run(lowered(config, precision, target)[0], captured(config, precision)[0], precision, target)[0]


def run(
    graph: ir.Model, spec: GraphSpec, precision: Precision, target: LoweringOptions
) -> tuple[NDArray[Any], set[str]]:
    """Run 3 tokens behind 5 others. Returns the first output, and the ops that ran on the target's provider.

    What has no kernel does not always fail: onnxruntime writes it out by itself, or runs it on another provider.
    """
    module = onnxruntime()
    options = module.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = module.GraphOptimizationLevel.ORT_DISABLE_ALL  # ops keep their names
    options.enable_profiling = True
    provider = PROVIDERS[target.provider]
    with tempfile.TemporaryDirectory(prefix="op_sets.") as folder:
        options.profile_file_prefix = str(Path(folder, "profile"))
        model = ir.serde.serialize_model(graph).SerializeToString()
        session = module.InferenceSession(
            model, options, providers=list(dict.fromkeys([provider, PROVIDERS["cpu"]])), enable_fallback=0
        )
        output = session.run(None, _feeds(spec, precision, target))[0].astype(np.float64)
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event["args"] for event in events if event["cat"] == "Node" and "provider" in event["args"]]
    return output, {each["op_name"] for each in kernels if each["provider"] == provider}


def _feeds(spec: GraphSpec, precision: Precision, target: LoweringOptions) -> dict[str, NDArray[Any]]:
    """The same tokens and the same past for every target."""
    draw = np.random.default_rng(0)
    lengths = {**LENGTHS, "past_sequence_length": 8}
    feeds: dict[str, NDArray[Any]] = {}
    for tensor in spec.inputs:
        shape = [lengths[dim] if isinstance(dim, str) else dim for dim in tensor.dims]
        if not tensor.integer:
            values = draw.normal(size=shape).astype(CACHE_DTYPES[precision])
            feeds[tensor.name] = (
                values[:, :, : PAST[target.cache_form]] if "past_sequence_length" in tensor.dims else values
            )
        elif tensor.name == "input_ids":
            feeds[tensor.name] = draw.integers(0, 31, shape)
        else:
            feeds[tensor.name] = np.ones(shape, np.int64)
    return feeds
