"""An encoder, or an encoder-decoder, that is a little wrong fails the quick verification by a check that is named here.

Exports take long, and verifications do not: one graph is held to many models that differ from it in one field (a graph
that has too much of something fails as one that lacks it does), and what no field can say is changed in the graph.
"""

import functools
import shutil
import sys
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from verification.false_positive_rate import export_random

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
from edgeformer.export.parity import verify_graph
from edgeformer.models.model_spec import model_spec_of

LAYER_NORM = NormConfig(kind="layer_norm", eps=1e-5, bias=True)
ROTARY = RotaryConfig(rotary_dim=8, base=1e4, interleaved=False, scaling=None)
ATTENTION = AttentionConfig(
    num_heads=4, num_kv_heads=4, head_dim=8, scale=8**-0.5, qkv_bias=True, output_bias=True, rotary=None, causal=False,
    key_bias=False,
)  # fmt: skip
FEED_FORWARD = FeedForwardConfig(intermediate_size=48, activation="gelu", bias=True, gated=False)
BLOCK = BlockConfig(attention=ATTENTION, feed_forward=FEED_FORWARD, norm=LAYER_NORM)

PLAIN = EncoderConfig(vocab_size=61, hidden_size=32, context_length=40, blocks=(BLOCK,), final_norm=None)
"""Without any of the features that an encoder may have."""

BERT = EncoderConfig(
    vocab_size=61, hidden_size=32, context_length=40, blocks=(replace(BLOCK, norm_placement="post"),), final_norm=None,
    position_embedding=LearnedPositions(rows=44, offset=2), embedding_norm=LAYER_NORM, token_types=2,
    head=MaskedLMHead(activation="gelu", norm=LAYER_NORM),
)  # fmt: skip

SPARSE = EncoderConfig(
    vocab_size=61, hidden_size=32, context_length=40, final_norm=LAYER_NORM, position_embedding=SinusoidalPositions(),
    blocks=(
        replace(
            BLOCK,
            attention=replace(
                ATTENTION, window=4, global_tokens=1, global_projections=True,
                relative=T5BiasConfig(num_buckets=8, max_distance=16, bidirectional=True),
            ),
        ),
    ),
    head=PoolingHead(pooling="mean", normalize=True),
)  # fmt: skip
"""Sentences as vectors, by windows, global tokens and T5's distances."""

CLASSIFIER = replace(BERT, head=ClassificationHead(labels=("yes", "no"), pooling="mean", dense="tanh"))

CAUSAL = replace(
    PLAIN,
    blocks=(replace(BLOCK, attention=replace(ATTENTION, causal=True)),),
    head=PoolingHead(pooling="last", normalize=False),
)

SEQ2SEQ = Seq2SeqConfig(
    encoder=replace(
        PLAIN,
        blocks=(replace(BLOCK, attention=replace(ATTENTION, relative=SPARSE.blocks[0].attention.relative)),),
        final_norm=LAYER_NORM,
    ),
    decoder=DecoderConfig(
        vocab_size=61, hidden_size=32, context_length=40, final_norm=LAYER_NORM, tied_head=True, logit_scale=0.25,
        blocks=(
            replace(
                BLOCK,
                attention=replace(ATTENTION, causal=True, key_bias=True, rotary=ROTARY),
                cross_attention=CrossAttentionConfig(
                    num_heads=2, head_dim=16, scale=0.25, qkv_bias=True, output_bias=True, key_bias=False
                ),
            ),
        )
        * 2,
    ),
    shared_embedding=True,
)  # fmt: skip

SPEECH = replace(
    SEQ2SEQ, encoder=replace(SEQ2SEQ.encoder, vocab_size=0, audio=AudioStem(mel_bins=8)), shared_embedding=False
)
NAMES = {
    "plain": PLAIN,
    "bert": BERT,
    "sparse": SPARSE,
    "classifier": CLASSIFIER,
    "causal": CAUSAL,
    "seq2seq": SEQ2SEQ,
    "speech": SPEECH,
}


