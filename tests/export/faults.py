"""Single faults of an exported Llama, as data: what each changes, and which nodes it is to be found in.

A fault is applied to a clean bundle, whose manifest and weights stay true: `plant` makes a folder with the faulty graph
in it. Faults of kind `config` export another config; `weights` rewrite the stored weights; `graph` edit the finished
graph. Each makes sure that it changed something.

They are made for a decoder of three or more blocks with biases, grouped heads and a square query projection whose
attention is one node: the one that `mutable_config` describes, tied or not.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from build_graph import build_graph
from onnx import GraphProto, NodeProto, helper, numpy_helper
from torch import Tensor

from edgeformer.checkpoints.weights import Weights
from edgeformer.config import DecoderConfig, LinearScaling, NormConfig, RotaryConfig
from edgeformer.contract import ops
from edgeformer.export.bundle.writer import GraphWriter
from edgeformer.export.lower import job_of_bundle
from edgeformer.families import read_model_config
from edgeformer.manifest.manifest import Manifest
from edgeformer.models import model_constants
from edgeformer.models.model_spec import model_spec_of

Parameters = dict[str, Tensor]
Kind = Literal["config", "weights", "graph"]
Head = Literal["tied", "untied"]

# What float16 cannot tell from rounding, node by node.
BELOW_FP16 = {"eps of all block norms", "eps of the final norm", "eps of one norm", "RoPE base"}

ATTENTION = "blocks.1.attention/GroupQueryAttention"
EVERY_ATTENTION = "blocks.*.attention/GroupQueryAttention"
EVERY_QKV = ("blocks.*.attention.qkv/*",)
QKV = ("blocks.1.attention.qkv/MatMul_0", "blocks.1.attention.qkv/Add_1")
FIRST_NORM = "blocks.0.attention_norm/RMSNorm"
ATTENTION_NORM = "blocks.1.attention_norm/RMSNorm"
FEED_FORWARD_NORM = "blocks.1.feed_forward_norm/RMSNorm"
ATTENDED = "blocks.1.attention.output/Add"
SIGMOID = "blocks.1.feed_forward/Sigmoid"
GATED = "blocks.1.feed_forward/Mul"
DOWN = "blocks.1.feed_forward.down/MatMul"
HEAD = "head/MatMul"
WITH_WEIGHTS = ("blocks.1.*norm/*", "blocks.1.attention.*/*", "blocks.1.feed_forward.*/*")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. apply: (config) → config, (parameters) → None or (graph, folder of the graph) → None, by kind.

    nodes: patterns of exactly those nodes that compute something else; tied_nodes: more of them where the head is the
    embedding. only: the models that can have it, by their head.
    """

    name: str
    kind: Kind
    apply: Callable[..., Any]
    nodes: tuple[str, ...]
    tied_nodes: tuple[str, ...] = ()
    only: Head | None = None

    def fits(self, config: DecoderConfig) -> bool:
        """Whether this model can have the fault."""
        return self.only is None or (self.only == "tied") == config.tied_head

    def expected(self, names: Iterable[str], config: DecoderConfig) -> list[str]:
        """The nodes that compute something else, out of all nodes of the faulty graph."""
        patterns = self.nodes + (self.tied_nodes if config.tied_head else ())
        return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def mutable_config(**options: Any) -> DecoderConfig:
    """A small Llama that can have every fault."""
    data = {
        "model_type": "llama", "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 64, "attention_bias": True, "mlp_bias": True,
    }  # fmt: skip
    return read_model_config(data | options)[1]


