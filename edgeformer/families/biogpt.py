"""BioGPT.

Source: transformers/models/biogpt/modeling_biogpt.py.
"""

from edgeformer.config import BlockConfig, DecoderConfig, FeedForwardConfig, LearnedPositions, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a BioGPT config.json."""
    fields.ignore("activation_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob", "layerdrop")
    # transformers ignores this: norms always have 1e-5.
    fields.ignore("layer_norm_eps")
    hidden_size, num_heads = fields.take("hidden_size"), fields.take("num_attention_heads")
    norm = NormConfig(kind="layer_norm", eps=1e-5, bias=True)
    block = BlockConfig(
        attention=multi_head(hidden_size, num_heads, bias=True),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("intermediate_size"),
            **fields.choice("hidden_act", ACTIVATIONS, "gelu"),
            gated=False,
            bias=True,
        ),
        norm=norm,
    )
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length),
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings", True),
        embedding_scale=hidden_size**0.5 if fields.take("scale_embedding", True) else 1.0,
        position_embedding=LearnedPositions(rows=fields.take("max_position_embeddings") + 2, offset=2),
    )


FAMILY = Family(
    summary="BioGPT",
    read_config=read_config,
    tensors={
        "embedding": "biogpt.embed_tokens",
        "position_embedding": "biogpt.embed_positions",
        "blocks.*.attention_norm": "biogpt.layers.*.self_attn_layer_norm",
        "blocks.*.attention.query": "biogpt.layers.*.self_attn.q_proj",
        "blocks.*.attention.key": "biogpt.layers.*.self_attn.k_proj",
        "blocks.*.attention.value": "biogpt.layers.*.self_attn.v_proj",
        "blocks.*.attention.output": "biogpt.layers.*.self_attn.out_proj",
        "blocks.*.feed_forward_norm": "biogpt.layers.*.final_layer_norm",
        "blocks.*.feed_forward.up": "biogpt.layers.*.fc1",
        "blocks.*.feed_forward.down": "biogpt.layers.*.fc2",
        "final_norm": "biogpt.layer_norm",
        "head": "output_projection",
    },
)
