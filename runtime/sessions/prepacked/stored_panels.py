"""Pack the weights of edgeformer's kernels for the graphs that `prepack.optimize` writes.

Kernels read weights in an order of their own ("panels"), into which they are packed whenever a session is opened. For
each op that does so, the library has another one that packs ahead: PackMatMulNBits for MatMulNBits. It tells what each
input of the node becomes, so nothing here knows an op by name. kernels/src/onnxruntime/packer.h has the other side.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.ops import DOMAIN
from edgeformer.errors import require
from edgeformer.runtime.sessions.kernels import KernelChoice
from edgeformer.runtime.sessions.session import onnxruntime, session_options, usable_cores

UNCHANGED, MISSING = -1, 0
"""Forms of an input of a node whose weights are packed, beside the number of bytes of the panels that it has."""

Bytes = NDArray[np.uint8]


def store_panels(model: Any, data: Path, kernels: KernelChoice, append: Callable[[Bytes], dict[str, str]]) -> list[Any]:
    """Pack the weights of nodes for which the library has a packing op; return the tensors of their panels.

    model: an `onnx.ModelProto`, whose nodes get panels for inputs. Tensors that no node reads any more leave it, and
    those of panels are not added. data: the file that has its tensors. append: is called with panels, and returns the
    external data entries of the place where it wrote them.
    """
    assert kernels.library is not None
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    panels: dict[str, Any] = {}
    stored: dict[bytes, dict[int, str]] = {}  # changed inputs, by the weights: nodes may share them
    packed: set[str] = set()
    for node in model.graph.node:
        if node.domain == DOMAIN and f"Pack{node.op_type}" in kernels.library.ops:
            packing = _packing_node(node, tensors)
            key = packing.SerializeToString(deterministic=True)
            if key not in stored:
                stored[key] = {}
                for index, content in _stored_inputs(packing, model, tensors, data, kernels).items():
                    name = "" if content is None else f"{node.input[index]}.panels.{len(panels)}"
                    if content is not None:
                        panels[name] = _tensor(name, content, tensors[node.input[index]].data_type, append(content))
                    stored[key][index] = name
            packed.update(node.input)
            for index, name in stored[key].items():
                node.input[index] = name
    unused = packed & tensors.keys() - set(_names_read(model.graph))
    kept = [tensor for name, tensor in tensors.items() if name not in unused]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return list(panels.values())


def _packing_node(node: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the node that packs the weights of another, of whose inputs it has the constants."""
    onnx = require("onnx", "export")
    packing = onnx.NodeProto(op_type=f"Pack{node.op_type}", domain=DOMAIN, output=["inputs", "panels"])
    packing.attribute.extend(sorted(node.attribute, key=lambda each: each.name))
    packing.input.extend(name if name in tensors else "" for name in node.input)
    return packing


def _stored_inputs(
    packing: Any, model: Any, tensors: Mapping[str, Any], data: Path, kernels: KernelChoice
) -> dict[int, Bytes | None]:
    """Run a packing node; return what becomes of inputs that change: their panels, or None for a missing one."""
    onnx = require("onnx", "export")
    kinds = (("inputs", onnx.TensorProto.INT64), ("panels", onnx.TensorProto.UINT8))
    outputs = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in kinds]
    constants = [_with_values(tensors[name], data) for name in dict.fromkeys(packing.input) if name]
    graph = onnx.helper.make_graph([packing], "pack", [], outputs, constants)
    alone = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = session_options(usable_cores())
    kernels.register(options)
    session = onnxruntime().InferenceSession(alone.SerializeToString(), options, providers=["CPUExecutionProvider"])
    forms, panels = session.run(None, {})
    stored: dict[int, Bytes | None] = {}
    for index, form in enumerate(forms.tolist()):
        if form == MISSING:
            stored[index] = None
        elif form != UNCHANGED:
            stored[index], panels = panels[:form], panels[form:]
    return stored


def _with_values(tensor: Any, data: Path) -> Any:
    """Return a tensor with its values in it: onnxruntime's file has them at any byte, and a session aligns them."""
    onnx = require("onnx", "export")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not entries:
        return tensor
    with data.open("rb") as file:
        file.seek(int(entries["offset"]))
        values = file.read(int(entries["length"]))
    return onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=values)


def _tensor(name: str, panels: Bytes, data_type: int, place: Mapping[str, str]) -> Any:
    """Return the tensor of panels that were written to a place. data_type: a kind of bytes, which the op wants."""
    onnx = require("onnx", "export")
    tensor = onnx.TensorProto(name=name, dims=[len(panels)], data_type=data_type)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _names_read(graph: Any) -> Iterator[str]:
    """Yield the names that a graph reads or returns, in its branches, too."""
    yield from (output.name for output in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for branch in (attribute.g, *attribute.graphs):
                yield from _names_read(branch)