def plant(fault: Fault, clean: Path, folder: Path, manifest: Manifest, weights: Weights) -> None:
    """Make `folder` a copy of the clean bundle with one fault in it. manifest and weights: the true ones."""
    if fault.kind == "config":
        config = fault.apply(manifest.model)
        assert config != manifest.model, f"{fault.name} found nothing to change"
        job = job_of_bundle(manifest, model_spec_of(config), weights)
        graph, _ = build_graph(job.model_spec, weights, manifest.plan.precision, job.lowering)
        folder.mkdir(exist_ok=True)
        GraphWriter(folder, lambda what, part: None).write(graph, manifest.graph)
        return
    shutil.copytree(clean, folder, dirs_exist_ok=True)
    path = folder / manifest.graph
    model = onnx.load(path, load_external_data=False)
    if fault.kind == "weights":
        true = {name: weights[name] for name in weights} | model_constants(manifest.model)
        parameters = dict(true)
        fault.apply(parameters)
        changed = {name for name in true if not torch.equal(true[name], parameters[name])}
        assert changed, f"{fault.name} found nothing to change"
        store(model.graph, path.parent, manifest, parameters, changed)
    else:
        before = model.SerializeToString(deterministic=True)
        fault.apply(model.graph, path.parent)
        assert model.SerializeToString(deterministic=True) != before, f"{fault.name} found nothing to change"
        path.write_bytes(model.SerializeToString())


def store(graph: GraphProto, folder: Path, manifest: Manifest, parameters: Parameters, changed: set[str]) -> None:
    """Overwrite the external data of the weights that hold changed parameters."""
    for tensor in graph.initializer:
        stored = manifest.weights.get(tensor.name)
        if stored is None or changed.isdisjoint(stored.parameters):
            continue
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        parts = [parameters[name].to(torch.float64) for name in stored.parameters]
        joined = torch.cat([part.t() if stored.transposed else part for part in parts], -1)
        if stored.scaled is not None:
            joined[..., : stored.scaled.outputs] *= stored.scaled.factor
        data = joined.numpy().astype(dtype)
        assert data.shape == tuple(tensor.dims)
        where = {entry.key: entry.value for entry in tensor.external_data}
        with (folder / where["location"]).open("r+b") as file:
            file.seek(int(where["offset"]))
            file.write(data.tobytes())


# Faults of the config.


def with_attention(config: DecoderConfig, **changes: Any) -> DecoderConfig:
    blocks = tuple(replace(block, attention=replace(block.attention, **changes)) for block in config.blocks)
    return replace(config, blocks=blocks)


def with_rotary(config: DecoderConfig, **changes: Any) -> DecoderConfig:
    rotary = config.blocks[0].attention.rotary
    assert isinstance(rotary, RotaryConfig)
    return with_attention(config, rotary=replace(rotary, **changes))


def with_block_eps(config: DecoderConfig) -> DecoderConfig:
    return replace(config, blocks=tuple(replace(block, norm=NormConfig(eps=1e-5)) for block in config.blocks))


def with_gelu(config: DecoderConfig) -> DecoderConfig:
    feed_forward = replace(config.blocks[0].feed_forward, activation="gelu")
    return replace(config, blocks=tuple(replace(block, feed_forward=feed_forward) for block in config.blocks))


NORMS = ("blocks.*.attention_norm/RMSNorm", "blocks.*.feed_forward_norm/RMSNorm")

CONFIG_FAULTS = [
    ("eps of all block norms", with_block_eps, NORMS),
    ("eps of the final norm", lambda config: replace(config, final_norm=NormConfig(eps=1e-5)), ("final_norm/RMSNorm",)),
    ("RoPE pairs neighbours", lambda config: with_rotary(config, interleaved=True), (EVERY_ATTENTION,)),
    ("RoPE base", lambda config: with_rotary(config, base=10001.0), (EVERY_ATTENTION,)),
    ("RoPE scaled", lambda config: with_rotary(config, scaling=LinearScaling(factor=2.0)), (EVERY_ATTENTION,)),
    ("no RoPE", lambda config: with_attention(config, rotary=None), (EVERY_ATTENTION,)),
    # Which is in the weights that make queries.
    ("attention scale missing everywhere", lambda config: with_attention(config, scale=1.0), EVERY_QKV),
    # Gelu is one node where SiLU is two, so the products after it stand one name further on.
    ("another activation", with_gelu, ("blocks.*.feed_forward/Mul", "blocks.*.feed_forward.down/MatMul")),
    # What is missing cannot be out of line; the node after it reads something else.
    ("last layer missing", lambda config: replace(config, blocks=config.blocks[:-1]), ("final_norm/RMSNorm",)),
]


