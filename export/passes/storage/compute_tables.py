"""Store tables of rotary embeddings as two small ones each, of which runtimes make them when they load the graph.

    cos, sin [C, W]      becomes      Cast(cos a · cos b − sin a · sin b), Cast(sin a · cos b + cos a · sin b)

with float64 tables of the angles a of the first position of each block, [C/n, 1, W], and of the angles b of the places
in a block, [1, n, W]. Runtimes fold constants, so that kernels find tables as they were. Requires that this gives the
same float64 numbers; it does not for tables of two parts (LongRoPE), which stay as they are.
"""

from collections.abc import Collection, Mapping

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dim, remove_initializer, streamed
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.tensors import TensorSource

LARGEST = 2**19
"""Elements of a table. Folding takes float64 copies: 20 MB and 0.04 s for a table of 8,192 × 32, and 570 MB and 0.6 s
for one of 131,072 × 64, measured in onnxruntime 1.31, to save 67 MB of a file."""
BLOCK = 64
"""Positions of a block. Both small tables of 8,192 positions have 192 rows."""
SAME = 2.0**-38
"""Difference of float64 numbers that are the same: an angle of 2¹³ is rounded by 2⁻⁴⁰ in either. They become the same
float32 number, but where one lies so near to halfway between two."""


def compute_tables(model: ir.Model) -> PassReport:
    """Compute all tables of cosines and sines that are not too large, and are what this computes."""
    report = PassReport("compute_tables")
    stored = dict(model.graph.initializers)
    for names in _pairs(stored):
        cos, sin = (_exact(stored[name]) for name in names)
        parts = None if cos is None or sin is None else parts_of(cos, sin)
        if parts is None:
            continue
        emit = NodeBuilder(names[0].removesuffix(".cos"))
        olds = [stored[name] for name in names]
        for old, new in zip(olds, _computed(emit, parts, dim(olds[0], 0)), strict=True):
            new.dtype, new.shape = ir.DataType.FLOAT, old.shape
            ir.convenience.replace_all_uses_with(old, new)
            remove_initializer(model, old)
        model.graph.insert_before(model.graph[0], emit.nodes)
        report.fire(emit.nodes[-1])
    return report


def computed_tables(constants: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the tables that this pass computes. constants: those of a model, by name, in float64."""
    computed = (names for names in _pairs(constants) if parts_of(*(constants[name] for name in names)) is not None)
    return {name for names in computed for name in names}


def _pairs(names: Collection[str]) -> list[tuple[str, str]]:
    """Return the names of tables of cosines, each with that of their sines."""
    pairs = [(name, name.removesuffix("cos") + "sin") for name in names if name.endswith(".cos")]
    return [(cos, sin) for cos, sin in pairs if sin in names]


def _exact(value: ir.Value) -> Tensor | None:
    """Return the float64 numbers of a float32 table that is stored as the model has it; None for anything else.

    Parameters are in the type of the checkpoint: a table among them was trained, and stays.
    """
    tensor = streamed(value)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return None
    parameter = tensor.source.parameters[0]
    if tensor.source != TensorSource((parameter,)):  # joined, transposed or multiplied
        return None
    values = tensor.values[parameter]
    return values if values.dtype == torch.float64 and values.dim() == 2 else None


def parts_of(cos: Tensor, sin: Tensor) -> tuple[Tensor, ...] | None:
    """Return cos a, sin a [N, 1, W], cos b and sin b [1, n, W] of tables float64 [C, W]; None for tables that stay."""
    if cos.numel() > LARGEST or not cos[0].all():
        return None
    factor = cos[:1]
    parts = cos[::BLOCK, None], sin[::BLOCK, None], (cos / factor)[None, :BLOCK], (sin / factor)[None, :BLOCK]
    made = (each.flatten(0, 1)[: len(cos)] for each in _joined(*parts))
    same = all(bool(((one - other).abs() <= SAME).all()) for one, other in zip(made, (cos, sin), strict=True))
    return parts if same else None


def _joined(cos_a: Tensor, sin_a: Tensor, cos_b: Tensor, sin_b: Tensor) -> tuple[Tensor, Tensor]:
    return cos_a * cos_b - sin_a * sin_b, sin_a * cos_b + cos_a * sin_b


def _computed(emit: NodeBuilder, parts: tuple[Tensor, ...], positions: int) -> list[ir.Value]:
    cos_a, sin_a, cos_b, sin_b = (emit.constant(part.numpy(), ir.DataType.DOUBLE) for part in parts)
    cos = emit("Sub", emit("Mul", cos_a, cos_b), emit("Mul", sin_a, sin_b))
    sin = emit("Add", emit("Mul", sin_a, cos_b), emit("Mul", cos_a, sin_b))
    shape = emit.constant([-1, parts[0].shape[-1]])
    rows = len(parts[0]) * parts[2].shape[1]
    found = []
    for each in (cos, sin):
        table = emit("Reshape", emit("Cast", each, to=ir.DataType.FLOAT), shape)
        if rows > positions:
            table = emit("Slice", table, emit.constant([0]), emit.constant([positions]))
        found.append(table)
    return found
