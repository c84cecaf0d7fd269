"""Every pass keeps what the graph computes, reports what it changed, and says why it left what it left.

A small decoder is captured in float64. Before and after each pass the graph is decomposed and run: the
key/value caches of the last layer, which everything before flows into, must agree to 1e-12.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx_ir.passes.common import InlinePass

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import DecoderConfig, NormConfig, QKNormConfig
from edgeformer.contract.tensors import LOGITS_LENGTH, LOGITS_START
from edgeformer.errors import ExportError
from edgeformer.export.capture.trace import capture
from edgeformer.export.graph.editing import streamed
from edgeformer.export.graph.function_bodies import decompose_all
from edgeformer.export.lower import LoweringOptions, lower
from edgeformer.export.lower.ort.attention.attention import lower_attention
from edgeformer.export.passes import (
    fold_rotary,
    fuse_skip_norm,
    make_optional,
    optional_logits,
    pack_qkv,
    transpose_weights,
)
from edgeformer.export.quantize.quantized_tensor import QuantizedTensor
from edgeformer.families import read_model_config
from edgeformer.manifest.parts import ScaledOutputs
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.models import Decoder
from edgeformer.models.model_spec import model_spec_of

LAYERS = 2
NORMS = ("attention_norm", "feed_forward_norm")


def config(**options) -> DecoderConfig:
    data = {
        "model_type": "llama", "vocab_size": 31, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 32, "attention_bias": True,
    }  # fmt: skip
    return read_model_config(data | options)[1]


def captured(model: DecoderConfig, build=None, dtype=torch.float64) -> ir.Model:
    model_spec = model_spec_of(model)
    model_spec = replace(model_spec, build=build) if build else model_spec
    return capture(*model_spec.graphs, model_spec, RandomWeights(model, 0), dtype)


def after_a_run(graph: ir.Model, model: DecoderConfig, more: dict[str, np.ndarray] | None = None) -> list[np.ndarray]:
    """Logits, and caches of all layers, after 4 tokens that follow 3; run on a decomposed copy. more: other inputs."""
    copy = ir.serde.deserialize_model(ir.serde.serialize_model(graph))
    decompose_all(copy)
    session = ort.InferenceSession(ir.serde.serialize_model(copy).SerializeToString())
    random = np.random.default_rng(0)
    geometry = model.cache_geometry
    feeds = {"input_ids": random.integers(0, model.vocab_size, (1, 4)), "attention_mask": np.ones((1, 7), np.int64)}
    feeds |= {tensor.past: random.normal(size=tensor.shape(1, 3)) for tensor in geometry.tensors()}
    return session.run(None, feeds | (more or {}))


def caches_after_a_run(graph: ir.Model, model: DecoderConfig) -> list[np.ndarray]:
    return after_a_run(graph, model)[1:]


def assert_keeps_the_maths(graph: ir.Model, model: DecoderConfig, rewrite):
    before = caches_after_a_run(graph, model)
    report = rewrite(graph)
    for old, new in zip(before, caches_after_a_run(graph, model), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=1e-12)
    return report


def count(graph: ir.Model, op_type: str) -> int:
    return sum(node.op_type == op_type for node in graph.graph)


def test_transpose_weights_folds_every_weight_of_a_matmul():
    model = config()
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, transpose_weights)
    assert (report.changed, report.missed) == (7 * LAYERS + 1, [])
    assert count(graph, "Transpose") == 0


def test_transpose_weights_leaves_a_tied_embedding():
    model = config(tie_word_embeddings=True)
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, transpose_weights)
    assert report.changed == 7 * LAYERS
    assert report.missed == ["head/Transpose: embedding.weight is also read untransposed (tied)"]


@pytest.mark.parametrize("interleaved", [False, True])
def test_fold_rotary_turns_inside_the_attention(interleaved):
    model = config()
    rotary = replace(model.blocks[0].attention.rotary, interleaved=interleaved)
    blocks = tuple(replace(block, attention=replace(block.attention, rotary=rotary)) for block in model.blocks)
    model = replace(model, blocks=blocks)
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, fold_rotary)
    assert (report.changed, report.missed) == (LAYERS, [])
    assert count(graph, "RotaryEmbedding") == count(graph, "TokenPositions") == 0


def test_fold_rotary_leaves_sizes_without_a_kernel():
    model = config()
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, lambda graph: fold_rotary(graph, accepts=lambda *sizes: False))
    assert report.changed == 0
    assert report.missed[0] == "blocks.0.attention/GroupQueryAttention: no kernel rotates 16 of 16 elements"


def test_fold_rotary_leaves_positions_not_of_the_cache():
    class Shifted(Decoder):
        """As if the model counted positions from 1 in its first token only by convention of its own."""

        def embed(self, *inputs):
            x, run = super().embed(*inputs)
            return x, replace(run, positions=run.positions + 1)

    model = config()
    graph = captured(model, build=lambda dtype: Shifted(model, dtype))
    report = assert_keeps_the_maths(graph, model, fold_rotary)
    assert report.changed == 0
    assert "positions are not the cache positions of the attention mask" in report.missed[0]


def test_pack_qkv_makes_one_product_of_three():
    model = config()
    graph = captured(model)
    transpose_weights(graph)
    fold_rotary(graph)
    products = count(graph, "MatMul")
    report = assert_keeps_the_maths(graph, model, pack_qkv)
    assert (report.changed, report.missed) == (LAYERS, [])
    assert count(graph, "MatMul") == products - 2 * LAYERS
    assert tuple(graph.graph.initializers["blocks.0.attention.qkv.weight"].shape) == (32, (4 + 2 + 2) * 16)


def test_pack_qkv_leaves_projections_that_are_rotated_outside():
    model = config()
    graph = captured(model)
    transpose_weights(graph)
    report = assert_keeps_the_maths(graph, model, pack_qkv)
    assert report.changed == 0
    assert report.missed[0].endswith("query, key or value is not a plain projection")


def test_fuse_skip_norm_takes_every_residual_but_no_bias():
    model = config(mlp_bias=True)
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, fuse_skip_norm)
    assert (report.changed, report.missed) == (2 * LAYERS, [])
    assert count(graph, "RMSNorm") == 1  # the first, with nothing before it to add


def with_norm(**fields) -> DecoderConfig:
    plain = config()
    norm = replace(plain.final_norm, **fields)
    return replace(plain, final_norm=norm, blocks=tuple(replace(block, norm=norm) for block in plain.blocks))


@pytest.mark.parametrize("bias", [False, True])
def test_fuse_skip_norm_takes_layer_norms_too(bias):
    model = with_norm(kind="layer_norm", bias=bias)
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, fuse_skip_norm)
    assert (report.changed, report.missed) == (2 * LAYERS, [])
    assert (count(graph, "SkipLayerNorm"), count(graph, "LayerNormalization")) == (2 * LAYERS, 1)


def test_fuse_skip_norm_leaves_norms_without_a_weight():
    """torch gives LayerNorm a weight of ones that is made from the sum itself, which the fused op would wait for."""
    model = with_norm(kind="layer_norm", weight=False)
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, fuse_skip_norm)
    assert report.changed == 0
    assert report.missed == [
        f"{name}/LayerNormalization: it has no weight"
        for name in (*(f"blocks.{layer}.{norm}" for layer in range(LAYERS) for norm in NORMS), "final_norm")
        if name != "blocks.0.attention_norm"
    ]


def test_fuse_skip_norm_keeps_nodes_in_an_order_that_can_run():
    """The weight of an offset norm is made by a node, which may stand behind the sum that the norm is fused with."""
    model = with_norm(offset=1.0)
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, fuse_skip_norm)
    assert report.changed == 2 * LAYERS
    made = set(graph.graph.inputs) | set(graph.graph.initializers.values())
    for node in graph.graph:
        assert made.issuperset(value for value in node.inputs if value is not None), node.name
        made |= set(node.outputs)


def test_all_passes_in_the_order_of_the_lowering():
    model = config(tie_word_embeddings=True)
    graph = captured(model)

    def rewrite(graph):
        return [each(graph).changed for each in (transpose_weights, fold_rotary, pack_qkv, fuse_skip_norm)]

    assert assert_keeps_the_maths(graph, model, rewrite) == [7 * LAYERS, LAYERS, LAYERS, 2 * LAYERS]


def test_a_pass_that_fires_less_often_than_it_must_is_an_error():
    graph = captured(config(), dtype=torch.float32)
    with pytest.raises(ExportError, match="pass pack_qkv changed 2 places where this model has 3. This is a bug"):
        lower(graph, LoweringOptions(), expected={"pack_qkv": LAYERS + 1})


def test_the_ort_graph_has_nothing_but_the_ops_it_should():
    graph = captured(config(), dtype=torch.float32)
    lowered = lower(graph, LoweringOptions())
    assert lowered.fallbacks == []
    assert {node.domain for node in graph.graph} == {"", "com.microsoft", "edgeformer"}
    InlinePass()(graph)
    contrib = {node.op_type for node in graph.graph if node.domain == "com.microsoft"}
    assert contrib == {"GroupQueryAttention", "SkipSimplifiedLayerNormalization"}
    assert {node.domain for node in graph.graph} == {"", "com.microsoft"}


INT4 = make_quantization("int4", QuantizationOverrides(block=16))


@pytest.mark.parametrize(("options", "dtype", "lowering", "scaled"), [
    ({}, torch.float32, LoweringOptions(), 2),
    ({"attention_bias": False}, torch.float32, LoweringOptions(), 1),
    ({"head_dim": 64}, torch.float32, LoweringOptions(quantization=INT4), 2),
    ({"attention_bias": False}, torch.float32, LoweringOptions(quantization=INT4), 1),
    # What is no power of two costs digits, which rounded scales have not.
    ({"head_dim": 32}, torch.float32, LoweringOptions(), 0),
    ({"head_dim": 32}, torch.float32, LoweringOptions(quantization=INT4), 0),
    ({"head_dim": 32, "attention_bias": False}, torch.float32, LoweringOptions(quantization=INT4), 1),
    ({}, torch.float16, LoweringOptions(), 0),
])  # fmt: skip
def test_query_weights_are_scaled_where_no_digit_is_lost(options, dtype, lowering, scaled):
    """scaled: tensors a block, integers apart from their scales not counted."""
    chosen = config(**options)
    graph = captured(chosen, dtype=dtype)
    lower(graph, lowering)
    head_dim = options.get("head_dim", 16)
    kernels = [node for node in graph.graph if node.op_type in ("GroupQueryAttention", "CachedAttention")]
    assert [kernel.attributes.get_float("scale") for kernel in kernels] == [1] * LAYERS
    assert count(graph, "Mul") == LAYERS * (2 if scaled else 3), "two of gates, and one of queries"
    tensors = [streamed(value) for value in graph.graph.initializers.values()]
    found = [tensor for tensor in tensors if tensor is not None and tensor.source.scaled is not None]
    assert {tensor.source.scaled for tensor in found} <= {ScaledOutputs(outputs=4 * head_dim, factor=head_dim**-0.5)}
    assert len([each for each in found if getattr(each, "part", "scales") == "scales"]) == scaled * LAYERS
    assert all(".attention.qkv." in (tensor.name or "") for tensor in found)
    for tensor in found:
        stored = tensor.read().float()
        tensor.source = replace(tensor.source, scaled=None)
        whole, quantized = tensor.read().float(), isinstance(tensor, QuantizedTensor)
        axis = 0 if quantized else -1
        factor = 1 if quantized and tensor.part == "integers" else head_dim**-0.5
        width = 4 * head_dim
        for part, expected in ((slice(0, width), factor * whole), (slice(width, None), whole)):
            rows = stored.movedim(axis, 0)[part], expected.movedim(axis, 0)[part]
            torch.testing.assert_close(*rows, rtol=1e-6, atol=0)


def test_scaling_queries_leaves_other_graphs_of_a_capture_alone():
    graph = captured(config(), dtype=torch.float32)
    before = {name: streamed(value) for name, value in graph.graph.initializers.items()}
    weight = before["blocks.0.attention.query.weight"]
    transpose_weights(graph)
    fold_rotary(graph, accepts=lambda head_dim, rotary_dim: True)
    joined = streamed(graph.graph.initializers["blocks.0.attention.query.weight"])
    lower_attention(graph, LoweringOptions())
    now = streamed(graph.graph.initializers["blocks.0.attention.query.weight"])
    assert (weight.source.scaled, joined.source.scaled) == (None, None)
    assert torch.equal(now.read(), joined.read() * 0.25)


@pytest.mark.parametrize("over", ["head", "projection"])
@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("head_dim", [16, 32])
def test_norms_of_queries_take_over_the_scale(over, folded, head_dim):
    """Where attention rotates by itself and where it does not; not that of heads of 32, which is no power of two."""
    chosen, takes_over = config(head_dim=head_dim), head_dim == 16
    norm = QKNormConfig(norm=NormConfig(kind="rms_norm", eps=1e-6), over=over)
    blocks = tuple(replace(block, attention=replace(block.attention, qk_norm=norm)) for block in chosen.blocks)
    graph = captured(replace(chosen, blocks=blocks), dtype=torch.float32)
    transpose_weights(graph)
    fold_rotary(graph, accepts=lambda head_dim, rotary_dim: folded)
    weight = graph.graph.initializers["blocks.0.attention.query_norm.weight"]
    before = streamed(weight).read()
    lower_attention(graph, LoweringOptions())
    assert [each.attributes.get_float("scale") for each in attentions(graph)] == [1] * LAYERS
    assert [each.inputs[0].producer().op_type == "Mul" for each in attentions(graph)] == [not takes_over] * LAYERS
    assert torch.equal(streamed(weight).read(), before * (0.25 if takes_over else 1))
    key = streamed(graph.graph.initializers["blocks.0.attention.key_norm.weight"])
    assert key.source.scaled is None


def attentions(graph):
    return [node for node in graph.graph if node.op_type == "GroupQueryAttention"]


def test_weights_that_somebody_else_reads_stay_as_they_are():
    graph = captured(config(), dtype=torch.float32)
    transpose_weights(graph)
    fold_rotary(graph, accepts=lambda head_dim, rotary_dim: True)
    shared, own = (graph.graph.initializers[f"blocks.{layer}.attention.query.weight"] for layer in (0, 1))
    graph.graph.outputs.append(shared)
    lower_attention(graph, LoweringOptions())
    assert streamed(shared).source.scaled is None
    assert streamed(own).source.scaled == ScaledOutputs(outputs=64, factor=0.25)
    first, second = (node for node in graph.graph if node.op_type == "GroupQueryAttention")
    assert (first.inputs[0].producer().op_type, second.inputs[0].producer().op_type) == ("Mul", "Add")


@pytest.mark.parametrize("packed", [True, False])
def test_on_the_cpu_queries_are_scaled_before_the_kernel(packed):
    graph = captured(config(head_dim=32), dtype=torch.float32)
    if packed:
        lower(graph, LoweringOptions())
        InlinePass()(graph)
    else:
        lower_attention(graph, LoweringOptions())
    constants = {name: value.const_value.numpy() for name, value in graph.graph.initializers.items()}
    constants |= {
        node.outputs[0].name: node.attributes["value"].as_tensor().numpy()
        for node in graph.graph
        if node.op_type == "Constant"
    }
    heads, kv_heads, head_dim = 4, 2, 32
    kernels = [node for node in graph.graph if node.op_type == "GroupQueryAttention"]
    assert len(kernels) == LAYERS
    for kernel in kernels:
        factors = constants[kernel.inputs[0].producer().inputs[1].name]
        assert kernel.attributes.get_float("scale") == 1
        expected = np.full(heads * head_dim, head_dim**-0.5)
        if packed:
            expected = np.concatenate([expected, np.ones(2 * kv_heads * head_dim)])
        np.testing.assert_allclose(np.broadcast_to(factors, expected.shape), expected, rtol=1e-7)


def test_on_cuda_the_kernel_scales():
    graph = captured(config(), dtype=torch.float16)
    lower(graph, LoweringOptions(provider="cuda"))
    scales = [each.attributes.get_float("scale") for each in graph.graph if each.op_type == "GroupQueryAttention"]
    assert scales == [16**-0.5] * LAYERS


@pytest.mark.parametrize("causal", [True, False])
def test_only_attention_both_ways_says_that_it_is_not_causal(causal):
    graph = captured(config(), dtype=torch.float32)
    for node in graph.graph:
        if node.op_type == "GroupQueryAttention":
            node.attributes["causal"] = ir.AttrInt64("causal", int(causal))
    lower(graph, LoweringOptions())
    InlinePass()(graph)
    said = [each.attributes.get("causal") for each in graph.graph if each.op_type == "GroupQueryAttention"]
    # onnxruntime up to 1.29.0 does not know the attribute, and loads no graph that has it.
    assert [each and each.as_int() for each in said] == [None if causal else 0] * LAYERS


def test_a_float32_graph_for_cuda_has_no_attention_kernel():
    graph = captured(config(), dtype=torch.float32)
    lowered = lower(graph, LoweringOptions(provider="cuda"))
    reason = "GroupQueryAttention decomposed in 2 places: there is no float32 CUDA kernel (float16 has one)"
    assert lowered.fallbacks == [reason]
    assert count(graph, "GroupQueryAttention") == 0


LAST = f"blocks.{LAYERS - 1}"


def products(names):
    return {name.split("/")[0].removeprefix(f"{LAST}.") for name in names if "/MatMul" in name}


def assert_gives_the_last_logits(graph: ir.Model, model: DecoderConfig, place=-1):
    """place: of the token whose logits must be those of the run."""
    logits, *caches = after_a_run(graph, model)
    report = optional_logits(graph)
    alone, *same = after_a_run(graph, model, {LOGITS_START: np.array([-1])})
    assert alone.shape == (1, 1, model.vocab_size)
    for old, new in zip((logits[:, [place]], *caches), (alone, *same), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=1e-12)
    return report


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tie_word_embeddings": True},
        {"model_type": "gemma2", "sliding_window": 4, "final_logit_softcapping": 5.0},
        {"model_type": "cohere", "logit_scale": 0.3, "head_dim": 8},
    ],
    ids=["llama", "tied", "norms on both sides and a cap", "parallel branches"],
)
def test_one_token_is_left_behind_the_last_attention(options):
    model = config(**options)
    graph = captured(model)
    report = assert_gives_the_last_logits(graph, model)
    assert report.missed == []
    behind = {f"feed_forward.{name}" for name in ("gate", "up", "down")} | {"attention.output", "head"}
    assert products(report.places) == behind
    cut = [node.inputs[0].shape for node in graph.graph if node.name in report.places and node.op_type == "MatMul"]
    assert [shape[1] for shape in cut] == [LOGITS_LENGTH] * len(behind)


def test_what_somebody_else_reads_is_left_whole():
    model = config()
    graph = captured(model)
    [norm] = (node for node in graph.graph if node.name == "final_norm/RMSNorm")
    graph.graph.outputs.append(norm.inputs[0])
    report = assert_gives_the_last_logits(graph, model)
    assert products(report.places) == {"head"}


def with_mixed_logits(model):
    """A graph whose logits of a token depend on those of the others."""
    graph = captured(model)
    [logits] = (value for value in graph.graph.outputs if value.name == "logits")
    mixed = ir.node("Softmax", [logits], {"axis": 1}, name="mixing").outputs[0]
    graph.graph.insert_after(logits.producer(), mixed.producer())
    logits.name, mixed.name, mixed.type, mixed.shape = "mixed", "logits", logits.type, logits.shape
    graph.graph.outputs[0] = mixed
    return graph


def test_logits_that_mix_tokens_are_left_whole():
    model = config()
    graph = with_mixed_logits(model)
    before = after_a_run(graph, model)
    names = [value.name for value in graph.graph.inputs]
    report = optional_logits(graph)
    assert [value.name for value in graph.graph.inputs] == names
    assert (report.changed, report.missed) == (0, ["mixing: no product with a weight makes the logits"])
    for old, new in zip(before, after_a_run(graph, model), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("start", [None, 0, 2, -1, -3])
@pytest.mark.parametrize("options", [{}, {"model_type": "cohere", "logit_scale": 0.3, "head_dim": 8}])
def test_an_optional_input_says_where_logits_begin(options, start):
    model = config(**options)
    graph = captured(model)
    logits, *caches = after_a_run(graph, model)
    report = optional_logits(graph)
    assert report.missed == [] and report.changed > 0
    make_optional(graph, model.context_length)
    assert LOGITS_START not in {value.name for value in graph.graph.inputs}
    graph.graph.inputs.append(graph.graph.initializers[LOGITS_START])  # as the runtime opens it
    given = {} if start is None else {LOGITS_START: np.array([start])}
    some, *same = after_a_run(graph, model, given)
    for old, new in zip((logits[:, start or 0 :], *caches), (some, *same), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=1e-12)


def test_the_last_token_is_not_any_token():
    """The check above would find another one."""
    model = config()
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_gives_the_last_logits(captured(model), model, place=-2)
