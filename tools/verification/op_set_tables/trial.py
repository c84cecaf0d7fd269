"""Run a lowered graph on its provider and compare it with the same model in primitives."""

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
from edgeformer.manifest.parts import Precision
from edgeformer.manifest.providers import CPU
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.runtime.sessions.session import CACHE_DTYPES, onnxruntime, onnxruntime_errors
from verification.op_set_tables.lowering import captured, lowered

LENGTHS = {"batch_size": 1, "sequence_length": 3, "total_sequence_length": 8, "source_length": 4}
PAST = {"dynamic": 5, "any": 5, "static": 8}
"""Tokens in the past by form of cache: those before the 3 new tokens, or the capacity for all."""

TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "fp16": 2e-2}
"""Allowed error relative to the largest output; a wrong graph is off by far more."""


@dataclass(frozen=True)
class Trial:
    """Result of a run: why it failed or is wrong, otherwise the ops that its provider has kernels for."""

    problem: str | None = None
    kernels: frozenset[str] = frozenset()
    ran: bool = True


@cache
def tried(config: ModelConfig, precision: Precision, lowering: LoweringOptions) -> Trial:
    """Run a graph on its provider, if that is available."""
    if lowering.runs_on.execution_provider not in onnxruntime().get_available_providers():
        return Trial(ran=False)
    spec, _ = captured(config, precision)
    try:
        output, kernels = run(lowered(config, precision, lowering)[0], spec, precision, lowering)
    except onnxruntime_errors() as error:
        return Trial(f"onnxruntime: {str(error).splitlines()[0]}")
    wanted = expected(config, precision)
    off = float(np.abs(output - wanted).max() / np.abs(wanted).max())
    if not off <= TOLERANCES[precision]:  # also true for NaN
        return Trial(f"it is {off:.2g} off what its primitives compute")
    return Trial(kernels=frozenset(kernels))


@cache
def expected(config: ModelConfig, precision: Precision) -> NDArray[Any]:
    """Return the output of the model in primitives."""
    lowering = LoweringOptions(ops="portable", cache_form="dynamic")
    return run(lowered(config, precision, lowering)[0], captured(config, precision)[0], precision, lowering)[0]


def run(
    graph: ir.Model, spec: GraphSpec, precision: Precision, lowering: LoweringOptions
) -> tuple[NDArray[Any], set[str]]:
    """Run 3 tokens after 5 others. Return the first output, and the ops that ran on the graph's provider.

    An op without a kernel does not always fail: onnxruntime may inline its function body or run it on another provider.
    """
    module = onnxruntime()
    options = module.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = module.GraphOptimizationLevel.ORT_DISABLE_ALL  # ops keep their types
    options.enable_profiling = True
    provider = lowering.runs_on.execution_provider
    with tempfile.TemporaryDirectory(prefix="op_sets.") as folder:
        options.profile_file_prefix = str(Path(folder, "profile"))
        model = ir.serde.serialize_model(graph).SerializeToString()
        session = module.InferenceSession(
            model, options, providers=list(dict.fromkeys([provider, CPU.execution_provider])), enable_fallback=0
        )
        output = session.run(None, _feeds(spec, precision, lowering))[0].astype(np.float64)
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event["args"] for event in events if event["cat"] == "Node" and "provider" in event["args"]]
    return output, {each["op_name"] for each in kernels if each["provider"] == provider}


def _feeds(spec: GraphSpec, precision: Precision, lowering: LoweringOptions) -> dict[str, NDArray[Any]]:
    """Return the same tokens and the same past for every lowering."""
    draw = np.random.default_rng(0)
    lengths = {**LENGTHS, "past_sequence_length": 8}
    feeds: dict[str, NDArray[Any]] = {}
    for tensor in spec.inputs:
        shape = [lengths[dim] if isinstance(dim, str) else dim for dim in tensor.dims]
        if not tensor.integer:
            values = draw.normal(size=shape).astype(CACHE_DTYPES[precision])
            feeds[tensor.name] = (
                values[:, :, : PAST[lowering.cache_form]] if "past_sequence_length" in tensor.dims else values
            )
        elif tensor.name == "input_ids":
            feeds[tensor.name] = draw.integers(0, 31, shape)
        else:
            feeds[tensor.name] = np.ones(shape, np.int64)
    return feeds
