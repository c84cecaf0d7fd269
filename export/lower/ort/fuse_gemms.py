"""Fuse the products of a module that read the same input (horizontal GEMM fusion).

    x → QuantizedMatMul(W₁) → y₁
    x → QuantizedMatMul(W₂) → y₂     becomes     x → QuantizedMatMul([W₁ W₂]) → Split → y₁, y₂

Requires a CPU, one block-wise format, weights that nothing else reads and whose outputs are not scaled, no biases,
which the kernel adds itself only without a Split behind it, and that no result is an output of the graph.

The product of one token is so short that starting its threads takes a noticeable part of it: with gate and up fused, a
decode step of SmolLM2-135M takes 2 to 5 % less time on an Intel and on an AMD CPU, one of TinyLlama-1.1B 0 to 2 % less.
"""

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import (
    add_initializer,
    canonical_nodes,
    dtype_of,
    read_once,
    remove_if_unused,
    same_type,
    streamed,
)
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.quantize.quantized_tensor import QuantizedMatrix, QuantizedTensor, concatenate_matrices


def fuse_gemms(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Fuse all products that meet the requirements."""
    report = PassReport("fuse_gemms")
    groups: dict[object, list[ir.Node]] = {}
    for node in canonical_nodes(model, "QuantizedMatMul"):
        if lowering.rules.fuses_products and all(map(_is_fusible, node.inputs[1:])) and not _biased(node.outputs[0]):
            matrix = _matrix(node)
            groups.setdefault((node.inputs[0], matrix.form, _module(matrix)), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            report.fire(nodes[0])
            _fuse(model, nodes)
    return report


def _is_fusible(weight: ir.Value | None) -> bool:
    tensor = streamed(weight)
    return (
        isinstance(tensor, QuantizedTensor)
        and read_once(weight)  # type: ignore[arg-type]
        and tensor.matrix.columns
        and tensor.matrix.form.block is not None
        and tensor.source.scaled is None
    )


def _biased(product: ir.Value) -> bool:
    """Whether a weight is added to a product, or a client may add one because the product is a graph output."""
    added = [value for node in product.consumers() if node.op_type == "Add" for value in node.inputs]
    return product.is_graph_output() or any(streamed(value) is not None for value in added)


def _matrix(node: ir.Node) -> QuantizedMatrix:
    """Return the weight of a quantized product."""
    return streamed(node.inputs[1]).matrix  # type: ignore[union-attr]


def _module(matrix: QuantizedMatrix) -> str:
    """Return the module of a layer: blocks.0.feed_forward of blocks.0.feed_forward.gate.weight."""
    return _layer(matrix).rpartition(".")[0]


def _layer(matrix: QuantizedMatrix) -> str:
    return (matrix.tensor.name or "").removesuffix(".weight")


def _fuse(model: ir.Model, nodes: list[ir.Node]) -> None:
    first, matrices = nodes[0], [_matrix(node) for node in nodes]
    layers = "_".join(_layer(matrix).rpartition(".")[2] for matrix in matrices)
    name = ".".join(filter(None, [_module(matrices[0]), layers, "weight"]))
    weights = [add_initializer(model, part) for part in concatenate_matrices(name, matrices).parts()]
    sizes = [node.attributes.get_int("outputs") for node in nodes]
    x, form, emit = first.inputs[0], matrices[0].form, NodeBuilder.replacing(first, "fused by fuse_gemms")
    product = emit(
        "QuantizedMatMul", x, *weights,
        domain=DOMAIN,
        bits=form.product_bits,
        block=form.block or 0,
        inputs=first.attributes.get_int("inputs"),
        outputs=sum(sizes),
    )  # fmt: skip
    product.dtype = dtype_of(x)
    results = emit.many("Split", product, emit.constant(sizes), outputs=len(nodes), axis=-1)
    model.graph.insert_before(first, emit.nodes)
    for node, result in zip(nodes, results, strict=True):
        same_type(result, node.outputs[0])
        node.outputs[0].replace_all_uses_with(result)
        remove_if_unused(model, node)
