"""Call both products of a feed-forward through one function of the model.

    MatMulNBitsBiasGelu → MatMulNBitsBias     becomes     MatMulNBitsFeedForward

Its body is theirs, one behind the other. Requires that nothing else reads what is between them. A kernel takes a few
rows through both, so that what is between stays in the processor's caches.
"""

from collections.abc import Mapping

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.editing import same_type
from edgeformer.export.lower.ort.kernels.epilogues import BIAS, BIAS_GELU, only_reader
from edgeformer.export.lower.ort.kernels.kernel_nodes import PRODUCT, function_of

NAME = f"{PRODUCT.name}FeedForward"

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "up": {"K": "K", "N": "F", "bits": "bits", "block_size": "block_size"},
    "down": {"K": "F", "N": "N", "bits": "down_bits", "block_size": "down_block_size"},
}
"""Attributes of the two products, and what they are called in calls of the function."""


def feed_forwards(model: ir.Model) -> list[dict[str, ir.Node]]:
    """Return the calls of products, by the keys of ATTRIBUTES, that make feed-forwards."""
    found = []
    for up in model.graph:
        down = only_reader(up.outputs[0]) if (up.domain, up.op_type) == (DOMAIN, BIAS_GELU) else None
        if down is not None and (down.domain, down.op_type) == (DOMAIN, BIAS) and down.inputs[0] is up.outputs[0]:
            found.append({"up": up, "down": down})
    return found


def call_feed_forward(model: ir.Model, products: Mapping[str, ir.Node]) -> ir.Function:
    """Put one call in the place of those of two products; return the function that it calls."""
    up, down = products["up"], products["down"]
    attributes = {
        new: ir.AttrInt64(new, products[each].attributes.get_int(old))
        for each, names in ATTRIBUTES.items()
        for old, new in names.items()
    }
    attributes["approximate"] = up.attributes["approximate"]
    call = ir.Node(
        DOMAIN, NAME, [*up.inputs, *down.inputs[1:]], list(attributes.values()),
        name=down.name, metadata_props=dict(down.metadata_props),
    )  # fmt: skip
    same_type(call.outputs[0], down.outputs[0])
    function = feed_forward_function({each: model.functions[node.op_identifier()] for each, node in products.items()})
    ir.convenience.replace_nodes_and_values(model.graph, down, [down], [call], down.outputs, call.outputs)
    model.graph.remove(up, safe=True)
    return function


def feed_forward_function(functions: Mapping[str, ir.Function]) -> ir.Function:
    """Return the function whose body is that of the first of these, and behind it that of the second.

    functions: of the two products, by the keys of ATTRIBUTES.
    """
    x = ir.Value(name="A")
    formal, copies = [x], []
    for each, function in functions.items():
        inside = {function.inputs[0]: x}
        for value in function.inputs[1:]:
            inside[value] = ir.Value(name=f"{each}_{value.name}")
            formal.append(inside[value])
        for node in function:
            given = [
                ir.RefAttr(attribute.name, ATTRIBUTES[each].get(attribute.name, attribute.name), attribute.type)
                if attribute.is_ref()
                else attribute
                for attribute in node.attributes.values()
            ]
            read = [None if value is None else inside[value] for value in node.inputs]
            copy = ir.Node(node.domain, node.op_type, read, given, name=f"{each}/{node.name}")
            copy.outputs[0].name = f"{each}_{node.outputs[0].name}"
            inside[node.outputs[0]] = copy.outputs[0]
            copies.append(copy)
        x = inside[function.outputs[0]]
    sizes = (new for names in ATTRIBUTES.values() for new in names.values())
    declared = dict.fromkeys(sizes, ir.AttributeType.INT) | {"approximate": ir.AttributeType.STRING}
    return function_of(NAME, formal, [x], copies, declared)
