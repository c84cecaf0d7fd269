"""Mamba-2: every block is a selective state space, and nothing is cached per token.

Source: transformers/models/mamba2/modeling_mamba2.py.
"""

from edgeformer.config import BlockConfig, DecoderConfig, NormConfig, StateSpaceConfig
from edgeformer.errors import ConfigError
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import check_layer_types
from edgeformer.families._mamba import SILU, read_steps, state_space_tensors

POSITIONS = 1 << 20
"""Context length if none is requested: a model without positions reads texts of any length; training decides."""


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Mamba-2 config.json."""
    if context_length is not None and context_length <= 0:
        raise ConfigError(f"--context-length is {context_length}; it must be positive.")
    # Initial values and the data type of training, and how transformers computes.
    fields.ignore("time_step_min", "time_step_max", "time_step_floor", "time_step_rank", "rescale_prenorm_residual")
    fields.ignore("residual_in_fp32", "chunk_size", "norm_before_gate", "rms_norm")
    fields.choice("hidden_act", SILU, "silu")
    hidden_size = fields.take("hidden_size")
    num_heads, head_dim = fields.take("num_heads"), fields.take("head_dim")
    if num_heads * head_dim != fields.take("expand") * hidden_size:
        raise ConfigError(f"config.json has {num_heads} heads of {head_dim}, which is not expand times hidden_size.")
    norm = NormConfig(eps=fields.take("layer_norm_epsilon"))
    num_groups, bias = fields.take("n_groups"), fields.take("use_bias")
    state_space = StateSpaceConfig(
        num_heads=num_heads,
        head_dim=head_dim,
        state_size=fields.take("state_size"),
        num_groups=num_groups,
        kernel_size=fields.take("conv_kernel"),
        input_bias=bias,
        conv_bias=fields.take("use_conv_bias"),
        output_bias=bias,
        norm_eps=norm.eps,
        norm_groups=num_groups,
        **read_steps(fields),
    )
    num_layers = fields.take("num_hidden_layers")
    check_layer_types(fields, "linear_attention", num_layers, "layer_types")
    block = BlockConfig(attention=None, recurrent=state_space, feed_forward=None, norm=norm)
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=context_length or POSITIONS,
        blocks=(block,) * num_layers,
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings"),
    )


FAMILY = Family(
    summary="Mamba-2: state spaces alone; any context length",
    read_config=read_config,
    tensors={
        "embedding": "backbone.embeddings",
        "blocks.*.attention_norm": "backbone.layers.*.norm",
        **state_space_tensors("backbone.layers.*.mixer"),
        "final_norm": "backbone.norm_f",
        "head": "lm_head",
    },
    defaults={
        "hidden_size": 4096, "num_heads": 128, "head_dim": 64, "expand": 2, "layer_norm_epsilon": 1e-5, "n_groups": 8,
        "state_size": 128, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False, "vocab_size": 32768,
        "num_hidden_layers": 64, "tie_word_embeddings": False,
    },
)  # fmt: skip
