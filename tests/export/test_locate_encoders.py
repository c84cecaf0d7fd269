"""A fault in any graph of an encoder, or of an encoder and decoder pair, is found where it was made, and in which file.

The nodes of these graphs differ from a decoder's: attention without a past that looks both ways, attention to a source,
LayerNorm behind sums, heads, the convolutions in front of a recording.
"""

import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from faults import constant, output, reading, setting, store
from slow_rows import slow_after, slow_unless

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from verification.false_positive_rate import export_random
from verification.random_models import random_encoder, random_seq2seq

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import (
    AttentionConfig,
    AudioStem,
    BlockConfig,
    ClassificationHead,
    CrossAttentionConfig,
    DecoderConfig,
    EncoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    MaskedLMHead,
    NormConfig,
    PoolingHead,
    RotaryConfig,
    Seq2SeqConfig,
    SinusoidalPositions,
    T5BiasConfig,
)
from edgeformer.contract.ops import FUNCTIONS
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.lower import ort as lower_ort
from edgeformer.export.parity.locate.locator import FLOOR, Locator, describe
from edgeformer.export.reference.reference import CastWeights, Reference
from edgeformer.models.model_spec import model_spec_of

RMS_NORM = NormConfig(eps=1e-6)
LAYER_NORM = NormConfig(kind="layer_norm", eps=1e-5, bias=True)
ROTARY = RotaryConfig(rotary_dim=8, base=100.0, interleaved=False, scaling=None)
ENCODER, DECODER, MODEL = "onnx/encoder_model.onnx", "onnx/decoder_model.onnx", "onnx/model.onnx"


def attention(**fields) -> AttentionConfig:
    plain = {
        "num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "scale": 0.35, "qkv_bias": True, "output_bias": True,
        "rotary": None, "causal": False,
    }  # fmt: skip
    return AttentionConfig(**(plain | fields))


def block(attention: AttentionConfig, norm: NormConfig, **fields) -> BlockConfig:
    feed_forward = FeedForwardConfig(intermediate_size=48, activation="gelu", bias=attention.output_bias, gated=False)
    return BlockConfig(attention=attention, feed_forward=feed_forward, norm=norm, **fields)


def like_t5(**fields) -> Seq2SeqConfig:
    bias = T5BiasConfig(num_buckets=8, max_distance=16)
    plain = {"qkv_bias": False, "output_bias": False}
    across = CrossAttentionConfig(num_heads=4, head_dim=8, scale=0.5, **plain)
    both_ways = attention(relative=replace(bias, bidirectional=True), **plain)
    sizes = {"vocab_size": 61, "hidden_size": 32, "context_length": 40, "final_norm": RMS_NORM}
    return Seq2SeqConfig(
        encoder=EncoderConfig(blocks=(block(both_ways, RMS_NORM),) * 2, **(sizes | fields)),
        decoder=DecoderConfig(
            blocks=(block(attention(relative=bias, causal=True, **plain), RMS_NORM, cross_attention=across),) * 2,
            tied_head=True,
            **sizes,
        ),
        shared_embedding=not fields,
    )


def like_whisper() -> Seq2SeqConfig:
    """Recordings of 12 frames, which make six tokens."""
    fields = {"vocab_size": 0, "audio": AudioStem(mel_bins=5), "context_length": 6}
    return like_t5(position_embedding=SinusoidalPositions(interleaved=False, to_base=True), **fields)


def like_bert(**fields) -> EncoderConfig:
    plain = {
        "vocab_size": 61, "hidden_size": 32, "context_length": 40,
        "blocks": (block(attention(), LAYER_NORM, norm_placement="post"),) * 2,
        "final_norm": None, "embedding_norm": LAYER_NORM, "token_types": 2,
        "position_embedding": LearnedPositions(rows=42, offset=2),
        "head": MaskedLMHead(activation="gelu", norm=LAYER_NORM),
    }  # fmt: skip
    return EncoderConfig(**(plain | fields))


