"""OPT, and Galactica, which is OPT without biases.

Source: transformers/models/opt/modeling_opt.py.
"""

from edgeformer.config import BlockConfig, DecoderConfig, FeedForwardConfig, LearnedPositions, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an OPT config.json."""
    fields.ignore("activation_dropout", "dropout", "init_std", "layerdrop")
    # A prefix for prompts of text pipelines.
    fields.ignore("prefix")
    hidden_size, num_heads = fields.take("hidden_size"), fields.take("num_attention_heads")
    # OPT-350M has embeddings that are narrower than its blocks.
    fields.choice("word_embed_proj_dim", {hidden_size: None}, hidden_size)
    bias, affine = fields.take("enable_bias", True), fields.take("layer_norm_elementwise_affine", True)
    before = fields.take("do_layer_norm_before", True)
    norm = NormConfig(kind="layer_norm", eps=1e-5, weight=affine, bias=affine)
    block = BlockConfig(
        attention=multi_head(hidden_size, num_heads, bias=bias),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("ffn_dim"),
            **fields.choice("activation_function", ACTIVATIONS, "relu"),
            gated=False,
            bias=bias,
        ),
        norm=norm,
        norm_placement="pre" if before else "post",
    )
    without_final_norm = fields.take("_remove_final_layer_norm", False) or not before
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length),
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=None if without_final_norm else norm,
        tied_head=fields.take("tie_word_embeddings", True),
        position_embedding=LearnedPositions(rows=fields.take("max_position_embeddings") + 2, offset=2),
    )


FAMILY = Family(
    summary="OPT, Galactica; pre-norm or post-norm, with or without biases; not OPT-350M",
    read_config=read_config,
    tensors={
        "embedding": "model.decoder.embed_tokens",
        "position_embedding": "model.decoder.embed_positions",
        "blocks.*.attention_norm": "model.decoder.layers.*.self_attn_layer_norm",
        "blocks.*.attention.query": "model.decoder.layers.*.self_attn.q_proj",
        "blocks.*.attention.key": "model.decoder.layers.*.self_attn.k_proj",
        "blocks.*.attention.value": "model.decoder.layers.*.self_attn.v_proj",
        "blocks.*.attention.output": "model.decoder.layers.*.self_attn.out_proj",
        "blocks.*.feed_forward_norm": "model.decoder.layers.*.final_layer_norm",
        "blocks.*.feed_forward.up": "model.decoder.layers.*.fc1",
        "blocks.*.feed_forward.down": "model.decoder.layers.*.fc2",
        "final_norm": "model.decoder.final_layer_norm",
        "head": "lm_head",
    },
    optional_prefix="model.",
)
