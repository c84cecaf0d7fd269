"""Recurrent layers in float64 compute what transformers' own layers do: prompts, steps, chunks, ragged batches."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import DynamicCache
from transformers.models.bamba.modeling_bamba import BambaConfig, BambaMixer
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Config, FalconH1Mixer, compute_mup_vector
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import (
    GraniteMoeHybridConfig,
    GraniteMoeHybridMambaLayer,
)
from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet, Qwen3_5TextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextConfig, Qwen3NextGatedDeltaNet

from edgeformer.config import DeltaNetConfig, StateSpaceConfig
from edgeformer.errors import ConfigError
from edgeformer.layers import Context
from edgeformer.layers.recurrent.delta_net import DeltaNet
from edgeformer.layers.recurrent.state_space import StateSpace
from edgeformer.manifest.block_weights import recurrent_weights
from edgeformer.transformers_backend.float64 import computing_in_float64

HIDDEN, D64 = 24, torch.float64
LINEAR = ["linear_attention", "full_attention"]


def qwen(config_class, layer_class, key_heads, value_heads):
    config = config_class(
        hidden_size=HIDDEN, linear_num_key_heads=key_heads, linear_num_value_heads=value_heads, linear_key_head_dim=8,
        linear_value_head_dim=6, linear_conv_kernel_dim=4, rms_norm_eps=1e-5, num_hidden_layers=2, layer_types=LINEAR,
    )  # fmt: skip
    ours = DeltaNetConfig(
        num_key_heads=key_heads, num_value_heads=value_heads, key_dim=8, value_dim=6, kernel_size=4, norm_eps=1e-5
    )
    return config, layer_class, ours


def mamba2(groups, **options):
    config = Mamba2Config(
        hidden_size=HIDDEN, expand=2, num_heads=6, head_dim=8, state_size=10, n_groups=groups, conv_kernel=4,
        num_hidden_layers=2, chunk_size=4, layer_norm_epsilon=1e-4, **options,
    )  # fmt: skip
    ours = StateSpaceConfig(
        num_heads=6, head_dim=8, state_size=10, num_groups=groups, kernel_size=4, norm_eps=1e-4, norm_groups=groups,
        input_bias=config.use_bias, conv_bias=config.use_conv_bias, output_bias=config.use_bias,
    )  # fmt: skip
    return config, Mamba2Mixer, ours


def bamba_like(config_class, layer_class, groups, **options):
    # Granite's own config asks for a layer of attention; layer 0 is the recurrent one.
    config = config_class(
        hidden_size=HIDDEN, mamba_n_heads=6, mamba_d_head=8, mamba_d_state=10, mamba_n_groups=groups, mamba_d_conv=3,
        mamba_expand=2, mamba_chunk_size=4, rms_norm_eps=1e-4, num_hidden_layers=2, **options,
    )  # fmt: skip
    ours = StateSpaceConfig(
        num_heads=6, head_dim=8, state_size=10, num_groups=groups, kernel_size=3, norm_eps=1e-4, norm_groups=groups,
        input_bias=config.mamba_proj_bias, conv_bias=config.mamba_conv_bias, output_bias=config.mamba_proj_bias,
    )  # fmt: skip
    return config, layer_class, ours


def falcon(groups=1, scales=(1.0, 1.0, 1.0, 1.0, 1.0), **options):
    config = FalconH1Config(
        hidden_size=HIDDEN, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_d_state=10, mamba_n_groups=groups,
        mamba_d_conv=4, mamba_chunk_size=4, rms_norm_eps=1e-4, num_hidden_layers=2, ssm_multipliers=list(scales),
        ssm_in_multiplier=0.7, **options,
    )  # fmt: skip
    normed = config.mamba_rms_norm
    ours = StateSpaceConfig(
        num_heads=6, head_dim=8, state_size=10, num_groups=groups, kernel_size=4, input_scale=0.7, part_scales=scales,
        norm_eps=1e-4 if normed else None, norm_groups=groups if normed else 1,
        norm_before_gate=normed and config.mamba_norm_before_gate, input_bias=config.mamba_proj_bias,
        conv_bias=config.mamba_conv_bias, output_bias=config.projectors_bias,
    )  # fmt: skip
    return config, FalconH1Mixer, ours


SCALES = (0.5, 0.8, 1.25, 0.6, 1.5)
LAYERS = {
    "qwen3_5": lambda: qwen(Qwen3_5TextConfig, Qwen3_5GatedDeltaNet, 3, 3),
    "qwen3_5, shared keys": lambda: qwen(Qwen3_5TextConfig, Qwen3_5GatedDeltaNet, 2, 4),
    "qwen3_next": lambda: qwen(Qwen3NextConfig, Qwen3NextGatedDeltaNet, 2, 6),
    "mamba2": lambda: mamba2(1),
    "mamba2, groups": lambda: mamba2(3, use_bias=True, use_conv_bias=False),
    "bamba": lambda: bamba_like(BambaConfig, BambaMixer, 2, mamba_proj_bias=True),
    "granitemoehybrid": lambda: bamba_like(
        GraniteMoeHybridConfig, GraniteMoeHybridMambaLayer, 1, layer_types=["linear_attention", "full_attention"]
    ),
    "falcon_h1": lambda: falcon(),
    "falcon_h1, scales": lambda: falcon(2, SCALES, mamba_proj_bias=True, projectors_bias=True),
    "falcon_h1, norm before": lambda: falcon(2, mamba_rms_norm=True, mamba_norm_before_gate=True),
    "falcon_h1, norm behind": lambda: falcon(3, mamba_rms_norm=True, mamba_norm_before_gate=False),
}
NAMES = {"out_proj": "output", "in_proj": "input", "dt_bias": "step_bias", "A_log": "decay_rate_log", "D": "skip"}
DELTA_NAMES = {"in_proj_qkv": "query_key_value", "in_proj_z": "gate", "in_proj_b": "beta", "in_proj_a": "decay"}


def renamed(theirs, config):
    """Return transformers' parameters by our names."""
    parameters = {}
    for name, value in theirs.state_dict().items():
        module, _, last = name.partition(".")
        if module == "conv1d":
            parameters[f"conv_{last}"] = value.squeeze(1) if last == "weight" else value
        elif module == "in_proj_qkvz":
            sizes = [config.key_dim, config.key_dim] + 2 * [config.inner_size // config.num_key_heads]
            parts = value.unflatten(0, (config.num_key_heads, -1)).split(sizes, 1)
            parameters["query_key_value.weight"] = torch.cat([part.flatten(0, 1) for part in parts[:3]])
            parameters["gate.weight"] = parts[3].flatten(0, 1)
        elif module == "in_proj_ba":
            beta, decay = value.unflatten(0, (config.num_key_heads, 2, -1)).unbind(1)
            parameters |= {"beta.weight": beta.flatten(0, 1), "decay.weight": decay.flatten(0, 1)}
        else:
            parameters[".".join(filter(None, ((NAMES | DELTA_NAMES).get(module, module), last)))] = value
    return parameters


@pytest.fixture(params=LAYERS)
def pair(request):
    """Transformers' layer and config, and our layer with the same random parameters."""
    torch.manual_seed(0)
    config, layer_class, ours = LAYERS[request.param]()
    with computing_in_float64():
        theirs = layer_class(config, layer_idx=0).double().eval()
        for name, parameter in theirs.named_parameters():
            spread = 0.3 if parameter.dim() > 1 or "conv" in name else 0.5
            nn.init.normal_(parameter, 1.0 if name == "norm.weight" else 0.0, spread)
        if isinstance(theirs, FalconH1Mixer):
            theirs.mup_vector = compute_mup_vector(config).double()
    mine = (DeltaNet if isinstance(ours, DeltaNetConfig) else StateSpace)(ours, HIDDEN, D64)
    mine.load_state_dict(renamed(theirs, ours))
    return theirs, config, mine


def their_run(layer, config, x, mask=None, chunks=None):
    """Return the outputs and the states [B, …] of transformers' layer for chunks of x."""
    with computing_in_float64(), torch.no_grad():
        cache, outputs = DynamicCache(config=config), []
        for part in x.split(chunks or [x.shape[1]], 1):
            given = None if mask is None else mask[:, : part.shape[1]]
            outputs.append(layer(part, cache, attention_mask=given))
        conv, state = cache.get_conv_state(0, state_idx=0), cache.get_recurrent_state(0, state_idx=0)
    return torch.cat(outputs, 1), conv, state


def our_run(layer, x, mask=None, chunks=None):
    states = tuple(torch.zeros(x.shape[0], *state.dims, dtype=D64) for state in layer.config.states)
    outputs = []
    with torch.no_grad():
        for part in x.split(chunks or [x.shape[1]], 1):
            tokens = torch.ones(part.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
            empty = torch.empty(0)
            context = Context(attention_mask=empty, positions=empty, key_positions=empty, token_mask=tokens)
            output, states = layer(part, states, context)
            outputs.append(output)
    return torch.cat(outputs, 1), *states


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11 * float(expected.abs().max()))


def same_states(layer, ours, theirs):
    conv, state = theirs
    width = layer.config.kernel_size - 1
    close(ours[0], conv[..., -width:])
    close(ours[1], state.transpose(-1, -2) if isinstance(layer, StateSpace) else state)


@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 1, 4], [2, 7]], ids=str)
def test_a_layer_computes_what_transformers_does(pair, chunks):
    theirs, config, mine = pair
    x = torch.randn(2, 9, HIDDEN, dtype=D64)
    expected, *their_states = their_run(theirs, config, x, chunks=[9] if chunks[0] > 1 else chunks)
    output, *states = our_run(mine, x, chunks=chunks)
    close(output, expected)
    same_states(mine, states, their_states)


