"""Store tables of rotary embeddings as two small ones each, of which runtimes make them when they load the graph.

    cos, sin [C, W]      becomes      Cast(cos a · cos b − sin a · sin b), Cast(sin a · cos b + cos a · sin b)

with float64 tables of the angles a of the first position of each block, [C/n, 1, W], and of the angles b of the places
in a block, [1, n, W]. Runtimes fold constants, so that kernels find tables as they were. Requires that this gives the
same float64 numbers; it does not for tables of two parts (LongRoPE), which stay as they are.
"""

from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import remove_initializer, streamed
from edgeformer.export.graph.pass_report import PassReport

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
    for name, cos in stored.items():
        sin = stored.get(f"{name.removesuffix('cos')}sin")
        tables = [streamed(each) for each in (cos, sin) if each is not None and name.endswith(".cos")]
        if len(tables) != 2 or cos.dtype != ir.DataType.FLOAT:
            continue
        exact = [each.values[each.source.parameters[0]] for each in tables if each is not None]
        parts = parts_of(*exact)
        if parts is None:
            continue
        emit = NodeBuilder(name.removesuffix(".cos"))
        for old, new in zip((cos, sin), _computed(emit, parts, len(exact[0])), strict=True):
            assert old is not None
            new.dtype, new.shape = ir.DataType.FLOAT, old.shape
            ir.convenience.replace_all_uses_with(old, new)
            remove_initializer(model, old)
        model.graph.insert_before(model.graph[0], emit.nodes)
        report.fire(emit.nodes[-1])
    return report


def computed_tables(constants: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the tables that this pass computes. constants: those of a model, by name, in float64."""
    found: set[str] = set()
    for name in constants:
        other = f"{name.removesuffix('cos')}sin"
        if name.endswith(".cos") and other in constants and parts_of(constants[name], constants[other]) is not None:
            found |= {name, other}
    return found


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