def changed(config, changes):
    """The config with fields changed, each given by its path; a field of blocks is changed in all of them."""
    for path, value in changes.items():
        config = _with(config, path.split("."), value)
    return config


def _with(config, path, value):
    name, *rest = path
    if rest:
        part = getattr(config, name)
        value = (
            tuple(_with(each, rest, value) for each in part) if isinstance(part, tuple) else _with(part, rest, value)
        )
    return replace(config, **{name: value})


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """Return a function that exports a config, once."""
    return functools.cache(
        lambda config: export_random(
            model_spec_of(config), RandomWeights(config, 0), "fp32", tmp_path_factory.mktemp("right")
        )
    )


def failures(folder, manifest, meant):
    """Names of the checks that a graph fails when it is held to the model that was meant."""
    report = verify_graph(folder, replace(manifest, model=meant), model_spec_of(meant), RandomWeights(meant, 0))
    return [check.name for check in report.failures()]


@pytest.mark.parametrize("name", NAMES)
def test_the_right_models_pass(name, export):
    """So that what fails below fails for its fault."""
    bundle = export(NAMES[name])
    assert failures(bundle.path, bundle.manifest, NAMES[name]) == []


# Checks of what a graph makes of texts one by one; "encoder" is that of an encoder-decoder.
STATES = "text, last_hidden_state: worst ratio"
VECTOR, LOGITS = "text, sentence_embedding: max error", "text, logits: max error"

