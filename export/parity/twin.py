"""Verification of graphs for a device without one: their float32 twins run on the CPU.

The twin of a graph is lowered from the same model by the same rules, for the same kernels, in float32: it has the same
nodes over other types, and the CPU has kernels for all of them. What it computes is compared with PyTorch as any graph
is. An fp8 cache, which no kernel of the CPU has, is then computed by other nodes (fp8_twin.py). Of a CUDA graph with
the structure of its twin, CUDA's kernels and the rounding of half precision are left to verify, which takes a GPU; the
report says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import torch

from edgeformer.check.folder import read_folder
from edgeformer.check.providers import audit_provider
from edgeformer.export.adapter_graph import write_widened_adapters
from edgeformer.export.bundle.writer import GraphWriter, file_entries
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.graph_folder import GraphFolder
from edgeformer.export.graph_forms import make_graphs
from edgeformer.export.importers.opened_bundle import Subject
from edgeformer.export.lower import job_of_bundle
from edgeformer.export.parity.fp8_twin import attend_in_float32
from edgeformer.export.parity.report import Check, Report
from edgeformer.export.parity.trials.quantized_cache import judge_scales
from edgeformer.export.progress import Progress
from edgeformer.manifest.graph_forms import FORMS
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import Quantization
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import onnxruntime

PROVIDER = "cpu, float32 twins of the graphs for {}"
UNPROVED = (
    "Float32 twins with the nodes of these graphs are at parity on the CPU. Kernels of {} and the rounding of half "
    "precision were not run: verify the bundle again on a machine with a GPU"
)
"""The field of a report's environment with the name of the provider, such as `cuda`."""

Step = tuple[str, str, tuple[tuple[str, object], ...], tuple[object, ...]]

ARITHMETICS = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
"""Types of tensors in which a graph and its float32 twin may differ."""

LOWEST = tuple(torch.finfo(dtype).min for dtype in (torch.float32, torch.float16, torch.bfloat16))
"""Lowest finite number of each of them."""

COMPARED = onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT, onnx.AttributeProto.STRING
"""Kinds of attributes that must be equal in both."""


def lacks_gpu(manifest: Manifest) -> bool:
    """Return whether graphs of a bundle are verified by their twins: the onnxruntime here or the machine has no GPU."""
    runs_on = manifest.plan.runs_on
    return runs_on.twin is not None and sessions_of(runs_on).lacks_machine(onnxruntime(), manifest)


def verify_twin(subject: Subject, progress: Progress, verify: Callable[[Subject], Report]) -> Report:
    """Verify the twin of a subject, compare their structures, and audit the subject's own kernels."""
    with TemporaryDirectory(prefix="edgeformer-twin.") as place:
        twin = write_twin(subject, Path(place), progress)
        checks = [_same_nodes(subject, twin), _kernels(subject)]
        scales = subject.manifest.cache_scales
        if scales is not None and scales.precision == "fp8":
            found = judge_scales(subject.folder, subject.manifest)
            checks += [replace(check, name=f"fp8 cache, {check.name}") for check in found]
            twin = replace_fp8_attention(twin)
        report = verify(twin)
    runs_on = subject.manifest.plan.runs_on
    return replace(
        report,
        precision=subject.manifest.plan.precision,
        hashes=subject.manifest.graph_hashes(),
        checks=(*report.checks, *checks),
        environment=report.environment
        | {"provider": PROVIDER.format(runs_on.title), runs_on.name: UNPROVED.format(runs_on.title)},
    )


def write_twin(subject: Subject, folder: Path, progress: Progress) -> Subject:
    """Write the twins of a bundle's graphs into a folder, and return them as a subject of verification."""
    manifest = subject.manifest
    quantization = _without_calibration(manifest.plan.quantization)
    precision = manifest.plan.precision if quantization is not None else "fp32"
    plan = replace(manifest.plan, precision=precision, arithmetic="fp32", quantization=quantization)
    # Graphs of float32 are their own twins.
    twin = manifest.plan.arithmetic != "fp32"
    job = replace(job_of_bundle(manifest, subject.model_spec, subject.weights), plan=plan, twin=twin)
    progress("making float32 twins of the graphs", 0)
    out = GraphFolder(job=job, folder=folder, writer=GraphWriter(folder, progress), progress=progress)
    make_graphs(out, [name for name in manifest.graphs if FORMS[name].twin])
    adapters = subject.adapters
    if manifest.adapters:
        write_widened_adapters(folder, subject.folder, manifest.adapters)
        dtype = TORCH_PRECISIONS[manifest.plan.arithmetic]
        adapters = {
            name: {parameter: update.to(dtype) for parameter, update in updates.items()}
            for name, updates in adapters.items()
        }
    runs_on = manifest.plan.runs_on.twin
    assert runs_on is not None
    described = replace(
        manifest,
        plan=replace(plan, provider=runs_on),
        graphs=out.graphs,
        weights=out.writer.weights,
        files=file_entries(folder, out.writer.hashes),
    )
    return replace(subject, folder=folder, manifest=described, adapters=adapters)


