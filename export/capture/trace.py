"""From a torch module to the canonical ONNX graph, without its weights in memory.

The module is built and traced under fake tensors, so capturing costs the same for a billion parameters as for a
thousand. Initializers keep the module's parameter names and become `StreamedTensor`s.
"""

import functools
import inspect
import logging
import operator
import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim

from edgeformer.contract import TensorSpec
from edgeformer.errors import ExportError
from edgeformer.export.graph.canonical import OPS, translation_table
from edgeformer.export.graph.tensors import StreamedTensor, TensorSource
from edgeformer.graph_specs import GraphSpec
from edgeformer.model_spec import ModelSpec

OPSET = 20
IR_VERSION = 10

NO_MODULE = "_empty_nn_module_stack"
"""How torch.export calls the place of sizes that it works out before anything runs."""

aten = torch.ops.aten

ELEMENTWISE = {
    aten.abs.default, aten.add.Tensor, aten.div.Tensor, aten.eq.Scalar, aten.gelu.default, aten.lt.Scalar,
    aten.mul.Tensor, aten.neg.default, aten.relu.default, aten.silu.default, aten.sub.Tensor, aten.tanh.default,
}  # fmt: skip
"""Ops that promote: their inputs may be of several types, or of another type than the output."""

WHOLE = ELEMENTWISE | {
    operator.getitem, *OPS.values(), aten._assert_tensor_metadata.default, aten.arange.default,
    aten.bitwise_not.default, aten.embedding.default, aten.layer_norm.default, aten.linear.default,
    aten.masked_fill.Scalar, aten.sym_size.int, aten.to.dtype, aten.transpose.int, aten.unsqueeze.default,
    aten.view.default, aten.zeros.default,
}  # fmt: skip
"""Ops that torch.onnx.export leaves as they are, but for `to`, which becomes a copy or nothing."""

SIZES = {
    "batch_size": 2, "sequence_length": 3, "past_sequence_length": 5, "total_sequence_length": 8, "source_length": 7,
}  # fmt: skip
"""What the symbolic dimensions of the contract are while a module is traced."""


def capture(spec: GraphSpec, model_spec: ModelSpec, weights: Mapping[str, Tensor], dtype: torch.dtype) -> ir.Model:
    """Trace one graph of a model into canonical form.

    weights: the module's parameters by name, read only when the graph is written; a parameter of several names is one
    initializer, under the first of them. A model of ours is traced once, however often its graph is asked for.
    """
    # A module of somebody else's would be kept in memory, with its weights.
    graph = (
        _trace(spec, model_spec, dtype) if model_spec.config is None else _trace_once(spec, model_spec, dtype).clone()
    )
    values = ChainMap(dict(model_spec.constants()), weights)  # type: ignore[arg-type]  # nothing writes to it
    for value in graph.graph.initializers.values():
        if isinstance(value.const_value, StreamedTensor):
            value.const_value = _of_values(value.const_value, values)
    return graph


def _trace(spec: GraphSpec, model_spec: ModelSpec, dtype: torch.dtype) -> ir.Model:
    """Trace one graph of a model: its weights have names, and nothing yet to be read from."""
    symbols = dict.fromkeys(dim for tensor in spec.inputs for dim in tensor.dims if isinstance(dim, str))
    # Any sizes but 0 and 1, which torch.export would take for constants.
    sizes = {symbol: SIZES[symbol] for symbol in symbols}
    dims = {symbol: Dim(symbol) for symbol in symbols}
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = model_spec.build(dtype)
        module = spec.wrap(model).eval()
        arguments = tuple(
            torch.ones(
                [sizes.get(dim, dim) for dim in tensor.dims],  # type: ignore[arg-type]
                dtype=torch.int64 if tensor.integer else dtype,
            )
            for tensor in spec.inputs
        )
        axes = [
            {axis: dims[dim] for axis, dim in enumerate(tensor.dims) if isinstance(dim, str)} for tensor in spec.inputs
        ]
        with _quiet(), torch.no_grad():
            exported = torch.export.export(module, arguments, dynamic_shapes=_by_signature(module, axes), strict=False)
            program = torch.onnx.export(
                _spared(exported),
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                custom_translation_table=translation_table(),
                input_names=[tensor.name for tensor in spec.inputs],
                output_names=list(spec.outputs),
            )
    assert program is not None
    captured = program.model
    captured.ir_version = IR_VERSION
    captured.producer_name, captured.producer_version = "edgeformer", None
    _name_dimensions(captured.graph, spec.inputs)
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
    return captured