CONFIGS = {
    "t5": like_t5(),
    "bert": like_bert(),
    "whisper": like_whisper(),
    "labels": like_bert(head=ClassificationHead(labels=("no", "yes"), pooling="first", dense="tanh")),
    "vectors": like_bert(head=PoolingHead(pooling="mean", normalize=True), token_types=0),
    "longformer": like_bert(
        blocks=(block(attention(window=3, global_tokens=1, global_projections=True), LAYER_NORM),) * 2,
        final_norm=LAYER_NORM,
    ),
    "turned recordings": like_bert(
        vocab_size=0, audio=AudioStem(mel_bins=5), context_length=6, position_embedding=None, token_types=0, head=None,
        blocks=(block(attention(rotary=ROTARY), LAYER_NORM),) * 2,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def make_clean(tmp_path_factory):
    """Return a function that exports a model: its folder, its manifest, its weights, and a locator for it."""
    made = {}

    def make(name: str, precision="fp32"):
        if (name, precision) not in made:
            config = CONFIGS[name]
            model_spec, weights = model_spec_of(config), RandomWeights(config, 1)
            bundle = export_random(model_spec, weights, precision, tmp_path_factory.mktemp(name))
            locator = Locator(bundle.manifest, model_spec, weights)
            made[name, precision] = bundle.path, bundle.manifest, weights, locator
        return made[name, precision]

    return make


RIGHT = slow_unless(("t5", "bert", "whisper"), CONFIGS)


@pytest.mark.parametrize("precision", slow_after(1, ["fp32", "fp16"]))
@pytest.mark.parametrize("name", RIGHT)
def test_right_graphs_have_no_suspect(make_clean, name, precision):
    folder, manifest, _, locator = make_clean(name, precision)
    found = locator.locate(folder)
    assert (found.first, found.differences) == (None, ()), describe(found)
    assert [graph.graph for graph in found.graphs] == list(manifest.step_graphs)
    for graph in found.graphs:
        assert not graph.runtime_fault
        assert max(graph.outputs.values()) < FLOOR[precision]
        assert not [block for block in graph.blocks if block.startswith("_")]  # what torch calls places that are none


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
@pytest.mark.parametrize("draw", [random_encoder, random_seq2seq], ids=lambda draw: draw.__name__)
def test_right_graphs_of_any_blocks_have_no_suspect(draw, seed, tmp_path):
    config = draw(random.Random(seed))
    model_spec, weights = model_spec_of(config), RandomWeights(config, seed)
    bundle = export_random(model_spec, weights, "fp32", tmp_path)
    found = Locator(bundle.manifest, model_spec, weights).locate(bundle.path)
    assert (found.first, found.differences) == (None, ()), describe(found)


CROSS = "decoder.blocks.1.cross_attention/CrossAttention"
CROSS_NORM = "decoder.blocks.0.cross_attention_norm/RMSNorm"
KEY = "decoder.blocks.1.cross_attention.key/MatMul"
[MASK] = [op.inputs.index("key_padding_mask") for op in FUNCTIONS if op.name == "SourceAttention"]
OF_ENCODER = "encoder.blocks.1.attention/GroupQueryAttention"
POST_NORM = "blocks.0.feed_forward_norm/LayerNormalization"
GLOBAL = "blocks.0.attention/CrossAttention"
PLACES = "position_embedding/Gather"
POOLED = "pooler/ReduceSum_1"

# The model, the file that is changed, how, and the only node that then computes something else.
GRAPH_FAULTS = {
    "an encoder that sees the past alone": ("t5", ENCODER, setting(OF_ENCODER, "causal", 1), OF_ENCODER),
    "texts one too long": ("t5", ENCODER, reading("lengths/Sub*", 1, constant(0)), "lengths/Sub_3"),
    "a norm's epsilon": (
        "t5", ENCODER, setting("encoder.final_norm/*", "epsilon", 1e-3), "encoder.final_norm/RMSNorm",
    ),
    "keys of another layer": ("t5", ENCODER, reading(KEY, 1, "decoder.blocks.0.cross_attention.key.weight"), KEY),
    "the source's scale": ("t5", DECODER, setting(CROSS, "scale", 0.25), CROSS),
    "the source of another layer": ("t5", DECODER, reading(CROSS, 1, "past_key_values.0.encoder.key"), CROSS),
    "values of the source for keys": ("t5", DECODER, reading(CROSS, 1, "past_key_values.1.encoder.value"), CROSS),
    "padding of the source is read": ("t5", DECODER, reading(CROSS, MASK, ""), CROSS),
    "the mask of the decoder for the source": (
        "t5", DECODER, reading("source_mask/*", 0, "decoder_attention_mask"), "source_mask/Cast_0",
    ),
    "a cross-attention's norm without a residual": (
        "t5", DECODER, reading(CROSS_NORM, 0, output("decoder.blocks.0.attention.output/*")), CROSS_NORM,
    ),
    "a convolution without its stride": (
        "whisper", ENCODER, setting("encoder.stem.second/Conv", "strides", [1]), "encoder.stem.second/Conv",
    ),
    "a post-norm's epsilon": ("bert", MODEL, setting(POST_NORM, "epsilon", 1e-2), POST_NORM),
    "a post-norm without a residual": (
        "bert", MODEL, reading(POST_NORM, 0, output("blocks.0.feed_forward.down/Add")), POST_NORM,
    ),
    "masks for token types": (
        "bert", MODEL, reading("token_type_embedding/*", 1, "attention_mask"), "token_type_embedding/Gather",
    ),
    "positions without their offset": ("bert", MODEL, reading(PLACES, 1, output("Unsqueeze")), PLACES),
    "a head not transposed": (
        "labels", MODEL, setting("classifier.dense/*", "transB", 0), "classifier.dense/Gemm",
    ),
    "a mean of padding too": (
        "vectors", MODEL, reading(POOLED, 0, output("blocks.1.feed_forward_norm/*")), POOLED,
    ),
    "the scale of global tokens": ("longformer", MODEL, setting(GLOBAL, "scale", 0.2), GLOBAL),
}  # fmt: skip

# The model, the parameter that is changed, and the nodes that read it, by file.
WEIGHT_FAULTS = {
    "of the encoder": (
        "t5", "encoder.blocks.0.feed_forward.up.weight", [(ENCODER, "encoder.blocks.0.feed_forward.up/MatMul")],
    ),
    # What the source is projected with is the decoder's, and is read where the encoder runs.
    "of the source": ("t5", "decoder.blocks.1.cross_attention.key.weight", [(ENCODER, KEY)]),
    "of the decoder": (
        "t5", "decoder.blocks.1.cross_attention.query.weight",
        [(DECODER, "decoder.blocks.1.cross_attention.query/MatMul")],
    ),
    "of the encoder's buckets": ("t5", "encoder.relative.0.weight", [(ENCODER, "encoder.relative.0/Gather_1")]),
    "of both": (
        "t5", "encoder.embedding.weight",
        [
            (ENCODER, "encoder.embedding/Gather"), (DECODER, "decoder.embedding/Gather"),
            (DECODER, "decoder.head/MatMul"),
        ],
    ),
    "of token types": ("bert", "token_type_embedding.weight", [(MODEL, "token_type_embedding/Gather")]),
    "of a post-norm": ("bert", "blocks.0.feed_forward_norm.bias", [(MODEL, POST_NORM)]),
    "of a convolution": ("whisper", "encoder.stem.first.weight", [(ENCODER, "encoder.stem.first/Conv")]),
}  # fmt: skip


def suspects(found):
    return [(suspect.graph, suspect.node) for suspect in found.suspects]


@pytest.mark.parametrize("name", GRAPH_FAULTS)
def test_a_fault_of_one_graph_is_found_in_its_node(make_clean, tmp_path, name):
    model, file, change, expected = GRAPH_FAULTS[name]
    folder, *_, locator = make_clean(model)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    graph = onnx.load(tmp_path / file, load_external_data=False)
    change(graph.graph, (tmp_path / file).parent)
    (tmp_path / file).write_bytes(graph.SerializeToString())
    found = locator.locate(tmp_path)
    assert suspects(found) == [(file, expected)], describe(found)
    assert expected in describe(found)
    assert len(found.graphs) == 1 or f"In {file}:\n{expected} (" in describe(found)


@pytest.mark.parametrize("name", WEIGHT_FAULTS)
def test_another_weight_is_found_in_every_graph_that_reads_it(make_clean, tmp_path, name):
    model, parameter, expected = WEIGHT_FAULTS[name]
    folder, manifest, weights, locator = make_clean(model)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    parameters = dict(weights) | {parameter: weights[parameter] * 1.01}
    path = tmp_path / expected[0][0]  # all graphs read one file of weights
    store(onnx.load(path, load_external_data=False).graph, path.parent, manifest, parameters, {parameter})
    found = locator.locate(tmp_path)
    assert suspects(found) == expected, describe(found)


def test_a_bug_in_the_lowering_of_cross_attention_is_found(monkeypatch, tmp_path):
    """The references must not come from the code that they judge."""
    real = lower_ort.lower_cross_attention

    def wrong(model, target):
        for each in canonical_nodes(model, "CrossAttention"):
            each.attributes["scale"] = ir.AttrFloat32("scale", 0.25)
        return real(model, target)

    rules = tuple(wrong if rule is real else rule for rule in lower_ort.RULES)
    monkeypatch.setattr(lower_ort, "RULES", rules)
    config = CONFIGS["t5"]
    model_spec, weights = model_spec_of(config), RandomWeights(config, 1)
    bundle = export_random(model_spec, weights, "fp32", tmp_path)
    found = Locator(bundle.manifest, model_spec, weights).locate(bundle.path)
    nodes = [f"decoder.blocks.{layer}.cross_attention/CrossAttention" for layer in (0, 1)]
    assert suspects(found) == [(DECODER, each) for each in nodes], describe(found)
    assert found.first.made_by == "emitted by lower/ort for edgeformer::CrossAttention"


@pytest.mark.parametrize("name", ["t5", "bert", "labels", "vectors", "longformer"])
def test_reference_values_are_those_of_the_eager_module(make_clean, name):
    *_, weights, locator = make_clean(name)
    model_spec = model_spec_of(CONFIGS[name])
    reference = Reference(model_spec, CastWeights(weights, torch.float32))
    for graph, spec in zip(locator.graphs, model_spec.graphs, strict=True):
        for place, feed in enumerate(graph.values.feeds):
            inputs = [torch.from_numpy(feed.inputs[tensor.name]) for tensor in spec.inputs]
            with reference.loaded():
                outputs = spec.module(reference.module)(*inputs)
            for output_name, theirs in zip(spec.outputs, outputs, strict=True):
                ours = graph.values[output_name][place]
                assert ours.valid.any()
                # What is no cache leaves every graph as float32.
                np.testing.assert_allclose(ours.value[ours.valid], theirs.numpy()[ours.valid], rtol=1e-5, atol=1e-6)


def test_a_pair_is_fed_with_the_padding_of_both_texts(make_clean):
    encoder, decoder = (graph.values for graph in make_clean("t5")[3].graphs)
    (texts,) = encoder.feeds
    assert texts.inputs["attention_mask"].sum(1).tolist() == [12, 6]
    states = encoder["last_hidden_state"][0]
    assert states.valid[:, :, 0].sum(1).tolist() == [12, 6]
    keys = encoder["present.1.encoder.key"][0]
    assert keys.valid.all()
    assert not keys.value[1, :, 6:].any()
    assert [feed.name for feed in decoder.feeds] == ["prompt", "chunk", "step"]
    for feed, lengths, source in zip(decoder.feeds, ([9, 4], [12], [12, 6]), ([7, 3], [7], [7, 3]), strict=True):
        assert feed.inputs["decoder_attention_mask"].sum(1).tolist() == lengths
        assert feed.inputs["encoder_attention_mask"].sum(1).tolist() == source
        keys = feed.inputs["past_key_values.1.encoder.key"]
        assert np.abs(keys).sum((1, 3)).astype(bool).sum(1).tolist() == source
    assert decoder["logits"][0].valid[:, :, 0].sum(1).tolist() == [9, 4]


def test_token_types_and_recordings_are_fed(make_clean):
    (texts,) = make_clean("bert")[3].graphs[0].values.feeds
    assert set(texts.inputs["token_type_ids"].flat) == {0, 1}
    encoder, _ = make_clean("whisper")[3].graphs
    (recording,) = encoder.values.feeds
    assert {name: value.shape for name, value in recording.inputs.items()} == {"input_features": (1, 5, 12)}
    assert encoder.values["last_hidden_state"][0].valid.all()
