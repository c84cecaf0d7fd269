"""From a torch module to the canonical ONNX graph, without its weights in memory.

The module is built and traced under fake tensors, so capturing costs the same for a billion parameters as for a
thousand. Initializers keep the module's parameter names and become `StreamedTensor`s.
"""

import logging
import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim

from edgeformer.blueprint import Blueprint
from edgeformer.contract import input_names, output_names
from edgeformer.errors import ExportError
from edgeformer.export.canonical import translation_table
from edgeformer.export.tensors import Recipe, StreamedTensor

OPSET = 20
IR_VERSION = 10


class _FloatLogits(nn.Module):
    """Logits leave the graph as float32 in every half precision: no client should need a half type to sample."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, caches: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        logits, presents = self.decoder(input_ids, attention_mask, caches)
        return logits.float(), presents


def capture_decoder(blueprint: Blueprint, weights: Mapping[str, Tensor], dtype: torch.dtype) -> ir.Model:
    """Trace a decoder into the canonical graph.

    weights: the module's parameters by name, read only when the graph is written; a parameter of several names is one
    initializer, under the first of them.
    """
    geometry = blueprint.cache
    batch, new, past, total = (
        Dim(name) for name in ("batch_size", "sequence_length", "past_sequence_length", "total_sequence_length")
    )
    # Any sizes but 0 and 1, which torch.export would take for constants.
    b, s, p = 2, 3, 5
    with FakeTensorMode(allow_non_fake_inputs=True):
        decoder = blueprint.build(dtype)
        module = _FloatLogits(decoder).eval()
        caches = [
            tuple(torch.zeros(b, geometry.num_kv_heads, p, geometry.head_dim, dtype=dtype) for _ in range(2))
            for _ in range(geometry.num_layers)
        ]
        arguments = (torch.zeros(b, s, dtype=torch.int64), torch.ones(b, p + s, dtype=torch.int64), caches)
        cache_axes = {0: batch, 2: past}
        axes = ({0: batch, 1: new}, {0: batch, 1: total}, [(cache_axes, cache_axes)] * geometry.num_layers)
        with _quiet(), torch.no_grad():
            exported = torch.export.export(module, arguments, dynamic_shapes=axes, strict=False)
            program = torch.onnx.export(
                exported,
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                custom_translation_table=translation_table(),
                input_names=input_names(geometry),
                output_names=output_names(geometry),
            )
    assert program is not None
    model = program.model
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "edgeformer", None
    _name_dimensions(model.graph)
    _name_nodes(model.graph)
    values = ChainMap(dict(blueprint.constants()), weights)  # type: ignore[arg-type]  # nothing writes to it
    _fill_initializers(model.graph, values, _first_names(decoder), _literals(exported))
    for clean_up in (
        common_passes.ClearMetadataAndDocStringPass(),
        common_passes.IdentityEliminationPass(),
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common_passes.CommonSubexpressionEliminationPass(),
        common_passes.RemoveUnusedNodesPass(),
    ):
        clean_up(model)
    return model


def _name_dimensions(graph: ir.Graph) -> None:
    """Give the symbolic dimensions their contract names; the exporter calls them s23, s64…"""
    names: dict[str | None, str] = {}
    contract = {
        "input_ids": ("batch_size", "sequence_length"),
        "attention_mask": ("batch_size", "total_sequence_length"),
        "past_key_values.0.key": ("batch_size", None, "past_sequence_length", None),
    }
    inputs = {value.name: value for value in graph.inputs}
    for input_name, dims in contract.items():
        for dim, name in zip(_shape(inputs[input_name]), dims, strict=True):
            if name is not None and isinstance(dim, ir.SymbolicDim):
                names[dim.value] = name
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
        module = modules[-1].removeprefix("decoder").removeprefix(".") if modules else ""
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


def _fill_initializers(
    graph: ir.Graph, values: Mapping[str, Tensor], first_names: Mapping[str, str], literals: Mapping[str, Tensor]
) -> None:
    """Give every initializer its own name back and a way to its value, in place of the fake tensor."""
    for name, value in list(graph.initializers.items()):
        assert value.const_value is not None
        if name in literals:
            value.const_value = ir.tensor(literals[name].numpy(), name=name)
            continue
        parameter = name.removeprefix("decoder.")
        parameter = first_names.get(parameter, parameter)
        if parameter not in values:
            raise ExportError(
                f"the graph needs the tensor {parameter}, which is neither a parameter nor a buffer of the module, so "
                "that nothing says what it holds. Make it one with register_buffer."
            )
        dtype, shape = value.const_value.dtype, ir.Shape(value.const_value.shape.numpy())
        value.name = parameter
        value.const_value = StreamedTensor(parameter, dtype, shape, Recipe((parameter,)), values)


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