MEANT = {
    # what is wrong: (the model that was exported, how it differs from the one that was meant, the check that finds it)
    "norms before, not behind": (PLAIN, {"blocks.norm_placement": "post"}, STATES),
    "eps of the norms": (BERT, {"blocks.norm.eps": 1e-4}, STATES),
    "final norm missing": (PLAIN, {"final_norm": LAYER_NORM}, STATES),
    "embedding norm missing": (PLAIN, {"embedding_norm": LAYER_NORM}, STATES),
    "embedding scale missing": (PLAIN, {"embedding_scale": 2.0}, STATES),
    "the one token type missing": (PLAIN, {"token_types": 1}, STATES),
    "first norm of a block too many": (PLAIN, {"blocks.attention_norm": False}, STATES),
    "GELU exact, not by tanh": (BERT, {"blocks.feed_forward.activation": "gelu_tanh"}, STATES),
    "rotation missing": (PLAIN, {"blocks.attention.rotary": ROTARY}, STATES),
    "scale of the scores": (BERT, {"blocks.attention.scale": 0.3535}, STATES),
    "chunks missing": (PLAIN, {"blocks.attention.chunk": 16}, STATES),
    "a token less in the window": (SPARSE, {"blocks.attention.window": 5}, STATES),
    "a token more in the window": (SPARSE, {"blocks.attention.window": 3}, STATES),
    "one global token for two": (SPARSE, {"blocks.attention.global_tokens": 2}, STATES),
    "a global token too many": (
        SPARSE, {"blocks.attention.global_projections": False, "blocks.attention.global_tokens": 0}, STATES,
    ),
    "global tokens project by themselves": (SPARSE, {"blocks.attention.global_projections": False}, STATES),
    "farthest distance of T5": (SPARSE, {"blocks.attention.relative.max_distance": 20}, STATES),
    "buckets of T5": (SPARSE, {"blocks.attention.relative.num_buckets": 12}, STATES),
    "T5's distances missing": (
        PLAIN, {"blocks.attention.relative": T5BiasConfig(num_buckets=8, max_distance=16, bidirectional=True)}, STATES,
    ),
    "sinusoids interleaved, not in halves": (SPARSE, {"position_embedding.interleaved": False}, STATES),
    "sinusoids that do not reach their base": (SPARSE, {"position_embedding.to_base": True}, STATES),
    "sinusoids a row early": (SPARSE, {"position_embedding.offset": 1}, STATES),
    "positions a row early": (BERT, {"position_embedding.offset": 3}, STATES),
    "positions a row late": (BERT, {"position_embedding.offset": 1}, STATES),
    "mean for the first token": (SPARSE, {"head.pooling": "first"}, VECTOR),
    "vectors of length one": (SPARSE, {"head.normalize": False}, VECTOR),
    "eps of the head's norm": (BERT, {"head.norm.eps": 1e-4}, LOGITS),
    "the head's GELU exact, not by tanh": (BERT, {"head.activation": "gelu_tanh"}, LOGITS),
    "tied for untied": (BERT, {"head.tied": False}, LOGITS),
    "a bias too many in the head": (BERT, {"head.bias": False}, LOGITS),
    "mean for the first token, in the head": (CLASSIFIER, {"head.pooling": "first"}, LOGITS),
    "tanh for GELU in the head": (CLASSIFIER, {"head.dense": "gelu"}, LOGITS),
    "scale of attention to the source": (
        SEQ2SEQ, {"decoder.blocks.cross_attention.scale": 0.251}, "prefill: worst ratio",
    ),
    "scale of the logits": (SEQ2SEQ, {"decoder.logit_scale": 0.2501}, "prefill: worst ratio"),
    "the encoder's final norm": (SEQ2SEQ, {"encoder.final_norm": None}, "encoder: worst ratio"),
    "heads of attention to the source": (
        SEQ2SEQ, {"decoder.blocks.cross_attention.num_heads": 4, "decoder.blocks.cross_attention.head_dim": 8}, "run",
    ),
    "one table for two": (SEQ2SEQ, {"shared_embedding": False}, "prefill: worst ratio"),
    "norms of the decoder": (SEQ2SEQ, {"decoder.blocks.norm_placement": "post"}, "prefill: worst ratio"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANT)
def test_a_graph_of_another_model_is_refused(name, export):
    exported, meant, check = MEANT[name]
    bundle = export(exported)
    assert check in failures(bundle.path, bundle.manifest, changed(exported, meant))


@pytest.mark.parametrize(
    ("config", "path", "rest"),
    [
        (BERT, "blocks.attention.key_bias", []),
        # The keys that are made of the encoder's states are other ones.
        (
            SEQ2SEQ,
            "decoder.blocks.cross_attention.key_bias",
            [f"{run}: cache ratio" for run in ("encoder", "merged prefill, source", "merged steps, source")],
        ),
    ],
    ids=["self", "cross"],
)
def test_a_bias_of_keys_changes_no_answer(config, path, rest, export):
    """q·(k + b) is q·k and, for all keys of a query, the same number more: softmax takes it out again."""
    bundle = export(config)
    meant = changed(config, {path: True})
    biases = [name for name in RandomWeights(meant, 0) if name.endswith("key.bias")]
    assert all(RandomWeights(meant, 0)[name].abs().max() > 0.05 for name in biases) and biases
    assert failures(bundle.path, bundle.manifest, meant) == rest


def test_padding_that_stays_in_front_of_causal_texts_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeformer.models.encoder._rotated", lambda rows, by: rows)
    config = replace(CAUSAL, context_length=39)  # that no other test has traced
    bundle = export_random(model_spec_of(config), RandomWeights(config, 0), "fp32", tmp_path)
    failed = failures(bundle.path, bundle.manifest, config)
    assert "batch of 15, padded on the left, sentence_embedding: max error" in failed
    assert all("padded on the left" in check for check in failed)


# Faults of a finished graph: each takes the graph and the folder that it lies in.


def node(graph, name):
    """The one node whose name ends so."""
    (found,) = [each for each in graph.node if each.name.endswith(name)]
    return found


def feed(graph, name, value, op, constant):
    """Let the nodes of a name pattern read op(value, constant) in place of a value."""
    places = [
        (index, slot)
        for index, each in enumerate(graph.node)
        if fnmatch(each.name, name)
        for slot, read in enumerate(each.input)
        if read == value
    ]
    assert places, f"nothing named {name} reads {value}"
    for index, slot in places:
        graph.node[index].input[slot] = "planted"
    graph.initializer.append(numpy_helper.from_array(np.array(constant), "planted constant"))
    graph.node.insert(0, helper.make_node(op, [value, "planted constant"], ["planted"]))


def all_ones(name, mask="attention_mask"):
    return lambda graph, folder: feed(graph, name, mask, "Max", np.int64(1))


def attribute(name, key, value):
    def plant(graph, folder):
        (found,) = [each for each in node(graph, name).attribute if each.name == key]
        found.CopyFrom(helper.make_attribute(key, value))

    return plant


def table(name, change):
    """Store something else than the table of this name."""

    def plant(graph, folder):
        (found,) = [each for each in graph.initializer if each.name.endswith(name)]
        before = numpy_helper.to_array(found, str(folder))
        after = np.ascontiguousarray(change(before))
        assert not np.array_equal(before, after)
        found.CopyFrom(numpy_helper.from_array(after, found.name))

    return plant


def other_layers_keys(graph, folder):
    """Every layer reads the keys of the next one, and the last those of the first."""
    first, second = (node(graph, f"blocks.{layer}.cross_attention/CrossAttention") for layer in (0, 1))
    first.input[1], second.input[1] = second.input[1], first.input[1]


def keys_for_values(graph, folder):
    attention = node(graph, "blocks.1.cross_attention/CrossAttention")
    attention.input[1], attention.input[2] = attention.input[2], attention.input[1]


def exchanged_outputs(graph, folder):
    """The encoder hands each of two layers the values for the other."""
    names = {"present.0.encoder.value": "present.1.encoder.value"}
    names |= {theirs: ours for ours, theirs in names.items()}
    for each in graph.node:
        each.output[:] = [names.get(name, name) for name in each.output]


def final_norm_skipped(graph, folder):
    """Keys and values are made of what was normalised to the last states; the states themselves stay."""
    norm = next(each for each in graph.node if "last_hidden_state" in each.output)
    assert norm.op_type == "SkipLayerNormalization"
    norm.output[:] = ["last_hidden_state", "", "", "planted"]  # the last one is the sum that it normalises
    for each in graph.node:
        each.input[:] = ["planted" if name == "last_hidden_state" else name for name in each.input]


def one_projection_for_all(graph, folder):
    """What global tokens see through projections of their own is computed, and not chosen."""
    choice = node(graph, "attention/Where")
    choice.input[1] = choice.input[2]


def stem_a_frame_late(graph, folder):
    """Frames are padded on the left alone."""
    first = next(each for each in graph.node if each.op_type == "Conv")
    (pads,) = [each for each in first.attribute if each.name == "pads"]
    assert list(pads.ints) == [1, 1]
    pads.CopyFrom(helper.make_attribute("pads", [2, 0]))


def types_of_zero(graph, folder):
    feed(graph, "token_type_embedding/Gather", "token_type_ids", "Mul", np.int64(0))


def padding_counted(graph, folder):
    """The sum is divided by the length of the batch, not by that of the text."""
    counted = [each for each in graph.node if each.op_type == "ReduceSum" and each.output[0] in divisors(graph)]
    assert len(counted) == 1
    before = counted[0].input[0]
    graph.initializer.append(numpy_helper.from_array(np.array(1), "planted constant"))
    graph.node.insert(
        list(graph.node).index(counted[0]), helper.make_node("Max", [before, "planted constant"], ["planted"])
    )
    counted[0].input[0] = "planted"


def divisors(graph):
    """What is cast and then divided by."""
    casts = {each.output[0]: each.input[0] for each in graph.node if each.op_type == "Cast"}
    return {casts[each.input[1]] for each in graph.node if each.op_type == "Div" and each.input[1] in casts}


ENCODER, DECODER = "onnx/encoder_model.onnx", "onnx/decoder_model.onnx"
GRAPH = "onnx/model.onnx"
LAST = "blocks.1.cross_attention/CrossAttention"
PLANTED = {
    # what is wrong: (the model, the graph of it to change, how, the check that finds it)
    "causal": (PLAIN, GRAPH, attribute("attention/GroupQueryAttention", "causal", 1), STATES),
    "padding is attended to": (
        PLAIN, GRAPH, all_ones("lengths/ReduceSum*"), "batch of 3, last_hidden_state: worst ratio",
    ),
    "global tokens attend to padding": (
        SPARSE, GRAPH, all_ones("source_mask/*"), "batch of 15 against solo: sentence_embedding",
    ),
    "global tokens have no projections of their own": (SPARSE, GRAPH, one_projection_for_all, STATES),
    "the mean counts padding": (CLASSIFIER, GRAPH, padding_counted, "batch of 15, logits: max error"),
    "distances of T5 without a direction": (SPARSE, GRAPH, table("relative.0.buckets", lambda rows: rows % 4), STATES),
    "directions of T5 exchanged": (SPARSE, GRAPH, table("relative.0.buckets", lambda rows: rows[::-1]), STATES),
    "buckets of T5 a distance off": (SPARSE, GRAPH, table("relative.0.buckets", lambda rows: np.roll(rows, 1)), STATES),
    "sinusoids a row late": (SPARSE, GRAPH, table("embedding.table", lambda rows: np.roll(rows, 1, 0)), STATES),
    "token types dropped": (BERT, GRAPH, types_of_zero, STATES),
    "tied head without its bias": (BERT, GRAPH, table("masked_lm.output.bias", np.zeros_like), LOGITS),
    "labels in another order": (CLASSIFIER, GRAPH, table("classifier.output.bias", lambda row: row[::-1]), LOGITS),
    "the encoder: causal": (
        SEQ2SEQ, ENCODER, attribute("attention/GroupQueryAttention", "causal", 1), "encoder: worst ratio",
    ),
    "the encoder: padding is attended to": (
        SEQ2SEQ, ENCODER, all_ones("lengths/ReduceSum*"), "encoder, batch of 3 against solo",
    ),
    "padding of the source is attended to": (
        SEQ2SEQ, DECODER, all_ones("source_mask/*", "encoder_attention_mask"), "batch of 3 against solo",
    ),
    "scale of one layer's attention to the source": (
        SEQ2SEQ, DECODER, attribute(LAST, "scale", 0.2501), "prefill: worst ratio",
    ),
    "keys of a neighbouring layer": (SEQ2SEQ, DECODER, other_layers_keys, "prefill: worst ratio"),
    "keys and values exchanged": (SEQ2SEQ, DECODER, keys_for_values, "prefill: worst ratio"),
    "values handed to a neighbouring layer": (SEQ2SEQ, ENCODER, exchanged_outputs, "encoder: cache ratio"),
    "keys of states before the final norm": (SEQ2SEQ, ENCODER, final_norm_skipped, "encoder: cache ratio"),
    "a recording's frames a place late": (SPEECH, ENCODER, stem_a_frame_late, "encoder: worst ratio"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_a_finished_graph_is_found(name, export, tmp_path):
    config, file, plant, check = PLANTED[name]
    bundle = export(config)
    folder = Path(shutil.copytree(bundle.path, tmp_path / "wrong"))
    model = onnx.load(folder / file, load_external_data=False)
    before = model.SerializeToString(deterministic=True)
    plant(model.graph, (folder / file).parent)
    assert model.SerializeToString(deterministic=True) != before, "the fault found nothing to change"
    onnx.save(model, folder / file)
    assert check in failures(folder, bundle.manifest, config)