_trace_once = functools.lru_cache(maxsize=8)(_trace)


def _spared(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Spare torch.onnx.export two more runs of a program, which take longer than all else that it does.

    One takes composite ops apart, the other finds out where types are promoted: where a program has neither, it gets
    the same graph without them.
    """
    nodes = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    casts = [node for node in nodes if node.target is aten.to.dtype]
    if any(node.target not in WHOLE for node in nodes) or any(len(node.args) != 2 or node.kwargs for node in casts):
        return program
    for node in casts:
        value, dtype = node.args
        same = value.meta["val"].dtype == dtype
        node.target, node.args = (aten.alias if same else aten._to_copy).default, (value,)
        node.kwargs = {} if same else {"dtype": dtype}
    program.run_decompositions = lambda table=None: program
    if not any(map(_promotes, nodes)):
        for node in nodes:
            if node.target is aten._assert_tensor_metadata.default:
                program.graph.erase_node(node)
        program.graph_module.modules = lambda: ()  # of each it would look for promotions, and drop assertions
    return program


def _promotes(node: torch.fx.Node) -> bool:
    """Whether an op computes in another type than its inputs have, numbers being float32."""
    if node.target not in ELEMENTWISE:
        return False
    types = {each.meta["val"].dtype for each in node.all_input_nodes if isinstance(each.meta["val"], Tensor)}
    types |= {torch.float32 for each in node.args if isinstance(each, float)}
    return len(types) > 1 or node.meta["val"].dtype not in {torch.bool, *types}


def _by_signature(module: nn.Module, axes: Sequence[dict[int, Any]]) -> tuple[Any, ...]:
    """The axes of flat arguments as torch.export wants them: those of a `*rest` in a tuple of their own."""
    named = [
        each for each in inspect.signature(module.forward).parameters.values() if each.kind is not each.VAR_POSITIONAL
    ]
    rest = tuple(axes[len(named) :])
    return (*axes[: len(named)], rest) if rest else tuple(axes)


def _name_dimensions(graph: ir.Graph, inputs: Sequence[TensorSpec]) -> None:
    """Give the symbolic dimensions their contract names; the exporter calls them s23, s64…"""
    names: dict[str | None, str] = {}
    for value, spec in zip(graph.inputs, inputs, strict=True):
        for dim, name in zip(_shape(value), spec.dims, strict=True):
            if isinstance(name, str) and isinstance(dim, ir.SymbolicDim):
                names.setdefault(dim.value, name)
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    for value in values:
        if value.shape is not None:
            renamed = [
                names.get(dim.value, dim.value) if isinstance(dim, ir.SymbolicDim) else dim for dim in value.shape
            ]
            value.shape = ir.Shape(renamed)


def _shape(value: ir.Value) -> ir.Shape:
    assert value.shape is not None, f"{value.name} has no shape"
    return value.shape


def _name_nodes(graph: ir.Graph) -> None:
    """Name every node by the module that it comes from: blocks.0.attention.query/MatMul."""
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
    """Tensors that a forward writes down itself (`torch.tensor(2.0)`): they are real even under fake tensors."""
    return {
        name: value
        for name, value in exported.constants.items()
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor)
    }


def _first_names(module: nn.Module) -> dict[str, str]:
    """The first name of every parameter and buffer, by each of its names: torch.export keeps any one of them."""
    first: dict[int, str] = {}
    names = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in names}


def _name_initializers(graph: ir.Graph, first_names: Mapping[str, str], literals: Mapping[str, Tensor]) -> None:
    """Give every initializer its own name back, and a recipe in place of its fake tensor."""
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
    """Silence what torch says about itself during an export: nothing there is for our users."""
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
