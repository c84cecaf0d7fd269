"""Faults of states, experts and shared caches: each turns verification red, and `locate` names the node.

As in `test_locate.py`, a fault is planted into a copy of a clean bundle, and the suspects are exactly the nodes that
compute something else. What reads constants alone is folded: a fault of theirs is found where data meets them.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from faults import Fault, changing, node, output, plant, reading, setting
from onnx import GraphProto
from test_locate import nodes_of, suspects, write_bundle
from torch import Tensor

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    DeltaNetConfig,
    ExpertsConfig,
    FeedForwardConfig,
    NormConfig,
    RotaryConfig,
    RouterConfig,
    ShortConvConfig,
)
from edgeformer.export.parity import verify_graph
from edgeformer.export.parity.locate.locator import Locator, describe
from edgeformer.models.model_spec import model_spec_of

NORM = NormConfig(eps=1e-5)
ATTENTION = AttentionConfig(
    num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, qkv_bias=False, output_bias=False,
    rotary=RotaryConfig(rotary_dim=16, base=1e4, interleaved=False, scaling=None),
)  # fmt: skip
DELTA_NET = DeltaNetConfig(num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=12, kernel_size=3, norm_eps=1e-3)
SHORT_CONV = ShortConvConfig(channels=32, kernel_size=4, bias=False)
DENSE = FeedForwardConfig(intermediate_size=24, activation="silu", bias=False)
EXPERTS = ExpertsConfig(
    num_experts=5, experts_per_token=2, expert=DENSE, router=RouterConfig(scoring="softmax", normalized=True),
    shared=DENSE, shared_gate=True,
)  # fmt: skip


def hybrid() -> DecoderConfig:
    """Two layers of every kind that keeps something, experts, and a layer that reads the cache of an earlier one."""
    mixers = [
        {"recurrent": DELTA_NET}, {"attention": ATTENTION}, {"recurrent": SHORT_CONV}, {"attention": ATTENTION},
        {"attention": replace(ATTENTION, shares=1)}, {"recurrent": DELTA_NET}, {"recurrent": SHORT_CONV},
    ]  # fmt: skip
    blocks = tuple(
        BlockConfig(**{"attention": None, **mixer}, feed_forward=DENSE if layer % 2 else EXPERTS, norm=NORM)
        for layer, mixer in enumerate(mixers)
    )
    sizes = {"vocab_size": 61, "hidden_size": 32, "context_length": 64}
    return DecoderConfig(**sizes, blocks=blocks, final_norm=NORM, tied_head=False)


DELTA, CONV = "blocks.0.recurrent", "blocks.2.recurrent/CausalConv"
RATES, STATE = f"{DELTA}/Mul_1", f"{DELTA}/LinearAttention"
TAPS = "blocks.2.recurrent.conv_weight"
EXPERTS_OF, ROUTER = "blocks.0.feed_forward.experts", "blocks.0.feed_forward.router.projection"
MIXTURE = f"{EXPERTS_OF}/MixtureOfExperts"
SHARED = "blocks.4.attention/SharedAttention"


def keep_past(graph: GraphProto, folder: Path) -> None:
    """Return the past of a convolution as its present, so that the next run does not see the tokens of this one."""
    last = node(graph, f"{CONV}/Transpose_47")
    assert last.output[0] == "present_conv.2"
    last.input[0] = node(graph, f"{CONV}/Transpose_0").output[0]


def exchange_states(graph: GraphProto, folder: Path) -> None:
    first, second = node(graph, STATE), node(graph, "blocks.5.recurrent/LinearAttention")
    first.output[1], second.output[1] = second.output[1], first.output[1]


def read_a_token_late(graph: GraphProto, folder: Path) -> None:
    """Let the newest tap of a convolution read the same input as the tap before it."""
    newest, before = node(graph, f"{CONV}/Slice_34"), node(graph, f"{CONV}/Slice_25")
    newest.input[1], newest.input[2] = before.input[1], before.input[2]


def share_another_cache(graph: GraphProto, folder: Path) -> None:
    for index, part in ((3, "key"), (4, "value")):
        reading(SHARED, index, f"present.3.{part}")(graph, folder)


def decay_of_padding(graph: GraphProto, folder: Path) -> None:
    """Padding adds nothing to a state, and yet it fades it."""
    state = node(graph, STATE)
    masked = next(each for each in graph.node if state.input[4] in each.output)
    state.input[4] = masked.input[1]


def rolled(axis: int) -> Callable[[Tensor], Tensor]:
    return lambda weight: weight.roll(1, axis)


FAULT = {
    name: Fault(name=name, kind=kind, apply=apply, nodes=nodes)
    for name, kind, apply, nodes in (
        ("decay with the other sign", "graph", reading(RATES, 0, output(f"{DELTA}/Exp")), (RATES,)),
        ("state of another layer's past", "graph", reading(STATE, 3, "past_recurrent.5"), (STATE,)),
        ("states of two layers exchanged", "graph", exchange_states, ("blocks.[05].recurrent/LinearAttention",)),
        ("inputs not carried over a border of chunks", "graph", keep_past, (f"{CONV}/Transpose_47",)),
        ("inputs of another layer's past", "graph", reading(f"{CONV}/Transpose_0", 0, "past_conv.6"), (f"{CONV}/*_0",)),
        ("convolution a token late", "graph", read_a_token_late, (f"{CONV}/Slice_34",)),
        ("taps a token late", "weights", changing(rolled(1), TAPS), (f"{CONV}/Mul_*",)),
        ("decay of padding", "graph", decay_of_padding, (STATE,)),
        ("weights of experts not normalized", "graph", setting(MIXTURE, "normalize_routing_weights", 0), (MIXTURE,)),
        ("another number of experts", "graph", setting(MIXTURE, "k", 3), (MIXTURE,)),
        ("experts in another order", "weights", changing(rolled(0), f"{EXPERTS_OF}.down.weight"), (MIXTURE,)),
        (
            "rows of the router in another order", "weights", changing(rolled(0), f"{ROUTER}.weight"),
            (f"{ROUTER}/Gemm",),
        ),
        ("cache shared with the wrong layer", "graph", share_another_cache, (SHARED,)),
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A clean bundle: folder, manifest, weights, and a locator with its references."""
    folder, config = tmp_path_factory.mktemp("hybrid"), hybrid()
    weights = RandomWeights(config, 1)
    manifest = write_bundle(folder, config)
    return folder, manifest, weights, Locator(manifest, model_spec_of(config), weights)


def test_the_clean_graph_passes_and_has_no_suspect(clean):
    folder, manifest, weights, locator = clean
    assert verify_graph(folder, manifest, model_spec_of(manifest.model), weights).failures() == []
    assert suspects(locator.locate(folder)) == []


@pytest.mark.parametrize("name", FAULT)
def test_a_fault_is_refused_and_its_node_is_named(clean, tmp_path, name):
    path, manifest, weights, locator = clean
    fault = FAULT[name]
    plant(fault, path, tmp_path, manifest, weights)
    assert verify_graph(tmp_path, manifest, model_spec_of(manifest.model), weights).failures(), "the fault passed"
    found = locator.locate(tmp_path)
    expected = fault.expected(nodes_of(tmp_path), manifest.model)
    assert expected, "the fault expects no node of this graph"
    assert suspects(found) == expected, describe(found)
