"""Find the nodes of a graph that compute wrong values: run every node by itself and compare it with float64.

The expected values come from the model spec and weights alone (`node_values`). Nodes read expected values instead of
each other's outputs (`cut_graph`), so an error shows only at the node that makes it. Differences from a fresh lowering
are reported beside it (`node_differences`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from torch import Tensor

from edgeformer.errors import BundleError
from edgeformer.export.graph.provenance import NodeOrigin
from edgeformer.export.lower import job_of_bundle
from edgeformer.export.parity.locate.cut_graph import CutGraph, element_types, first_line, open_model, optimised
from edgeformer.export.parity.locate.findings import SAME, Findings, Localisation, Suspect, describe, worst
from edgeformer.export.parity.locate.node_differences import Wiring, node_differences, wrong_weights
from edgeformer.export.parity.locate.node_feeds import Array
from edgeformer.export.parity.locate.node_values import Expected, NodeValues, difference
from edgeformer.export.progress import Progress
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Arithmetic
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.models.model_spec import ModelSpec
from edgeformer.runtime.sessions.session import onnxruntime, onnxruntime_errors

__all__ = ["Localisation", "Locator", "Suspect", "describe", "locate"]

FLOOR: dict[Arithmetic, float] = {"fp32": 1e-5, "fp16": 1e-2}
"""Largest error (max |Δ| / max |value|) that is allowed for every node. Measured: 6.6e-7 and 9.3e-4 at the worst node
of 60 correct random Llamas (2 and 3 blocks, all kinds of heads and activations, kernels and decomposed ops), 7.7e-7 and
9.5e-4 in 30 blocks of SmolLM2's size."""

FLOOR_IF_DIFFERENT: dict[Arithmetic, float] = {"fp32": 2e-6, "fp16": 3e-3}
"""Largest error that is allowed for a node that differs from a fresh lowering: a wrong epsilon changes little."""

ROUNDING = 8.0
"""Allowed ratio of a node's error to the effect of rounding its inputs: softmax of large scores amplifies rounding."""

UNKNOWN = NodeOrigin("unknown", "not made by edgeformer")


def locate(
    folder: Path,
    manifest: Manifest,
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    progress: Progress = lambda what, part: None,
) -> Localisation:
    """Find the nodes of the graphs in a bundle folder whose outputs differ from those of the model with these weights.

    weights: parameters by name, which are cast to the precision of the graphs. Raises BundleError for a graph whose
    nodes do not have the names that edgeformer gives them.
    """
    return Locator(manifest, model_spec, weights, progress).locate(folder)


@dataclass(frozen=True)
class _Verdict:
    """The error of one node: that of its worst output on its worst feed.

    rounding: the part of the error that rounding explains, None for integers. refusal: why onnxruntime did not run it.
    """

    node: onnx.NodeProto
    error: float
    rounding: float | None
    feed: str
    refusal: str = ""

    def limit(self, floor: float) -> float:
        """Return the largest error allowed; integers must be exact."""
        return 0.0 if self.rounding is None else max(floor, self.rounding)

    def is_wrong(self, floor: float) -> bool:
        """Return whether the error is beyond the limit; NaN always is."""
        return not self.error <= self.limit(floor)


class Locator:
    """Locates wrong nodes in any number of bundles of one model; expected values are computed once."""

    def __init__(
        self,
        manifest: Manifest,
        model_spec: ModelSpec,
        weights: Mapping[str, Tensor],
        progress: Progress = lambda what, part: None,
    ) -> None:
        if manifest.plan.precision not in FLOOR:
            raise BundleError(
                f"wrong nodes can be located in graphs of fp32 and fp16, and this one is {manifest.plan.precision}. "
                "Export the model with --precision fp32, and locate there what is wrong in both."
            )
        if manifest.cache_scales is not None:
            raise BundleError(
                f"wrong nodes cannot be located in a graph with {manifest.cache_scales.name}, which rounds. Export the "
                "model without --cache-precision, and locate there what is wrong in both."
            )
        if not manifest.graph.endswith(".onnx"):
            raise BundleError(
                f"wrong nodes can be located in ONNX files, and onnxruntime has fused the nodes of {manifest.graph}. "
                "Export the model without --deployment mobile."
            )
        files = [manifest.graphs[name].file for name in ("encoder", "text", "model") if name in manifest.graphs]
        job = job_of_bundle(manifest, model_spec, weights)
        self.graphs = []
        for index, (file, spec) in enumerate(zip(files, model_spec.graphs, strict=True)):
            progress(f"computing the value of every node of {file} in float64", 0.4 * index / len(files))
            self.graphs.append(GraphLocator(file, NodeValues(job, spec), job.plan.arithmetic, job.plan.runs_on))
        self._progress = progress

    def locate(self, folder: Path) -> Localisation:
        """Check the graphs in a bundle folder; see `locate`."""
        found = []
        for index, graph in enumerate(self.graphs):
            self._progress(f"running every node of {graph.file} by itself", 0.4 + 0.6 * index / len(self.graphs))
            found.append(graph.locate(folder))
        return Localisation(tuple(found))


