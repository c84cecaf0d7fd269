"""Layers that read an earlier layer's keys and values: the op, the passes, the lowering, caches, and verification."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx_ir.passes.common import InlinePass
from test_function_bodies import ATTENTION, body_of, check, random
from test_passes import assert_keeps_the_maths, captured, count
from test_wrong_blocks import RMS_NORM, failures
from test_wrong_blocks import model as one_block
from verification.false_positive_rate import export_random

from edgeformer import ops
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import QKNormConfig, ShawConfig
from edgeformer.errors import ConfigError, ExportError
from edgeformer.export.lower import LoweringOptions, lower
from edgeformer.export.passes import fold_rotary, pack_qkv, transpose_weights
from edgeformer.export.passes.expected_changes import expected_changes
from edgeformer.export.plan import make_plan
from edgeformer.manifest.accounting import account
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import model_spec_of
from edgeformer.options.export import ExportOptions
from edgeformer.runtime import load
from edgeformer.runtime.sessions.session import open_session

WINDOW = 6
MASKS = [
    (5, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),  # a right-padded first prompt
    (1, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),  # one step of rows of different lengths
    (3, [[1] * 7, [1] * 7]),  # a chunk after a past
]


def sharing(*shares, **options):
    """A model with one block for each of these: the index of the layer that it reads, or None for its own cache."""
    model = one_block(activation="silu", **options)
    (block,) = model.blocks
    blocks = tuple(replace(block, attention=replace(block.attention, shares=each)) for each in shares)
    return replace(model, blocks=blocks)


def tensors_of(new, mask, capacity=None, rotary=False):
    angles = random(32, 4, seed=5)
    cache = len(mask), 2, capacity or len(mask[0]), 8
    return {
        "query": random(len(mask), new, 4 * 8),
        "key": random(*cache, seed=1),
        "value": random(*cache, seed=2),
        "attention_mask": torch.tensor(mask),
        "cos": angles.cos() if rotary else None,
        "sin": angles.sin() if rotary else None,
        "attention_bias": None,
        "sinks": None,
    }


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(("new", "mask"), MASKS)
def test_body_and_op_agree(new, mask, rotary):
    tensors = tensors_of(new, mask, rotary=rotary)
    (output,) = check(ops.shared_attention, tensors, ATTENTION)
    tensors["key"] = tensors["key"].roll(1, dims=2)
    assert np.abs(output - ops.shared_attention(**tensors, **ATTENTION).numpy()).max() > 1e-3


@pytest.mark.parametrize(
    "features", [{"window": 2}, {"softcap": 0.5}, {"sinks": random(4, seed=6)}, {"bias": (2, 4)}], ids="-".join
)
def test_every_feature(features):
    new, mask = MASKS[2]
    features, tensors = dict(features), tensors_of(new, mask)
    plain = ops.shared_attention(**tensors, **ATTENTION)
    if shape := features.pop("bias", None):
        tensors["attention_bias"] = random(*shape, new, len(mask[0]), seed=8)
    tensors["sinks"] = features.pop("sinks", None)
    (output,) = check(ops.shared_attention, tensors, ATTENTION | features)
    assert np.abs(output - plain.numpy()).max() > 1e-3, "the feature changes nothing here, so this test cannot fail"


def test_it_reads_what_the_earlier_attention_wrote():
    """The attention that wrote the keys computes the same for the same query."""
    mask, new = [[1] * 7, [1] * 7], 3
    tensors = tensors_of(new, mask)
    key, value = random(2, new, 16, seed=3), random(2, new, 16, seed=4)
    past = random(2, 2, 4, 8, seed=5), random(2, 2, 4, 8, seed=6)
    expected, *present = ops.group_query_attention(
        tensors["query"], key, value, *past, tensors["attention_mask"], **ATTENTION
    )
    output = ops.shared_attention(tensors["query"], *present, tensors["attention_mask"], **ATTENTION)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)


def test_nothing_behind_the_valid_tokens_is_read():
    new, mask = MASKS[1]
    tensors = tensors_of(new, mask, capacity=9)
    clean = ops.shared_attention(**tensors, **ATTENTION).numpy()
    feeds = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for part in ("key", "value"):
        tensors[part][0, :, 5:] = tensors[part][1, :, 2:] = float("nan")
    actual = body_of(ops.shared_attention, tensors, ATTENTION)(**feeds)[0]
    for each in (actual, ops.shared_attention(**tensors, **ATTENTION).numpy()):
        np.testing.assert_allclose(each, clean, rtol=0, atol=1e-12)


def test_too_short_a_cache_is_an_error():
    tensors = tensors_of(1, [[1] * 5], capacity=4)
    with pytest.raises(ValueError, match="holds 4 positions but attention_mask has 5"):
        ops.shared_attention(**tensors, **ATTENTION)


def test_passes_count_projections_and_rotations():
    model = sharing(None, None, 0, 1, None)  # the cache of the last layer tells what the layers before it computed
    expected = expected_changes(model)
    assert (expected["fold_rotary"], expected["pack_qkv"]) == (5, 3)
    graph = captured(model)
    report = assert_keeps_the_maths(graph, model, fold_rotary)
    assert (report.changed, report.missed) == (5, [])
    assert count(graph, "RotaryEmbedding") == count(graph, "TokenPositions") == 0
    transpose_weights(graph)
    assert assert_keeps_the_maths(graph, model, pack_qkv).changed == 3


def test_fold_rotary_leaves_sizes_without_a_kernel():
    graph = captured(sharing(None, 0))
    report = assert_keeps_the_maths(graph, sharing(None, 0), lambda graph: fold_rotary(graph, lambda *sizes: False))
    assert report.changed == 0
    assert report.missed[1] == "blocks.1.attention/SharedAttention: no kernel rotates 16 of 16 elements"


def test_ort_gives_the_kernel_no_new_keys():
    graph = captured(sharing(None, 0), dtype=torch.float32)
    lowered = lower(graph, LoweringOptions(ops="ort", provider="cpu", cache_form="any"))
    rules = {rule.name: rule for rule in lowered.rules}
    assert (rules["SharedAttention"].changed, rules["SharedAttention"].missed) == (1, [])
    InlinePass()(graph)
    own, shared = [node for node in graph.graph if node.op_type == "GroupQueryAttention"]
    assert [value.name for value in shared.inputs[3:5]] == [value.name for value in own.outputs[1:]]
    assert shared.inputs[1] is shared.inputs[2] and shared.inputs[1].producer().op_type == "ConstantOfShape"
    assert len(shared.outputs) == 1
    assert shared.inputs[5] is own.inputs[5], "the lengths are computed once"


@pytest.mark.parametrize(
    ("provider", "options", "reason"),
    [
        ("cuda", {}, "the CUDA kernel is not known to read an earlier layer's keys and values"),
        ("cpu", {"head_dim": 20}, "the kernel takes head_dim in multiples of 8, and this is 20"),
    ],
)
def test_ort_decomposes_what_has_no_kernel(provider, options, reason):
    graph = captured(sharing(None, 0, **options), dtype=torch.float16 if provider == "cuda" else torch.float32)
    lowered = lower(graph, LoweringOptions(ops="ort", provider=provider, cache_form="any"))
    (rule,) = [rule for rule in lowered.rules if rule.name == "SharedAttention"]
    assert (rule.changed, [miss.reason for miss in rule.misses]) == (0, [reason])


def test_a_sharing_layer_has_a_query_only():
    whole, shared = account(sharing(None, None)), account(sharing(None, 0))
    key_and_value = 2 * 64 * 2 * 16
    assert whole.parameters - shared.parameters == key_and_value
    assert whole.flops_per_token - shared.flops_per_token == 2 * key_and_value
    assert whole.cache_bytes_per_token == 2 * shared.cache_bytes_per_token
    assert whole.attention_flops_per_token == shared.attention_flops_per_token
    shapes = model_spec_of(sharing(None, 0, qk_norm=QKNormConfig(norm=RMS_NORM, over="head"))).parameter_shapes()
    names = {name.split(".")[3] for name in shapes if name.startswith("blocks.1.attention.")}
    assert names == {"query", "query_norm", "output"}


@pytest.mark.parametrize(
    "blocks", [(0,), (None, 1), (None, 0, 1)], ids=["the first layer", "itself", "a layer that shares"]
)
def test_only_an_earlier_layer_with_a_cache_can_be_shared(blocks):
    with pytest.raises(ConfigError, match="sharing the keys and values of an earlier block"):
        sharing(*blocks)


def test_relations_cannot_be_shared():
    with pytest.raises(ConfigError, match=r"AttentionConfig\.shares .* None for Shaw's"):
        sharing(None, 0, rotary=None, relative=ShawConfig(max_distance=3, values=False))


def test_other_caches_are_refused():
    with pytest.raises(
        ExportError, match="an int8 cache is for models whose layers keep keys and values, all of one shape"
    ):
        make_plan(ExportOptions(cache_precision="int8"), sharing(None, 0))
    with pytest.raises(
        ExportError, match="an fp16 cache is for models whose layers keep keys and values, each for itself"
    ):
        make_plan(ExportOptions(cache_precision="fp16", precision="int4"), sharing(None, 0))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Layer 0 is read by layer 2, so that only layer 1 can forget tokens."""
    config = sharing(None, None, 0, 1, 0, window=WINDOW)
    blocks = [replace(block, attention=replace(block.attention, window=None)) for block in config.blocks]
    config = replace(config, blocks=(config.blocks[0], config.blocks[0], config.blocks[2], blocks[2]))
    folder = tmp_path_factory.mktemp("bundle")
    return config, export_random(model_spec_of(config), RandomWeights(config, 0), "fp32", folder).path