def replace_fp8_attention(twin: Subject) -> Subject:
    """Replace what the CPU has no kernels for in the graphs of a twin, attention over an fp8 cache; return the twin."""
    for name in twin.manifest.graph_files:
        attend_in_float32(twin.folder / name)
    return replace(twin, manifest=replace(twin.manifest, files=file_entries(twin.folder, {})))


def _without_calibration(quantization: Quantization | None) -> Quantization | None:
    """Return the same formats without a calibration, which would take its text; a twin has integers of its own."""
    if quantization is None:
        return None
    rules = tuple(
        replace(rule, format=rule.format and rule.format.without_calibration()) for rule in quantization.rules
    )
    return replace(quantization, rules=rules, calibration=None)


def _same_nodes(subject: Subject, twin: Subject) -> Check:
    title = subject.manifest.plan.runs_on.title
    different = 0
    for name in twin.manifest.graph_files:
        steps, others = (structure(onnx.load(each.folder / name, load_external_data=False)) for each in (subject, twin))
        different += sum(one != other for one, other in zip(steps, others, strict=False)) + abs(
            len(steps) - len(others)
        )
    return Check(
        name="twin: other nodes",
        what=f"nodes of the graphs for {title} that differ from those of their float32 twins, apart from casts",
        value=float(different),
        limit=0.0,
        eager=None,
        reason="what the twin computes says something about a graph of the same nodes only",
    )


def _kernels(subject: Subject) -> Check:
    provider = subject.manifest.plan.runs_on
    audit = audit_provider(read_folder(subject.folder), provider.name)
    findings = [str(each) for each in audit.findings if each.severity != "warning"]
    return Check(
        name=f"twin: no {provider.title} kernel",
        what="; ".join(findings)
        or f"nodes in layers without a kernel in onnxruntime {audit.onnxruntime}'s {provider.title} provider",
        value=float(len(findings)),
        limit=0.0,
        eager=None,
        reason="a node without a kernel moves its activations over the bus",
    )


def structure(model: onnx.ModelProto) -> list[Step]:
    """Return domain, op, attributes that are numbers or names, and inputs of each node; casts are left out.

    An input is an input of the graph, an output of an earlier node, or a constant. The last step is the outputs. Before
    the first one come the inputs and outputs of the graph that are not of the arithmetic, such as a quantized cache.
    """
    kinds = tuple(
        (value.name, value.type.tensor_type.elem_type)
        for value in (*model.graph.input, *model.graph.output)
        if value.type.tensor_type.elem_type not in ARITHMETICS
    )
    return [("", "types", kinds, ()), *_steps(model.graph, {})]


def _steps(graph: onnx.GraphProto, outer: dict[str, object]) -> Iterator[Step]:
    known = dict(outer) | {value.name: value.name for value in graph.input}
    place = 0
    for node in graph.node:
        inputs = tuple(known.get(name, "constant" if name else None) for name in node.input)
        if node.op_type == "Cast":
            known[node.output[0]] = inputs[0]
            continue
        values = sorted((each.name, _value(each)) for each in node.attribute if each.type in COMPARED)
        # PyTorch's exporter writes a lower bound as Clip in float32 and as Max in half precision.
        op = "Max" if node.op_type == "Clip" and len(inputs) == 2 else node.op_type
        yield node.domain, op, tuple(values), inputs
        place += 1
        known |= {name: (op, place, index) for index, name in enumerate(node.output)}
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _steps(attribute.g, known)
    yield "", "outputs", (), tuple(known.get(value.name) for value in graph.output)


def _value(attribute: onnx.AttributeProto) -> object:
    """Return a number or a name; numbers to three digits, since half precision has no more.

    The lowest number of a type, which masks are filled with, is that of the other type in a twin.
    """
    value = onnx.helper.get_attribute_value(attribute)
    if not isinstance(value, float):
        return value
    return "lowest" if value in LOWEST else f"{value:.3g}"