# Faults of the weights.


def changing(change: Callable[[Tensor], Tensor], *names: str) -> Callable[[Parameters], None]:
    """A fault that changes each of these parameters by itself."""

    def apply(parameters: Parameters) -> None:
        parameters.update({name: change(parameters[name]).contiguous() for name in names})

    return apply


def moving(names: dict[str, str]) -> Callable[[Parameters], None]:
    """A fault that puts other parameters (values) in the places of these (keys)."""

    def apply(parameters: Parameters) -> None:
        parameters.update({to: parameters[source] for to, source in names.items()})

    return apply


def of_layer(module: str, layer: int = 1) -> tuple[str, str]:
    return f"blocks.{layer}.{module}.weight", f"blocks.{layer}.{module}.bias"


def exchanging(a: tuple[str, ...], b: tuple[str, ...]) -> Callable[[Parameters], None]:
    """A fault that puts parameters in each other's places."""
    return moving(dict(zip(a + b, b + a, strict=True)))


def one_less(weight: Tensor) -> Tensor:
    return weight - 1


def heads_rolled(weight: Tensor) -> Tensor:
    """Every head in the place of the next."""
    return weight.roll(16, 0)


def times(factor: float) -> Callable[[Tensor], Tensor]:
    """Queries of heads of 16 are stored times a quarter."""
    return lambda weight: weight * factor


def a_row_late(weight: Tensor) -> Tensor:
    return weight.roll(1, 0)


def halves_interleaved(weight: Tensor) -> Tensor:
    """Rows of each head as a checkpoint has them whose RoPE pairs neighbours."""
    return weight.unflatten(0, (-1, 2, 8)).transpose(1, 2).flatten(0, 2)


def tile_zeroed(weight: Tensor) -> Tensor:
    changed = weight.clone()
    changed[16:32, 16:32] = 0
    return changed


def last_row_zeroed(weight: Tensor) -> Tensor:
    """A token that no feed has: only comparing the weights can see it."""
    changed = weight.clone()
    changed[-1] = 0
    return changed


def reshaped_for_transposed(weight: Tensor) -> Tensor:
    return weight.t().contiguous().view(weight.shape)


PROJECTIONS = ("attention.query", "attention.key", "attention.value", "attention.output")
PROJECTIONS += ("feed_forward.gate", "feed_forward.up", "feed_forward.down")
QUERY, KEY, VALUE, _, GATE, UP, _ = map(of_layer, PROJECTIONS)
WHOLE_LAYER = {f"blocks.1.{norm}.weight": f"blocks.0.{norm}.weight" for norm in ("attention_norm", "feed_forward_norm")}
WHOLE_LAYER |= {to: of for each in PROJECTIONS for to, of in zip(of_layer(each), of_layer(each, 0), strict=True)}