def test_a_layer_that_others_read_keeps_all_tokens(bundle):
    config, folder = bundle
    manifest = Manifest.read(folder)
    assert config.windows == (WINDOW, WINDOW, WINDOW, None)
    assert manifest.windows == config.cache_windows == (None, WINDOW, None, None)
    model = onnx.load(folder / manifest.graphs["windowed"].file, load_external_data=False)
    lengths = {
        value.name: value.type.tensor_type.shape.dim[2].dim_value for value in model.graph.input if "past" in value.name
    }
    assert lengths == {
        f"past_key_values.{layer}.{part}": length
        for layer, length in ((0, 0), (1, WINDOW))
        for part in ("key", "value")
    }


def test_the_windowed_graph_computes_what_the_whole_one_does(bundle):
    model = load(bundle[1])
    tokens = np.random.default_rng(0).integers(0, 131, 40)
    found = [model.new_decoder(1, 40).prefill_all(0, tokens, chunk=chunk) for chunk in (1, 7, 40)]
    model.session = open_session(bundle[1] / "onnx/model.onnx")
    expected = model.new_decoder(1, 40).prefill_all(0, tokens, chunk=40)
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_the_wrong_layer_is_refused(tmp_path):
    assert failures(sharing(None, None, 0), sharing(None, None, 1), tmp_path), "the wrong graph passed"
