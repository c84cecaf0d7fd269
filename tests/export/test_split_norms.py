"""A split of a packed projection and the norms of its heads become one call, unless something else reads between."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from build_graph import build_graph
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.export.lower import LoweringOptions
from edgeformer.export.lower.ort.kernels.split_norms import call_split_norm, split_norms
from edgeformer.families import read_model_config
from edgeformer.manifest.quantization import make_quantization
from edgeformer.models.model_spec import model_spec_of

HEADS, KV_HEADS, SIZE = 4, 2, 16


def test_norms_of_heads_are_done_with_their_split():
    data = {
        "model_type": "qwen3", "vocab_size": 31, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": SIZE,
        "max_position_embeddings": 32,
    }  # fmt: skip
    config, lowering = read_model_config(data)[1], LoweringOptions(quantization=make_quantization("int8"))
    graph, _ = build_graph(model_spec_of(config), RandomWeights(config, 0), lowering=lowering)
    found = Counter(node.op_type for node in graph.graph)
    assert [found[op] for op in ("SplitRMSNorm", "Split", "Reshape", "SimplifiedLayerNormalization")] == [2, 0, 0, 1]
    (function,) = (function for function in graph.functions.values() if function.name == "SplitRMSNorm")
    assert Counter(node.op_type for node in function)["Sqrt"] == 2
    call = next(node for node in graph.graph if node.op_type == "SplitRMSNorm")
    sizes = [value.const_value.numpy().tolist() for value in call.inputs[3:]]
    assert sizes == [[64, 32, 32], [0, 0, -1, SIZE]]


def split_and_norms(key_epsilon=1e-6, key_size=SIZE, outputs=("query", "key", "value")) -> ir.Model:
    """A graph of a split, and of the norms of its first two parts."""
    widths = {"query": HEADS * SIZE, "key": KV_HEADS * SIZE, "value": KV_HEADS * SIZE}
    shapes = {name: [1, 3, width] for name, width in widths.items()}
    constants = {"widths": list(widths.values()), "joined": [0, 0, -1]}
    nodes = [make_node("Split", ["A", "widths"], ["q", "k", "value"], axis=-1)]
    for part, name, epsilon, size in (("q", "query", 1e-6, SIZE), ("k", "key", key_epsilon, key_size)):
        constants[f"{part}_heads"] = [0, 0, -1, size]
        shapes |= {
            f"{part}_split": [1, 3, widths[name] // size, size],
            f"{part}_normed": [1, 3, widths[name] // size, size],
        }
        nodes += [
            make_node("Reshape", [part, f"{part}_heads"], [f"{part}_split"]),
            make_node(
                "SimplifiedLayerNormalization", [f"{part}_split", f"{part}_gamma"], [f"{part}_normed"],
                axis=-1, epsilon=epsilon,
            ),
            make_node("Reshape", [f"{part}_normed", "joined"], [name]),
        ]  # fmt: skip
    stored = [from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    stored += [from_array(np.ones(size, np.float32), f"{part}_gamma") for part, size in (("q", SIZE), ("k", key_size))]
    values = {name: make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    given = [make_tensor_value_info("A", TensorProto.FLOAT, [1, 3, sum(widths.values())])]
    between = [values[name] for name in values if name not in outputs]
    graph = make_graph(nodes, "g", given, [values[name] for name in outputs], stored, value_info=between)
    return ir.from_proto(make_model(graph, opset_imports=[make_opsetid("", 20)]))


def test_all_nodes_between_are_gone():
    graph = split_and_norms()
    (found,) = split_norms(graph)
    call_split_norm(graph, found)
    assert [node.op_type for node in graph.graph] == ["Constant", "SplitRMSNorm"]
    assert [value.name for value in graph.graph.outputs] == ["query", "key", "value"]


@pytest.mark.parametrize(
    "changes",
    [{"key_epsilon": 1e-5}, {"key_size": 8}, {"outputs": ("query", "key", "value", "k_normed")}],
    ids=["another epsilon", "heads of another size", "a reader beside attention"],
)
def test_other_norms_stay_as_they_are(changes):
    assert split_norms(split_and_norms(**changes)) == []