WEIGHT_FAULTS = [
    ("key-value heads swapped", changing(heads_rolled, *KEY, *VALUE), QKV),
    ("query heads in another order", changing(heads_rolled, *QUERY), QKV),
    ("queries not scaled", changing(times(4), *QUERY), QKV),
    ("values scaled for queries", changing(times(0.25), *VALUE), QKV),
    ("query weight transposed", changing(torch.t, QUERY[0]), QKV[:1]),
    ("queries and keys for neighbouring pairs", changing(halves_interleaved, *QUERY, *KEY), QKV),
    ("keys and values exchanged", exchanging(KEY, VALUE), QKV),
    ("query bias dropped", changing(torch.zeros_like, QUERY[1]), QKV[1:]),
    ("output bias negated", changing(torch.neg, of_layer("attention.output")[1]), (ATTENDED,)),
    ("gate and up exchanged", exchanging(GATE, UP), ("blocks.1.feed_forward.gate/*", "blocks.1.feed_forward.up/*")),
    ("one tile of a weight zeroed", changing(tile_zeroed, of_layer("feed_forward.down")[0]), (DOWN,)),
    ("one weight rounded to bfloat16", changing(Tensor.bfloat16, GATE[0]), ("blocks.1.feed_forward.gate/MatMul",)),
    # The nodes that have weights, all of them: the others still compute the right thing of what they read.
    ("one layer repeated", moving(WHOLE_LAYER), WITH_WEIGHTS),
    ("norm weight counted from zero", changing(one_less, "blocks.1.attention_norm.weight"), (ATTENTION_NORM,)),
    ("final norm weight of ones", changing(torch.ones_like, "final_norm.weight"), ("final_norm/RMSNorm",)),
    ("position tables a row late", changing(a_row_late, "rotary.0.cos", "rotary.0.sin"), (EVERY_ATTENTION,)),
    ("RoPE rotates backwards", changing(torch.neg, "rotary.0.sin"), (EVERY_ATTENTION,)),
]

# A tied head multiplies with the embedding.
EMBEDDING_FAULTS = [
    ("embedding a row late", changing(a_row_late, "embedding.weight")),
    ("an embedding of no feed zeroed", changing(last_row_zeroed, "embedding.weight")),
]


# Faults of the graph.


def node(graph: GraphProto, pattern: str) -> NodeProto:
    """The first node whose name fits."""
    return next(node for node in graph.node if fnmatch(node.name, pattern))


def setting(pattern: str, name: str, value: Any) -> Callable[[GraphProto, Path], None]:
    """A fault that sets one attribute."""

    def apply(graph: GraphProto, folder: Path) -> None:
        changed = node(graph, pattern)
        kept = [attribute for attribute in changed.attribute if attribute.name != name]
        del changed.attribute[:]
        changed.attribute.extend([*kept, helper.make_attribute(name, value)])

    return apply


def give_sink(graph: GraphProto, folder: Path) -> None:
    """Give one attention node sinks of zero, as an input: a call of a function has no attribute for them."""
    changed = node(graph, ATTENTION)
    inputs = next(op.inputs for op in (*ops.FUNCTIONS, ops.ATTENTION) if op.name == changed.op_type)
    heads = next(each.i for each in changed.attribute if each.name == "num_heads")
    kind = next(each.data_type for each in graph.initializer if each.name == changed.input[7])  # of cosines
    graph.initializer.append(helper.make_tensor("planted", kind, [heads], [0.0] * heads))
    changed.input.extend([""] * (inputs.index("head_sink") - len(changed.input)) + ["planted"])


def keep_head_as_it_is(graph: GraphProto, folder: Path) -> None:
    """Multiply by the tied embedding without its transposition."""
    changed = node(graph, HEAD)
    if changed.domain == ops.DOMAIN:
        changed.op_type = "MatMul"
    else:
        setting(HEAD, "transB", 0)(graph, folder)


def reading(pattern: str, index: int, read: str | Callable[[GraphProto], str]) -> Callable[[GraphProto, Path], None]:
    """A fault that makes a node read another value."""

    def apply(graph: GraphProto, folder: Path) -> None:
        node(graph, pattern).input[index] = read if isinstance(read, str) else read(graph)

    return apply


def output(pattern: str, index: int = 0) -> Callable[[GraphProto], str]:
    """The name of what a node makes."""
    return lambda graph: node(graph, pattern).output[index]


def constant(value: int) -> Callable[[GraphProto], str]:
    """A new constant, for constants are shared."""

    def make(graph: GraphProto) -> str:
        graph.initializer.append(helper.make_tensor("planted", onnx.TensorProto.INT64, [], [value]))
        return "planted"

    return make


