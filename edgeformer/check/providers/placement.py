"""Decide where onnxruntime runs each node of a graph that it opens with the provider of a device.

A node without a kernel of the device runs on the CPU, if there is one. Nodes that compute shapes run there on purpose:
they read what is in the CPU's memory already, and what they return is wanted there
(onnxruntime/core/framework/fallback_cpu_capability.cc, and for plugins include/onnxruntime/ep/get_capability_utils.h).
`test_cuda_provider.py` and `test_webgpu_provider.py` in tests/check compare this with the providers themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgeformer.check.providers.kernel_table import KernelTable
from edgeformer.check.providers.typed_nodes import SHAPES, TypedNode, Value
from edgeformer.contract.ops import ATTENTION

INPUTS_ON_CPU: dict[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,), "CumSum": (1,), "Expand": (1,), "Loop": (0, 1), "If": (0,), "OneHot": (1,),
    "Pad": (1, 2, 3), "Range": (0, 1, 2), "ReduceMax": (1,), "ReduceMean": (1,), "ReduceMin": (1,), "ReduceSum": (1,),
    "ReduceL2": (1,), "Reshape": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,),
    "TopK": (1,), "Trilu": (1,), "Unsqueeze": (1,), ATTENTION.name: (ATTENTION.place("total_sequence_length"),),
}  # fmt: skip
"""Inputs that kernels of a device read from the CPU's memory, by op (InputMemoryType of their definitions)."""

HALF = frozenset({"float16", "bfloat16", "float8e4m3fn"})
"""Types that onnxruntime does not move to the CPU."""

Where = Literal["device", "host", "shape", "nowhere"]
"""device; host: for want of a kernel on the device; shape: on the host on purpose; nowhere: neither has a kernel."""


@dataclass(frozen=True)
class Placed:
    """A node, and where it runs. reason: why the device has no kernel of it."""

    node: TypedNode
    where: Where
    reason: str | None


def place(nodes: Sequence[TypedNode], table: KernelTable) -> list[Placed]:
    """Return where each node runs."""
    lacks = [table.why_not(table.provider, node.domain, node.op, node.version, node.types) for node in nodes]
    on_cpu = {
        each.name
        for node, reason in zip(nodes, lacks, strict=True)
        if reason is None and node.op in SHAPES and not node.domain
        for each in node.outputs
        if each is not None
    }
    placed = []
    for node, reason in zip(nodes, lacks, strict=True):
        where = _where(node, reason, on_cpu, table)
        # What a node without a kernel returns counts only if it reads from there: onnxruntime looks no further.
        if where == "shape" or (where == "host" and _reads(node, on_cpu)):
            on_cpu.update(each.name for each in node.outputs if each is not None)
        placed.append(Placed(node, where, reason))
    return placed


def _where(node: TypedNode, reason: str | None, on_cpu: set[str], table: KernelTable) -> Where:
    if reason is not None:
        own = table.why_not("cpu", node.domain, node.op, node.version, node.types)
        # onnxruntime casts to float32 around nodes without a float16 kernel on the CPU.
        wide = {name: "float" if kind == "float16" else kind for name, kind in node.types.items()}
        cast = own and table.why_not("cpu", node.domain, node.op, node.version, wide)
        return "nowhere" if cast else "host"
    wanted = INPUTS_ON_CPU.get(node.op, ())
    stays = all(_allows(each, place in wanted, on_cpu) for place, each in enumerate(node.inputs))
    lacks_kernel = table.why_not("cpu", node.domain, node.op, node.version, node.types)
    return "shape" if _reads(node, on_cpu) and stays and lacks_kernel is None else "device"


def _reads(node: TypedNode, on_cpu: set[str]) -> bool:
    return any(each is not None and each.name in on_cpu for each in node.inputs)


def _allows(value: Value | None, wanted_there: bool, on_cpu: set[str]) -> bool:
    """Whether an input lets its node run on the CPU: it is small, or there and not wanted there by the device."""
    if value is None or value.kind in HALF:
        return False
    return value.small or value.given or (value.name in on_cpu and not wanted_there)
