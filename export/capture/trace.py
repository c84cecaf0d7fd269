"""Trace a torch module into the canonical ONNX graph, without its weights in memory.

The module is built and traced under fake tensors, so capturing takes as much time and memory for a billion parameters
as for a thousand. Initializers keep the names of the module's parameters and become `StreamedTensor`s.
"""

import functools
import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import sympy
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim

from edgeformer.checkpoints.expert_weights import FirstOf
from edgeformer.contract.tensors import TensorSpec
from edgeformer.errors import ExportError
from edgeformer.export.capture.reused_tables import tables_built_once
from edgeformer.export.capture.torch_export import skip_needless_stages, traced_leanly
from edgeformer.export.graph.canonical import translation_table
from edgeformer.export.graph.provenance import record_capture
from edgeformer.export.graph.tensors import StreamedTensor, TensorSource
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.models.model_spec import ModelSpec
from edgeformer.models.without_values import NothingInitialized

OPSET = 20
IR_VERSION = 10

NO_MODULE = "_empty_nn_module_stack"
"""Module name that torch.export gives to the sizes that it computes before any module runs."""

PATCHES = 3600
"""Patches of a picture while a module is traced, which squares of up to 6 × 6 of them divide.

torch.export specializes sizes of 0 and 1 that follow from others, too, such as the number of squares. It is told that
there are at least so many; the graph takes any, which the trials of small pictures show.
"""

SIZES = {
    "batch_size": 2, "sequence_length": 3, "past_sequence_length": 5, "total_sequence_length": 8, "source_length": 7,
    "num_images": 4, "text_batch_size": 2, "image_batch_size": 4, "num_patches": PATCHES,
}  # fmt: skip
"""Sizes of the contract's symbolic dimensions while a module is traced: any but 0 and 1, which torch.export
specializes.
"""


def capture(
    graph_spec: GraphSpec, model_spec: ModelSpec, weights: Mapping[str, Tensor], dtype: torch.dtype
) -> ir.Model:
    """Trace one graph of a model into canonical form.

    weights: the module's parameters by name, read only when the graph is written; a parameter with several names is one
    initializer, under the first of them. Our own models are traced once, however often their graph is captured. Raises
    ExportError where the graph needs a tensor that is neither a parameter nor a buffer.
    """
    # Other modules are traced every time: keeping one would keep its weights in memory.
    trace = _trace if model_spec.config is None else _trace_once
    graph = trace(graph_spec, model_spec, dtype).clone()
    values = FirstOf(dict(model_spec.constants()), weights)  # type: ignore[arg-type]  # nothing writes to it
    for value in graph.graph.initializers.values():
        if isinstance(value.const_value, StreamedTensor):
            value.const_value = _of_values(value.const_value, values)
    return graph


def _trace(graph_spec: GraphSpec, model_spec: ModelSpec, dtype: torch.dtype) -> ir.Model:
    """Trace one graph of a model; its weights have names and no values."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        with NothingInitialized():
            model = model_spec.build(dtype)
        exported, program = _export(graph_spec, graph_spec.module(model).eval(), dtype)
    captured = program.model
    captured.ir_version = IR_VERSION
    captured.producer_name, captured.producer_version = "edgeformer", None
    _name_dimensions(captured.graph, graph_spec.inputs)
    _name_nodes(captured.graph)
    _name_initializers(captured.graph, _first_names(model), _literals(exported))
    for clean_up in (
        common_passes.ClearMetadataAndDocStringPass(),
        common_passes.IdentityEliminationPass(),
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common_passes.CommonSubexpressionEliminationPass(),
        common_passes.RemoveUnusedNodesPass(),
    ):
        clean_up(captured)
    record_capture(captured)
    return captured


_trace_once = functools.lru_cache(maxsize=8)(_trace)


def _export(
    graph_spec: GraphSpec, module: nn.Module, dtype: torch.dtype
) -> tuple[torch.export.ExportedProgram, torch.onnx.ONNXProgram]:
    """Run torch.export and torch.onnx.export on a module of fake tensors."""
    inputs = graph_spec.inputs
    names = dict.fromkeys(dim for tensor in inputs for dim in _symbolic(tensor).values())
    dims = {name: Dim(name, min=PATCHES) if name == "num_patches" else Dim(name) for name in names}
    arguments = tuple(
        torch.empty(
            [SIZES[dim] if isinstance(dim, str) else dim for dim in tensor.dims],
            dtype=_dtype_of(tensor, dtype),
        )
        for tensor in inputs
    )
    axes = [{axis: dims[dim] for axis, dim in _symbolic(tensor).items()} for tensor in inputs]
    with _quiet(), torch.no_grad():
        with traced_leanly():
            exported = torch.export.export(module, arguments, dynamic_shapes=_by_signature(module, axes), strict=False)
        with tables_built_once():
            program = torch.onnx.export(
                skip_needless_stages(exported),
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                custom_translation_table=translation_table(),
                input_names=[tensor.name for tensor in inputs],
                output_names=list(graph_spec.outputs),
            )
    assert program is not None
    return exported, program


def _dtype_of(tensor: TensorSpec, dtype: torch.dtype) -> torch.dtype:
    """Return the data type of an input of a graph whose precision is `dtype`."""
    if tensor.integer:
        return torch.int64
    return torch.promote_types(dtype, torch.float32) if tensor.single else dtype


def _symbolic(tensor: TensorSpec) -> dict[int, str]:
    """The symbolic dimensions of an input, by axis."""
    return {axis: dim for axis, dim in enumerate(tensor.dims) if isinstance(dim, str)}


def _by_signature(module: nn.Module, axes: Sequence[dict[int, Any]]) -> tuple[Any, ...]:
    """Return the axes of flat arguments as torch.export wants them: those of a `*rest` in a tuple of their own."""
    parameters = inspect.signature(module.forward).parameters.values()
    named = sum(each.kind is not each.VAR_POSITIONAL for each in parameters)
    rest = tuple(axes[named:])
    return (*axes[:named], rest) if rest else tuple(axes)


def _name_dimensions(graph: ir.Graph, inputs: Sequence[TensorSpec]) -> None:
    """Rename the symbolic dimensions, which the exporter calls s23, s64 …, to the contract's names."""
    names: dict[str | None, str] = {}
    for value, tensor in zip(graph.inputs, inputs, strict=True):
        assert value.shape is not None, f"{value.name} has no shape"
        for dim, name in zip(value.shape, tensor.dims, strict=True):
            if isinstance(name, str) and isinstance(dim, ir.SymbolicDim):
                names.setdefault(dim.value, name)
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        if value.shape is not None:
            dims = (_simplest(dim.value) if isinstance(dim, ir.SymbolicDim) else dim for dim in value.shape)
            value.shape = ir.Shape(names.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)