def test_padding_changes_nothing(pair):
    """A right-padded row has the outputs and the states of its tokens alone.

    transformers pads on the left, where a bias of the projection leaks into the convolution of the first tokens.
    """
    theirs, config, mine = pair
    x = torch.randn(2, 7, HIDDEN, dtype=D64)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    output, *states = our_run(mine, x, mask)
    alone, *own = our_run(mine, x[1:, :4])
    close(output[1, :4], alone[0])
    for state, single in zip(states, own, strict=True):
        close(state[1:], single)
    expected, *their_states = their_run(theirs, config, x[1:, :4])
    close(alone, expected)
    same_states(mine, own, their_states)
    if not getattr(mine.config, "input_bias", False):
        left, left_mask = (torch.cat((each[1:, 4:], each[1:, :4]), 1) for each in (x, mask))
        close(their_run(theirs, config, left, left_mask)[0][:, 3:], expected)
    # Negative control: padding that counts as tokens.
    assert (our_run(mine, x)[2][1] - own[1][0]).abs().max() > 1e-3


def test_wrong_layers_are_told(pair):
    """A faster decay, a convolution off by one, a state that is not carried, and each parameter are seen."""
    theirs, config, mine = pair
    x = torch.randn(1, 9, HIDDEN, dtype=D64)
    expected, *_ = their_run(theirs, config, x)
    scale = float(expected.abs().max())

    def error():
        return float((our_run(mine, x)[0] - expected).abs().max()) / scale

    assert error() < 1e-11
    with torch.no_grad():
        for name, parameter in mine.named_parameters():
            kept = parameter.clone()
            changes = {"conv_weight": kept.roll(1, -1), "decay_rate_log": kept + 0.5}
            parameter.copy_(changes.get(name, kept * 1.3 + 0.1))
            assert error() > 1e-4, name
            parameter.copy_(kept)
    assert error() < 1e-11
    first, *_ = our_run(mine, x[:, :5])
    fresh = torch.cat((first, our_run(mine, x[:, 5:])[0]), 1)
    assert float((fresh - expected).abs().max()) / scale > 1e-3


