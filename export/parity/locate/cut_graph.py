"""Run every node of a graph by itself: each reads reference values instead of the outputs of the nodes before it.

    a → Node → b → Node → c     becomes     a → Node → b/computed     b (fed) → Node → c/computed

So an error does not reach later nodes. Weights are read from the file of the graph, and no file is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

from edgeformer.export.parity.locate.node_feeds import Array
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import onnxruntime, onnxruntime_errors, usable_cores

COMPUTED = "/computed"
"""Suffix of the computed outputs, whose names belong to the values that are fed instead."""

ELEMENT_TYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(double)": np.dtype(np.float64),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(np.bool_),
}
"""numpy types by the names that onnxruntime gives the types of values."""


@dataclass
class Outcome:
    """The outputs of the nodes.

    computed: for each feed, outputs by name. refused: outputs whose node onnxruntime refused to run, with the reason.
    """

    computed: list[dict[str, Array]]
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CutGraph:
    """A graph that is cut at every value in `forced`.

    forced: the arrays that the consumers of a value read instead of it, one for each feed, in the graph's own types.
    Other values still go from node to node.
    """

    model: onnx.ModelProto
    folder: Path
    feeds: Sequence[Mapping[str, Array]]
    forced: Mapping[str, Sequence[Array]]
    provider: Provider

    def run(self) -> Outcome:
        """Run all nodes on all feeds, in one session if onnxruntime accepts all of them."""
        outcome = Outcome([{} for _ in self.feeds])
        self._run(self._units(), outcome)
        return outcome

    def _run(self, units: list[list[onnx.NodeProto]], outcome: Outcome) -> None:
        """Run units in one session; bisect them where onnxruntime refuses, until the refused ones are alone."""
        if not units:
            return
        nodes = [node for unit in units for node in unit]
        part = self._part(nodes)
        names = [output.name for output in part.graph.output]
        try:
            session = open_model(part, self.folder, self.provider, optimise=False)
            results = [session.run(names, self._inputs(session, place)) for place in range(len(self.feeds))]
        except onnxruntime_errors() as refusal:
            if len(units) > 1:
                middle = len(units) // 2
                self._run(units[:middle], outcome)
                self._run(units[middle:], outcome)
            else:
                outcome.refused |= dict.fromkeys((name for node in nodes for name in node.output), first_line(refusal))
            return
        for computed, arrays in zip(outcome.computed, results, strict=True):
            computed |= {name.removesuffix(COMPUTED): array for name, array in zip(names, arrays, strict=True)}

    def _units(self) -> list[list[onnx.NodeProto]]:
        """Return groups of nodes that must run together, since an uncut value connects them; most are one node."""
        units: dict[int, list[onnx.NodeProto]] = {}
        unit_of: dict[str, int] = {}
        for number, node in enumerate(self.model.graph.node):
            before = dict.fromkeys(unit_of[name] for name in node.input if name in unit_of)
            units[number] = [each for earlier in before for each in units.pop(earlier)] + [node]
            for name, unit in unit_of.items():
                if unit in before:
                    unit_of[name] = number
            unit_of |= {name: number for name in node.output if name and name not in self.forced}
        judged = set(self.forced)
        return [unit for unit in units.values() if any(judged.intersection(node.output) for node in unit)]

    def _part(self, nodes: Iterable[onnx.NodeProto]) -> onnx.ModelProto:
        """Return a model of these nodes, with the cut values as its inputs and outputs."""
        model = onnx.ModelProto(ir_version=self.model.ir_version)
        model.opset_import.extend(self.model.opset_import)
        model.functions.extend(self.model.functions)
        graph = model.graph
        graph.name = self.model.graph.name
        read: set[str] = set()
        for node in nodes:
            read.update(node.input)
            added = graph.node.add()
            added.CopyFrom(node)
            for index, name in enumerate(node.output):
                if name in self.forced:
                    added.output[index] = name + COMPUTED
                    graph.output.add(name=added.output[index])
        graph.input.extend(each for each in self.model.graph.input if each.name in read)
        graph.initializer.extend(each for each in self.model.graph.initializer if each.name in read)
        for name in sorted(read & self.forced.keys()):
            element = np_dtype_to_tensor_dtype(self.forced[name][0].dtype)
            graph.input.append(make_tensor_value_info(name, element, None))
        return model

    def _inputs(self, session: Any, place: int) -> dict[str, Array]:
        names = [each.name for each in session.get_inputs()]
        return {name: self.forced[name][place] if name in self.forced else self.feeds[place][name] for name in names}


def open_model(
    model: onnx.ModelProto,
    folder: Path,
    provider: Provider,
    *,
    optimise: bool,
    save_as: Path | None = None,
    values: Mapping[str, Any] | None = None,
) -> Any:
    """Open a session on a model in memory whose external data is in `folder`; weights are memory-mapped.

    save_as: where to write the graph as onnxruntime optimised it, with its weights beside it. values: weights that no
    file has, by name, as `OrtValue`s.
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # refused nodes are reported by the caller
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if save_as is not None:
        options.optimized_model_filepath = str(save_as)
        data = f"{save_as.name}_data"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", data)
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    sessions = sessions_of(provider)
    sessions.prepare(ort)
    providers = sessions.choose(ort, options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=providers, enable_fallback=0)


def optimised(model: onnx.ModelProto, folder: Path, provider: Provider, place: Path) -> onnx.ModelProto:
    """Return a model as onnxruntime optimises it; its weights are written to the folder `place`."""
    path = place / "model.onnx"
    open_model(model, folder, provider, optimise=True, save_as=path)
    return onnx.load(path, load_external_data=False)


def element_types(model: onnx.ModelProto) -> dict[str, np.dtype[Any]]:
    """Return the element types that onnxruntime infers for all node outputs of a model without external data."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    given = {each.name for each in probe.graph.output}
    names = [name for node in probe.graph.node for name in node.output if name and name not in given]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = open_model(probe, Path(), CPU, optimise=False)
    return {each.name: ELEMENT_TYPES[each.type] for each in session.get_outputs()}


def first_line(refusal: Exception) -> str:
    """Return the message of an error of onnxruntime, without the codes before it and the stack after it."""
    return str(refusal).strip().splitlines()[0].rpartition("Status Message: ")[2][:300]