class GraphLocator:
    """Locates wrong nodes in one graph of such bundles."""

    def __init__(self, file: str, values: NodeValues, precision: Arithmetic, provider: Provider) -> None:
        self.file = file
        self.values = values
        self._precision = precision
        self._floor = FLOOR[precision]
        available = provider.execution_provider in onnxruntime().get_available_providers()
        self._provider = provider if available else CPU
        self._types = element_types(values.fresh)
        self._fresh = Wiring(values.fresh.graph)
        self._feeds = [
            {
                name: _cast(array, values.precision) if array.dtype.kind == "f" else array
                for name, array in feed.inputs.items()
            }
            for feed in values.feeds
        ]

    def locate(self, folder: Path) -> Findings:
        """Check the graph in a bundle folder."""
        path = folder / self.file
        model, data = self._load(path), path.parent
        meaning = {
            name: meant
            for node in model.graph.node
            for index, name in enumerate(node.output)
            if name and (meant := self.values.at(node.name, index, name)) is not None
        }
        verdicts = self._judge(model, data, meaning)
        suspects = self._suspects(model, verdicts, wrong_weights(model.graph, data, self.values.weights))
        differences = self._other_differences(model, suspects)
        outputs: dict[str, float] = {}
        runtime_fault = False
        # A faulty graph may read out of bounds, and its outputs would add no information.
        if not suspects:
            outputs = {
                form: self._error_of_outputs(model, data, optimise, differences)
                for form, optimise in (("as it is", False), ("optimised", True))
            }
            plain, fast = outputs.values()
            runtime_fault = not isnan(plain) and not fast <= max(self._floor, ROUNDING * plain)
            if runtime_fault:
                suspects = self._suspects_of_the_runtime(model, data, meaning)
        return Findings(
            graph=self.file, suspects=tuple(suspects), blocks=_by_block(verdicts), outputs=outputs,
            runtime_fault=runtime_fault, differences=tuple(differences),
        )  # fmt: skip

    def _load(self, path: Path) -> onnx.ModelProto:
        try:
            model = onnx.load(path, load_external_data=False)
        except (OSError, DecodeError) as error:
            raise BundleError(f"{path} cannot be read as an ONNX graph: {error}. Copy or export it again.") from error
        names = {node.name for node in model.graph.node}
        ours = self._fresh.nodes.keys()
        if len(names & ours) < len(ours) / 2:
            raise BundleError(
                f"{path} has {len(names & ours)} of the {len(ours)} nodes that edgeformer gives this model, by their "
                "names: something else made or rewrote it, and its nodes are unknown. Locate the fault in the graph "
                "as edgeformer wrote it; make that with: edgeformer export"
            )
        optional = {each.name for each in model.graph.initializer}
        strange = sorted({each.name for each in model.graph.input} - optional - self._feeds[0].keys())
        if strange:
            raise BundleError(
                f"{path} has inputs that edgeformer's graph does not have: {', '.join(strange)}. Export it again."
            )
        return model

    def _judge(self, model: onnx.ModelProto, folder: Path, meaning: Mapping[str, str]) -> list[_Verdict]:
        """Run every node by itself. meaning: the value of a fresh lowering that corresponds to each output, by name."""
        forced = {
            name: [_cast(expected.value, self._types[meant]) for expected in self.values[meant]]
            for name, meant in meaning.items()
        }
        outcome = CutGraph(model, folder, self._feeds, forced, self._provider).run()
        verdicts = []
        for node in model.graph.node:
            names = [name for name in node.output if name in meaning]
            refusal = next((outcome.refused[name] for name in names if name in outcome.refused), None)
            if refusal is not None:
                verdicts.append(_Verdict(node, nan, 0.0, self.values.feeds[0].name, refusal))
            elif names:
                seen = [
                    self._verdict(node, computed[name], self.values[meaning[name]][place], place)
                    for name in names
                    for place, computed in enumerate(outcome.computed)
                ]
                verdicts.append(max(seen, key=self._excess))
        return verdicts

    def _verdict(self, node: onnx.NodeProto, actual: Array, expected: Expected, place: int) -> _Verdict:
        error = difference(actual, expected.value, expected.valid)
        if expected.value.dtype.kind != "f":
            return _Verdict(node, error, None, self.values.feeds[place].name)
        moved = 0.0 if isnan(expected.moved) else expected.moved
        return _Verdict(node, error, ROUNDING * moved, self.values.feeds[place].name)

    def _excess(self, verdict: _Verdict) -> float:
        """Return a sort key of verdicts: the ratio of the error to its limit."""
        if verdict.is_wrong(inf):  # NaN, or a wrong integer
            return inf
        return verdict.error / max(verdict.limit(self._floor), 1e-30)

    def _suspects(
        self, model: onnx.ModelProto, verdicts: Sequence[_Verdict], wrong: Mapping[str, float]
    ) -> list[Suspect]:
        wiring = Wiring(model.graph)
        suspects = []
        for verdict in verdicts:
            node, error, feed = verdict.node, verdict.error, verdict.feed
            reasons = [f"cannot run ({verdict.refusal})"] if verdict.refusal else []
            if node.name in self._fresh.nodes:
                reasons += node_differences(wiring, self._fresh, node.name)
            floor = FLOOR_IF_DIFFERENT[self._precision] if reasons else self._floor
            limit = verdict.limit(floor)
            weights = {name: wrong[name] for name in node.input if name in wrong}
            reasons += [f"has another {name} than was given, off by {off:.1e}" for name, off in weights.items()]
            if not verdict.is_wrong(floor):
                if not weights:
                    continue
                error, feed = max(weights.values(), key=worst), "weights"
                limit = float(np.finfo(self.values.precision).eps)
            origin = self.values.origins.get(node.name, UNKNOWN)
            suspects.append(self._suspect(node, origin, error, limit, feed, "; ".join(reasons)))
        return suspects

    def _other_differences(self, model: onnx.ModelProto, suspects: Sequence[Suspect]) -> list[str]:
        """Describe nodes that differ from a fresh lowering but compute the right values, or that only one graph has."""
        wiring, explained = Wiring(model.graph), {suspect.node for suspect in suspects}
        differences = []
        for node in model.graph.node:
            if node.name not in self._fresh.nodes:
                differences.append(f"{node.name or 'an unnamed node'} ({node.op_type}) is not one of its nodes")
            elif node.name not in explained:
                reasons = "; ".join(node_differences(wiring, self._fresh, node.name))
                differences += [f"{node.name} {reasons}"] if reasons else []
        differences += [f"{name} is missing" for name in self._fresh.nodes if name not in wiring.nodes]
        differences += [f"output {name} is missing" for name in self.values.outputs if name not in wiring.outputs]
        return differences

    def _error_of_outputs(self, model: onnx.ModelProto, folder: Path, optimise: bool, differences: list[str]) -> float:
        """Return the error of the uncut graph's outputs, without caches; NaN where onnxruntime refuses to run it."""
        names = [name for name in self.values.outputs if not name.startswith("present.")]
        errors = []
        try:
            session = open_model(model, folder, self._provider, optimise=optimise)
            for place, feed in enumerate(self._feeds):
                computed = session.run(names, {each.name: feed[each.name] for each in session.get_inputs()})
                expected = [self.values[name][place] for name in names]
                errors += [
                    difference(ours, each.value, each.valid) for ours, each in zip(computed, expected, strict=True)
                ]
        except onnxruntime_errors() as refusal:
            differences.append(f"onnxruntime refuses the graph as a whole ({first_line(refusal)})")
            return nan
        return max(errors, key=worst)

    def _suspects_of_the_runtime(
        self, model: onnx.ModelProto, folder: Path, meaning: Mapping[str, str]
    ) -> list[Suspect]:
        """Check the graph as onnxruntime optimises it, which keeps the names of values."""
        with TemporaryDirectory() as place:
            form = optimised(model, folder, self._provider, Path(place))
            verdicts = self._judge(form, Path(place), meaning)
        made_by = NodeOrigin("several nodes", "made by the optimiser of onnxruntime")
        return [
            self._suspect(
                verdict.node,
                self.values.origins.get(verdict.node.name, made_by),
                verdict.error,
                verdict.limit(self._floor),
                verdict.feed,
                "computes the right values as long as onnxruntime does not optimise the graph",
            )
            for verdict in verdicts
            if verdict.is_wrong(self._floor)
        ]

    def _suspect(
        self, node: onnx.NodeProto, origin: NodeOrigin, error: float, limit: float, feed: str, difference: str
    ) -> Suspect:
        return Suspect(
            graph=self.file, node=node.name, canonical=origin.canonical, op=node.op_type, error=error, limit=limit,
            block=_block(node.name), made_by=origin.made_by, feed=feed, difference=difference or SAME,
        )  # fmt: skip


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):  # padding may hold any number
        return array.astype(dtype)


def _block(node: str) -> str:
    """Return the block of a node (`blocks.1`, `embedding`, `final_norm` …), or `model` for a node outside of blocks."""
    module, separator, _ = node.partition("/")
    if not separator:
        return "model"
    numbered = re.match(r".*?\.\d+(?=\.|$)", module)  # a module may give its list of blocks any name
    return numbered[0] if numbered else module


def _by_block(verdicts: Sequence[_Verdict]) -> dict[str, float]:
    blocks: dict[str, float] = {}
    for verdict in verdicts:
        block = _block(verdict.node.name)
        blocks[block] = max(blocks.get(block, 0.0), verdict.error, key=worst)
    return blocks