def test_weights_are_counted(pair):
    _, _, mine = pair
    assert recurrent_weights(mine.config, HIDDEN) == sum(each.numel() for each in mine.parameters())


def test_steps_of_a_state_space_are_clipped():
    """transformers clips Δ in prompts only; with bounds that matter, its steps differ from its prompts."""
    torch.manual_seed(0)
    config, layer_class, ours = mamba2(1, time_step_limit=(0.6, 0.9))
    with computing_in_float64():
        theirs = layer_class(config, layer_idx=0).double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    x = torch.randn(2, 6, HIDDEN, dtype=D64)
    expected, *_ = their_run(theirs, config, x)
    for bounds, right in (((0.6, 0.9), True), ((0.0, None), False)):
        mine = StateSpace(replace(ours, min_step=bounds[0], max_step=bounds[1]), HIDDEN, D64)
        mine.load_state_dict(renamed(theirs, ours))
        for chunks in ([6], [1] * 6):
            output, *_ = our_run(mine, x, chunks=chunks)
            assert (float((output - expected).abs().max()) < 1e-10) == right


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_value_heads", 5, "num_value_heads is 5; it must be a multiple of num_key_heads (2)."),
        ("kernel_size", 1, "kernel_size is 1; it must be at least 2."),
        ("key_dim", 0, "key_dim is 0; it must be positive."),
    ],
)
def test_what_a_delta_net_cannot_be(field, value, message):
    config = LAYERS["qwen3_5, shared keys"]()[2]
    with pytest.raises(ConfigError) as error:
        replace(config, **{field: value})
    assert str(error.value) == f"DeltaNetConfig.{message}"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_groups", 4, "num_groups is 4; it must be a divisor of num_heads (6)."),
        ("norm_groups", 5, "norm_groups is 5; it must be a divisor of num_heads · head_dim (48)."),
        ("norm_eps", None, "norm_groups is 3; it must be 1 where there is no norm."),
        ("max_step", 0.0, "max_step is 0.0; it must be above min_step, or None."),
        ("part_scales", (1.0,), "part_scales is (1.0,); it must be given five factors: of z, x, B, C and Δ."),
    ],
)
def test_what_a_state_space_cannot_be(field, value, message):
    config = LAYERS["mamba2, groups"]()[2]
    with pytest.raises(ConfigError) as error:
        replace(config, **{field: value})
    assert str(error.value) == f"StateSpaceConfig.{message}"
