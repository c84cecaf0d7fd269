"""The windowed graph: layers with a sliding window keep no more tokens than the window in their cache.

    model.onnx           past_key_values.{i} [batch_size, K, past_sequence_length, D]   for any client
    model_windowed.onnx  past_key_values.{i} [batch_size, K, W, D] where layer i has a window of W tokens

Both read the same weight file. The windowed graph differs in one attribute of the attention nodes,
`sliding_window_cache`, and in the declared shapes: W tells a client how long the buffer of that layer must be. The op
evicts tokens itself, so a client must bind one buffer as past and present, and cannot enlarge it. The op refuses padded
batches of prompts: a client feeds prompts of several rows one by one, as our runtime does.

Where a graph calls a function for attention, the windowed graph calls one of another name (EVICTING), whose body has
the attribute.

A layer whose keys and values later layers read keeps all tokens: the op takes either an evicting cache, or one that an
earlier layer wrote.
"""

from pathlib import Path

import onnx
import onnx_ir as ir

from edgeformer.contract.ops import ATTENTION, WINDOWED
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.export.graph.outlining import trim_functions
from edgeformer.export.lower.providers import RULES
from edgeformer.manifest.providers import ProviderName

EVICTING = {each.name: evicting.name for each, evicting in WINDOWED.items()}
"""Functions whose cache evicts tokens, by those whose cache does not."""


def write_windowed_graph(
    graph: Path, windowed: Path, geometry: CacheGeometry, context_length: int, provider: ProviderName
) -> tuple[int | None, ...]:
    """Write the windowed form of a lowered graph and return the window of each layer in tokens.

    Writes nothing and returns () where no layer has a window shorter than the context, or none has a kernel for it.
    """
    model = onnx.load(graph, load_external_data=False)
    nodes = [node for node in model.graph.node if node.op_type in (ATTENTION.name, *EVICTING)]
    place = ATTENTION.outputs.index("present_key")
    attention = {node.output[place]: node for node in nodes if len(node.output) > place}
    read = {name for node in model.graph.node for name in node.input}
    windows: list[int | None] = [None] * geometry.num_layers
    declared = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    for tensor in geometry.tensors():
        node = attention.get(tensor.present)  # of the tensor that is the layer's key
        if node is not None and tensor.present not in read:
            windows[tensor.layer] = _window(node, context_length, provider)
            if windows[tensor.layer] is not None:
                _evict(model, node)
        window = windows[tensor.layer]
        if tensor.per_token and window is not None:
            for name in (tensor.past, tensor.present):
                declared[name].type.tensor_type.shape.dim[2].dim_value = window
    if not any(windows):
        return ()
    evicting = ir.from_proto(model)
    trim_functions(evicting)
    ir.save(evicting, windowed)
    return tuple(windows)


def _evict(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Let an attention, or the function that it calls, evict tokens."""
    evicting = node
    if node.op_type in EVICTING:
        called, node.op_type = node.op_type, EVICTING[node.op_type]
        if any(each.name == node.op_type for each in model.functions):
            return
        function = model.functions.add()
        function.CopyFrom(next(each for each in model.functions if each.name == called))
        function.name = node.op_type
        evicting = next(each for each in function.node if each.op_type == ATTENTION.name)
    evicting.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 1))


def _window(node: onnx.NodeProto, context_length: int, provider: ProviderName) -> int | None:
    """The window of an attention, where it is shorter than the context and the kernel can evict tokens."""
    if node.domain != ATTENTION.domain and node.op_type not in EVICTING:
        return None
    window = next(each.i for each in node.attribute if each.name == "local_window_size")
    biased = node.domain == ATTENTION.domain and ATTENTION.named(node.input).get("attention_bias", "") != ""
    evicts = RULES[provider].evicts and (RULES[provider].evicts_with_bias or not biased)
    return window if 0 < window < context_length and evicts else None
