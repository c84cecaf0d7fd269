"""Attention with a gated output in float64 computes what transformers' own layer does."""

import pytest
import torch
from torch import nn
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextConfig

from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig, NormConfig, QKNormConfig
from edgeformer.layers import Attention, Context
from edgeformer.manifest.accounting import account
from edgeformer.transformers_backend.float64 import computing_in_float64

HIDDEN, HEADS, HEAD_DIM, LENGTH = 24, 4, 6, 7
NORM = NormConfig(eps=1e-5, offset=1.0)
CONFIG = AttentionConfig(
    num_heads=HEADS, num_kv_heads=2, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5, qkv_bias=True, output_bias=True,
    rotary=None, qk_norm=QKNormConfig(norm=NORM, over="head"), output_gate=True,
)  # fmt: skip
NAMES = {"k_proj": "key", "v_proj": "value", "o_proj": "output", "q_norm": "query_norm", "k_norm": "key_norm"}


@pytest.fixture
def pair():
    """The parameters of both layers by our names, x, and what transformers' layer returns for it."""
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=HEAD_DIM, attention_bias=True,
        rms_norm_eps=1e-5, num_hidden_layers=1, layer_types=["full_attention"], attn_implementation="eager",
    )  # fmt: skip
    with computing_in_float64():
        theirs = Qwen3NextAttention(config, layer_idx=0).double().eval()
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, 0.0, 0.5)
        x = torch.randn(2, LENGTH, HIDDEN, dtype=torch.float64)
        still = torch.ones(1, LENGTH, HEAD_DIM).double(), torch.zeros(1, LENGTH, HEAD_DIM).double()  # no rotation
        mask = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)
        with torch.no_grad():
            expected, _ = theirs(x, still, mask[None, None])
    parameters = {}
    for name, value in theirs.state_dict().items():
        module, _, last = name.partition(".")
        if module == "q_proj":
            query, gate = value.unflatten(0, (HEADS, 2, HEAD_DIM)).unbind(1)
            parameters |= {f"query.{last}": query.flatten(0, 1), f"gate.{last}": gate.flatten(0, 1)}
        else:
            parameters[f"{NAMES[module]}.{last}"] = value
    return parameters, x, expected


def error(parameters, x, expected):
    """The largest error of our layer, relative to the largest number."""
    attention = Attention(CONFIG, HIDDEN, torch.float64)
    attention.load_state_dict(parameters)
    positions = torch.arange(LENGTH).expand(2, -1)
    with torch.no_grad():
        output, _ = attention(x, (), Context(torch.ones(2, LENGTH, dtype=torch.int64), positions, positions))
    return float((output - expected).abs().max() / expected.abs().max())


def test_a_gated_output_is_that_of_transformers(pair):
    assert error(*pair) < 1e-12


def test_wrong_gates_are_told(pair):
    parameters, x, expected = pair
    rolled = {name: value.roll(HEAD_DIM, 0) for name, value in parameters.items() if name.startswith("gate.")}
    open_gates = {"gate.weight": torch.zeros_like(parameters["gate.weight"])}
    swapped = {"gate.weight": parameters["query.weight"], "query.weight": parameters["gate.weight"]}
    for wrong in (rolled, open_gates, swapped):
        assert error(parameters | wrong, x, expected) > 1e-3


@pytest.mark.parametrize("bias", [True, False])
def test_the_weights_of_a_gate_are_counted(bias):
    attention = AttentionConfig(
        num_heads=4, num_kv_heads=2, head_dim=6, scale=1.0, qkv_bias=bias, output_bias=False, rotary=None,
        output_gate=True,
    )  # fmt: skip
    feed_forward = FeedForwardConfig(intermediate_size=8, activation="silu", bias=False)
    config = DecoderConfig(
        vocab_size=11, hidden_size=HIDDEN, context_length=8, final_norm=NORM, tied_head=True,
        blocks=(BlockConfig(attention=attention, feed_forward=feed_forward, norm=NORM),),
    )  # fmt: skip
    sizes = parameter_shapes(config)
    assert sizes["blocks.0.attention.gate.weight"] == (24, HIDDEN)
    assert account(config).parameters == sum(torch.Size(shape).numel() for shape in sizes.values())
    products = sum(torch.Size(shape).numel() for shape in sizes.values() if len(shape) == 2)
    assert account(config).flops_per_token == 2 * products