def _simplest(dim: str | None) -> str | None:
    """Return the name of a dimension for what equals it: torch may write (s22**2)//s22 for s22."""
    if dim is None or "//" not in dim:
        return dim
    symbols = {name: sympy.Symbol(name, integer=True, positive=True) for name in re.findall(r"[A-Za-z_]\w*", dim)}
    found = sympy.sympify(dim, locals=symbols)
    return found.name if isinstance(found, sympy.Symbol) else dim


def _name_nodes(graph: ir.Graph) -> None:
    """Name every node for the module that it comes from: blocks.0.attention.query/MatMul."""
    seen: dict[str, int] = {}
    for node in graph:
        scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
        modules = [scope for scope in scopes.strip("[]").replace("'", "").split(", ") if scope][:-1]
        modules = [module for module in modules if not module.startswith(NO_MODULE)]
        module = modules[-1].removeprefix("model").removeprefix(".") if modules else ""
        name = f"{module}/{node.op_type}" if module else node.op_type
        seen[name] = seen.get(name, 0) + 1
        node.name = name if seen[name] == 1 else f"{name}_{seen[name] - 1}"


def _literals(exported: torch.export.ExportedProgram) -> dict[str, Tensor]:
    """Tensors that a forward creates itself (`torch.tensor(2.0)`): they are real even under fake tensors."""
    return {
        name: value
        for name, value in exported.constants.items()
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor)
    }


def _first_names(module: nn.Module) -> dict[str, str]:
    """Map each name of a parameter or buffer to its first name: torch.export keeps any one of them."""
    first: dict[int, str] = {}
    names = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in names}


def _name_initializers(graph: ir.Graph, first_names: Mapping[str, str], literals: Mapping[str, Tensor]) -> None:
    """Rename every initializer to its parameter, and replace its fake tensor by a tensor source."""
    for name, value in list(graph.initializers.items()):
        assert value.const_value is not None
        if name in literals:
            value.const_value = ir.tensor(literals[name].numpy(), name=name)
            continue
        parameter = name.removeprefix("model.")
        parameter = first_names.get(parameter, parameter)
        dtype, shape = value.const_value.dtype, ir.Shape(value.const_value.shape.numpy())
        value.name = parameter
        value.const_value = StreamedTensor(parameter, dtype, shape, TensorSource((parameter,)), {})


def _of_values(tensor: StreamedTensor, values: Mapping[str, Tensor]) -> StreamedTensor:
    (parameter,) = tensor.source.parameters
    if parameter not in values:
        raise ExportError(
            f"the graph needs the tensor {parameter}, which is neither a parameter nor a buffer of the module, so "
            "that nothing says what it holds. Make it one with register_buffer."
        )
    return tensor.of(values)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages of torch about its own internals during an export."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