def swapping(pattern: str, first: int, second: int, end: str = "input") -> Callable[[GraphProto, Path], None]:
    """A fault that exchanges two inputs, or two outputs, of a node."""

    def apply(graph: GraphProto, folder: Path) -> None:
        names = getattr(node(graph, pattern), end)
        names[first], names[second] = names[second], names[first]

    return apply


def regroup_heads(graph: GraphProto, folder: Path) -> None:
    """As many packed heads, grouped otherwise; the kernel refuses them for this cache."""
    setting(ATTENTION, "num_heads", 6)(graph, folder)
    setting(ATTENTION, "kv_num_heads", 1)(graph, folder)


def measure_batch(graph: GraphProto, folder: Path) -> None:
    setting("lengths/Shape*", "start", 0)(graph, folder)
    setting("lengths/Shape*", "end", 1)(graph, folder)


def another_op(graph: GraphProto, folder: Path) -> None:
    node(graph, SIGMOID).op_type = "Tanh"


def exchange_presents(graph: GraphProto, folder: Path) -> None:
    first, second = node(graph, "blocks.0.attention/GroupQueryAttention"), node(graph, ATTENTION)
    first.output[1], second.output[1] = second.output[1], first.output[1]


def ignore_mask(graph: GraphProto, folder: Path) -> None:
    """Every row counts as long as the longest."""
    node(graph, "lengths/ReduceSum*").input[0] = "planted_ones"
    equal = helper.make_node("Equal", ["attention_mask", "attention_mask"], ["planted_true"], name="planted/Equal")
    ones = helper.make_node("Cast", ["planted_true"], ["planted_ones"], name="planted/Cast", to=onnx.TensorProto.INT64)
    for place, added in enumerate((equal, ones)):
        graph.node.insert(place, added)


def skip_layer(graph: GraphProto, folder: Path) -> None:
    after, skipped = node(graph, "blocks.2.attention_norm/*"), node(graph, "blocks.1.attention_norm/*")
    after.input[0], after.input[1] = skipped.input[0], skipped.input[1]


def repeat_layer(graph: GraphProto, folder: Path) -> None:
    for each in graph.node:
        for index, name in enumerate(each.input):
            if name.startswith("blocks.2.") and each.name.startswith("blocks.2."):
                each.input[index] = name.replace("blocks.2.", "blocks.1.")


def untie_head(graph: GraphProto, folder: Path) -> None:
    """The head reads a copy of the embedding, and the copy is not the same."""
    embedding = next(tensor for tensor in graph.initializer if tensor.name == "embedding.weight")
    copy = numpy_helper.to_array(embedding, str(folder)) * np.array(1.01)
    dtype = helper.tensor_dtype_to_np_dtype(embedding.data_type)
    graph.initializer.append(numpy_helper.from_array(copy.astype(dtype), "planted"))
    node(graph, HEAD).input[1] = "planted"


def skip_final_norm(graph: GraphProto, folder: Path) -> None:
    """The head reads the sum that the final norm should have normalised."""
    norm = node(graph, "final_norm/RMSNorm")
    del norm.output[1:]
    norm.output.extend(["", "", "sum"])
    for each in graph.node:
        if each.input and each.input[0] == norm.output[0]:
            each.input[0] = "sum"


