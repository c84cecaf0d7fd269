"""Let products with weights take a LoRA adapter as inputs of the graph.

    x → MatMul(W) (+ b) → y     becomes     x → MatMul(W) (+ b) → Add → y
                                            x → MatMul(lora_A) → MatMul(lora_B) ↗

The inputs of the site W are W.lora_A [adapter_rows, in, rank] and W.lora_B [adapter_rows, rank, out]; adapter_rows is 1
for one adapter of all rows, or the batch. Where several parameters were joined to W, their ranks follow one another
in A, and B has a block for each (`pack`), with the factor of outputs that are scaled in W.

Requires MatMul or MatMulNBits: products that quantize activations per token read no x, and a tied head no W of its own.
A parameter that no such product reads is an ExportError.
"""

from collections.abc import Mapping

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.contract.ops import BLOCK_PRODUCT, PRODUCT
from edgeformer.errors import ExportError
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dtype_of, streamed
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.tensors import StreamedTensor, multiplied
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.quantize.quantized_tensor import QuantizedTensor
from edgeformer.lora.adapter_tensors import Update
from edgeformer.manifest.parts import StoredWeight

A, B = "lora_A", "lora_B"

Shapes = Mapping[str, tuple[int, ...]]


def add_low_rank(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Give every product with an adapted parameter the inputs of an adapter."""
    report, missing = PassReport("low_rank"), set(lowering.adapted)
    for node in list(model.graph) if missing else ():
        tensor = _weight(node)
        if tensor is not None and not lowering.adapted.isdisjoint(tensor.source.parameters):
            _adapt(model, node, tensor)
            report.fire(node)
            missing -= set(tensor.source.parameters)
    if missing:
        raise ExportError(
            f"an adapter changes {', '.join(sorted(missing)[:5])}, and no product of the graph can take it as input. "
            "Products with float weights, and with weights quantized in blocks, can, outside of experts and of a head "
            "that is tied to the embedding. Merge the adapter: --merge-adapter instead of --adapter."
        )
    return report


def sites(model: ir.Model) -> dict[str, StoredWeight]:
    """Return the sites of a graph, and how the matrix of each was made."""
    inputs = [value.name or "" for value in model.graph.inputs]
    names = {name.removesuffix(f".{A}") for name in inputs if name.endswith(f".{A}")}
    # Some nodes have become calls of functions by now, so the weights are found by themselves.
    weights = [tensor for value in model.graph.initializers.values() if (tensor := streamed(value)) is not None]
    found = {_site(tensor): StreamedTensor.stored(tensor) for tensor in weights if _site(tensor) in names}
    assert found.keys() == names, "a weight of a site was renamed"
    return found


def pack(site: StoredWeight, updates: Mapping[str, Update], shapes: Shapes) -> tuple[Tensor, Tensor]:
    """Return the inputs A [1, in, rank] and B [1, rank, out] of a site, in float64; of rank 1, zeros, without updates.

    updates: by parameter. shapes: of all parameters, [out, in] where the site is transposed.
    """
    sizes = [shapes[name] if site.transposed else shapes[name][::-1] for name in site.parameters]
    inputs = sizes[0][1]
    columns, blocks = [], []
    for name, (outputs, _) in zip(site.parameters, sizes, strict=True):
        update = updates.get(name)
        columns.append(torch.zeros(inputs, 0, dtype=torch.float64) if update is None else update.a.double().t())
        blocks.append(torch.zeros(0, outputs, dtype=torch.float64) if update is None else update.b.double().t())
    a, b = torch.cat(columns, 1), torch.block_diag(*blocks)
    if a.shape[1] == 0:
        a, b = a.new_zeros(inputs, 1), b.new_zeros(1, b.shape[1])
    return a[None], multiplied(b, site.scaled, -1)[None]


def _weight(node: ir.Node) -> StreamedTensor | None:
    """Return the weight [in, out] of a product."""
    if (node.domain, node.op_type) not in (PRODUCT.key, BLOCK_PRODUCT.key):
        return None
    tensor = streamed(PRODUCT.named(node.inputs)["B"])
    return tensor if tensor is not None and (isinstance(tensor, QuantizedTensor) or len(tensor.sizes) == 2) else None


def _site(tensor: StreamedTensor) -> str:
    matrix = tensor.matrix.tensor if isinstance(tensor, QuantizedTensor) else tensor
    return (matrix.name or "").removesuffix(".weight")


def _adapt(model: ir.Model, node: ir.Node, tensor: StreamedTensor) -> None:
    x, target = node.inputs[0], node.outputs[0]
    add = next((use.node for use in target.uses() if use.node.op_type == "Add"), None)
    if add is not None and len(target.uses()) == 1 and any(streamed(value) is not None for value in add.inputs):
        target = add.outputs[0]
    inputs, outputs = tensor.sizes if not isinstance(tensor, QuantizedTensor) else tensor.matrix.tensor.sizes
    a, b = (_input(model, _site(tensor), part, dtype_of(target), (inputs, outputs)) for part in (A, B))
    emit = NodeBuilder(f"{node.name}/low_rank")
    total = emit("Add", target, emit("MatMul", emit("MatMul", x, a), b))
    total.type, total.shape = target.type, target.shape
    assert not target.is_graph_output(), "heads are not adapted"
    uses = [use for use in target.uses() if use.node not in emit.nodes]
    for use in uses:
        use.node.replace_input_with(use.idx, total)
    owner = target.producer()
    assert owner is not None
    model.graph.insert_after(owner, emit.nodes)


def _input(model: ir.Model, site: str, part: str, dtype: ir.DataType, sizes: tuple[int, int]) -> ir.Value:
    """Return an input of a site, which two products with the same weight share."""
    name = f"{site}.{part}"
    known = next((value for value in model.graph.inputs if value.name == name), None)
    if known is not None:
        return known
    rank = f"{site}.rank"
    shape: list[int | str] = ["adapter_rows", sizes[0], rank] if part == A else ["adapter_rows", rank, sizes[1]]
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    model.graph.inputs.append(value)
    return value
