"""A block that is a little wrong fails the quick verification, one for every feature that a decoder can have.

The graph is exported from a config with one field changed and is held to the model that was meant.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from verification.false_positive_rate import export_random

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import (
    AlibiConfig,
    AltUpConfig,
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    LayerInputConfig,
    LearnedPositions,
    NormConfig,
    PerLayerEmbedding,
    QKNormConfig,
    QueryTemperature,
    RandomBlocks,
    RotaryConfig,
    ShawConfig,
    SinusoidalPositions,
    T5BiasConfig,
)
from edgeformer.export.parity import verify_graph
from edgeformer.manifest.graph_forms import BundledGraphs
from edgeformer.models.model_spec import model_spec_of

ROTARY = RotaryConfig(rotary_dim=16, base=1e4, interleaved=False, scaling=None)
LAYER_NORM = NormConfig(kind="layer_norm", eps=1e-5, bias=True)
RMS_NORM = NormConfig(eps=1e-5)

LAYER_INPUT = {
    "layer_input": LayerInputConfig(size=12, activation="gelu_tanh", norm=RMS_NORM),
    "per_layer_embedding": PerLayerEmbedding(rows=100, size=12, norm=RMS_NORM),
}


def model(**fields):
    """A model of one block; each field goes to whatever has it: attention, feed-forward, block, or the model."""
    parts = {}
    for kind, defaults in (
        (
            AttentionConfig,
            {
                "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "qkv_bias": False,
                "output_bias": False, "rotary": ROTARY,
            },
        ),
        (FeedForwardConfig, {"intermediate_size": 96, "activation": "gelu", "bias": True}),
    ):  # fmt: skip
        own = {name: fields.pop(name) for name in list(fields) if name in kind.__dataclass_fields__}
        parts[kind] = kind(**(defaults | own))
    own = {name: fields.pop(name) for name in list(fields) if name in BlockConfig.__dataclass_fields__}
    block = BlockConfig(
        attention=parts[AttentionConfig], feed_forward=parts[FeedForwardConfig], **({"norm": LAYER_NORM} | own)
    )
    defaults = {
        "vocab_size": 131, "hidden_size": 64, "context_length": 64, "final_norm": LAYER_NORM, "tied_head": True,
    }  # fmt: skip
    return DecoderConfig(blocks=(block,), **(defaults | fields))


def failures(meant, exported, folder):
    weights = RandomWeights(meant, 0)
    bundle = export_random(model_spec_of(exported), weights, "fp32", folder)
    # As the exporter would verify the model that was meant: views that the wrong graph has are not what is asked.
    manifest = replace(bundle.manifest, model=meant, graphs=BundledGraphs(model=bundle.manifest.graphs["model"]))
    return verify_graph(bundle.path, manifest, model_spec_of(meant), weights).failures()


PAIRS = {
    "eps of a LayerNorm": ({}, {"norm": replace(LAYER_NORM, eps=1e-4)}),
    "a weight's offset": ({"norm": replace(RMS_NORM, offset=1.0)}, {"norm": RMS_NORM}),
    "RMSNorm for LayerNorm": ({"norm": replace(LAYER_NORM, bias=False)}, {"norm": RMS_NORM}),
    "pre for sandwich": ({"norm_placement": "sandwich"}, {"norm_placement": "pre"}),
    "serial for parallel": ({"residual": "parallel"}, {"residual": "serial"}),
    "one norm for two": ({"residual": "parallel"}, {"residual": "parallel_one_norm"}),
    "residual scale": ({"residual_scale": 0.5}, {"residual_scale": 0.5001}),
    "GELU by tanh": ({"gated": False}, {"gated": False, "activation": "gelu_tanh"}),
    "beta of SiLU": ({"activation": "silu", "beta": 1.702}, {"activation": "silu", "beta": 1.7}),
    "up activation": ({"up_activation": "tanh"}, {}),
    "QK-norm after the rotation": (
        {"qk_norm": QKNormConfig(norm=RMS_NORM, over="head", after_rotary=True)},
        {"qk_norm": QKNormConfig(norm=RMS_NORM, over="head")},
    ),
    "soft-cap of the scores": ({"softcap": 20.0}, {}),
    "soft-cap of the logits": ({"logit_softcap": 30.0}, {}),
    "logit scale": ({"logit_scale": 0.125}, {"logit_scale": 0.1251}),
    "embedding scale": ({"embedding_scale": 8.0}, {"embedding_scale": 8.001}),
    "no sinks": ({"sinks": True}, {}),
    "no output gate": ({"output_gate": True}, {}),
    "a token more in the window": ({"window": 8}, {"window": 9}),
    "a token less in the chunk": ({"chunk": 8}, {"chunk": 7}),
    "one global token for two": ({"window": 4, "global_tokens": 2}, {"window": 4, "global_tokens": 1}),
    "other random blocks": (
        {"window": 4, "random_blocks": RandomBlocks(size=4, count=2, seed=0)},
        {"window": 4, "random_blocks": RandomBlocks(size=4, count=2, seed=1)},
    ),
    "a slope of ALiBi": (
        {"rotary": None, "relative": AlibiConfig(slopes=(0.5, 0.25, 0.125, 0.0625))},
        {"rotary": None, "relative": AlibiConfig(slopes=(0.5, 0.25, 0.125, 0.0626))},
    ),
    "buckets of T5": (
        {"rotary": None, "relative": T5BiasConfig(num_buckets=8, max_distance=32)},
        {"rotary": None, "relative": T5BiasConfig(num_buckets=8, max_distance=40)},
    ),
    "Shaw's values": (
        {"rotary": None, "relative": ShawConfig(max_distance=4, values=True)},
        {"rotary": None, "relative": ShawConfig(max_distance=4, values=False)},
    ),
    "sinusoids in halves": (
        {"rotary": None, "position_embedding": SinusoidalPositions()},
        {"rotary": None, "position_embedding": SinusoidalPositions(interleaved=False)},
    ),
    "learned positions a row off": (
        {"rotary": None, "position_embedding": LearnedPositions(rows=66, offset=2)},
        {"rotary": None, "position_embedding": LearnedPositions(rows=66, offset=1)},
    ),
    "temperature": (
        {"query_temperature": QueryTemperature(floor_scale=8, scale=0.1)},
        {"query_temperature": QueryTemperature(floor_scale=9, scale=0.1)},
    ),
    "temperature that begins a token later": (
        {"query_temperature": QueryTemperature(floor_scale=8, scale=0.1)},
        {"query_temperature": QueryTemperature(floor_scale=8, scale=0.1, first=0)},
    ),
    "rotation backward": ({"rotary": replace(ROTARY, backward=True)}, {}),
    "partial rotation": ({"rotary": replace(ROTARY, rotary_dim=8)}, {"rotary": replace(ROTARY, rotary_dim=10)}),
    "no norm of values": ({"value_norm": replace(RMS_NORM, weight=False)}, {}),
    "gates a little less sparse": ({"sparsity": 0.5}, {"sparsity": 0.499}),
    "no layer of low rank": ({"laurel_rank": 8}, {}),
    "another active stream": (
        {"altup": AltUpConfig(streams=3), **LAYER_INPUT}, {"altup": AltUpConfig(streams=3, active=1), **LAYER_INPUT},
    ),
    "no clipping": ({"qkv_clip": 1.0}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_wrong_block_is_refused(name, tmp_path):
    meant, exported = PAIRS[name]
    assert failures(model(**meant), model(**exported), tmp_path), "the wrong graph passed"


def test_the_right_blocks_pass(tmp_path):
    """One model of many features, so that what fails above fails for its fault."""
    config = model(
        norm=replace(RMS_NORM, offset=1.0), norm_placement="sandwich", softcap=20.0, window=8, sinks=True,
        logit_softcap=30.0, qk_norm=QKNormConfig(norm=RMS_NORM, over="head"), embedding_scale=8.0,
    )  # fmt: skip
    assert failures(config, config, tmp_path) == []