GRAPH_FAULTS = [
    ("eps of one norm", setting(FEED_FORWARD_NORM, "epsilon", 1e-3), (FEED_FORWARD_NORM,)),
    ("eps of the first norm", setting(FIRST_NORM, "epsilon", 1e-4), (FIRST_NORM,)),
    ("attention scale of the wrong power", setting(ATTENTION, "scale", 1 / 16), (ATTENTION,)),
    ("heads regrouped", regroup_heads, (ATTENTION,)),
    ("a window that should not be", setting(ATTENTION, "local_window_size", 4), (ATTENTION,)),
    ("a softcap that should not be", setting(ATTENTION, "softcap", 5.0), (ATTENTION,)),
    ("a sink that should not be", give_sink, (ATTENTION,)),
    ("RoPE of one layer pairs neighbours", setting(ATTENTION, "rotary_interleaved", 1), (ATTENTION,)),
    ("RoPE of one layer off", setting(ATTENTION, "do_rotary", 0), (ATTENTION,)),
    ("cosines and sines exchanged", swapping(ATTENTION, 7, 8), (ATTENTION,)),
    ("lengths one too long", reading("lengths/Sub*", 1, constant(0)), ("lengths/Sub*",)),
    ("lengths one too short", reading("lengths/Sub*", 1, constant(2)), ("lengths/Sub*",)),
    ("total length is the batch size", measure_batch, ("lengths/Shape*",)),
    ("mask ignored", ignore_mask, ("lengths/ReduceSum*",)),
    ("values of another layer's past", reading(ATTENTION, 4, "past_key_values.0.value"), (ATTENTION,)),
    ("past key and value exchanged", swapping(ATTENTION, 3, 4), (ATTENTION,)),
    ("present key and value exchanged", swapping(ATTENTION, 1, 2, "output"), (ATTENTION,)),
    ("present keys of two layers exchanged", exchange_presents, ("blocks.[01].attention/GroupQueryAttention",)),
    ("residual reads the norm", reading(FEED_FORWARD_NORM, 0, output(ATTENTION_NORM)), (FEED_FORWARD_NORM,)),
    ("residual dropped", reading(FEED_FORWARD_NORM, 0, output(ATTENDED)), (FEED_FORWARD_NORM,)),
    ("residual of another layer", reading(FEED_FORWARD_NORM, 0, output("embedding/*")), (FEED_FORWARD_NORM,)),
    ("Tanh for Sigmoid", another_op, (SIGMOID,)),
    ("gate not multiplied", reading(GATED, 0, output(SIGMOID)), (GATED,)),
    ("down projection of another layer", reading(DOWN, 1, "blocks.0.feed_forward.down.weight"), (DOWN,)),
    ("bias of another projection", reading(ATTENDED, 1, "blocks.1.feed_forward.down.bias"), (ATTENDED,)),
    # What was skipped is right by itself; the node after it reads the wrong value.
    ("layer skipped", skip_layer, ("blocks.2.attention_norm/RMSNorm",)),
    ("weights of the layer before", repeat_layer, tuple(each.replace("blocks.1", "blocks.2") for each in WITH_WEIGHTS)),
]  # fmt: skip

HEAD_FAULTS: list[tuple[str, Kind, Callable[..., None], Head]] = [
    ("head reshaped for transposed", "weights", changing(reshaped_for_transposed, "head.weight"), "untied"),
    ("head untied", "graph", untie_head, "tied"),
    ("tied head not transposed", "graph", keep_head_as_it_is, "tied"),
]

FAULTS: list[Fault] = [
    *(Fault(name=name, kind="config", apply=apply, nodes=nodes) for name, apply, nodes in CONFIG_FAULTS),
    *(Fault(name=name, kind="weights", apply=apply, nodes=nodes) for name, apply, nodes in WEIGHT_FAULTS),
    *(
        Fault(name=name, kind="weights", apply=apply, nodes=("embedding/Gather",), tied_nodes=(HEAD,))
        for name, apply in EMBEDDING_FAULTS
    ),
    *(Fault(name=name, kind="graph", apply=apply, nodes=nodes) for name, apply, nodes in GRAPH_FAULTS),
    Fault(name="final norm skipped", kind="graph", apply=skip_final_norm, nodes=(HEAD,)),
    *(Fault(name=name, kind=kind, apply=apply, nodes=(HEAD,), only=only) for name, kind, apply, only in HEAD_FAULTS),
]
