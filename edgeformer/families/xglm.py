"""XGLM.

Source: transformers/models/xglm/modeling_xglm.py.
"""

from edgeformer.config import BlockConfig, DecoderConfig, FeedForwardConfig, SinusoidalPositions
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._bart import NORM, block_tensors
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an XGLM config.json."""
    fields.ignore("activation_dropout", "dropout", "init_std", "layerdrop")
    fields.choice("add_cross_attention", {False: None}, False)
    # Row pad_token_id of the table is zero. Rows 0 and 1 are unused: position p has row p + 2.
    fields.choice("pad_token_id", {0: None, 1: None, None: None}, None)
    hidden_size, num_layers = fields.take("d_model"), fields.take("num_layers")
    fields.choice("num_hidden_layers", {num_layers: None}, num_layers)
    block = BlockConfig(
        attention=multi_head(hidden_size, fields.take("attention_heads"), bias=True),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("ffn_dim"),
            **fields.choice("activation_function", ACTIVATIONS, "gelu"),
            gated=False,
            bias=True,
        ),
        norm=NORM,
    )
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length),
        blocks=(block,) * num_layers,
        final_norm=NORM,
        tied_head=fields.take("tie_word_embeddings", True),
        embedding_scale=hidden_size**0.5 if fields.take("scale_embedding", True) else 1.0,
        position_embedding=SinusoidalPositions(interleaved=False, to_base=True, offset=2),
    )


FAMILY = Family(
    summary="XGLM",
    read_config=read_config,
    tensors={
        "embedding": "model.embed_tokens",
        **block_tensors("blocks.*", "model.layers.*"),
        "final_norm": "model.layer_norm",
        "head": "lm_head",
    },
    optional_prefix="model.",
    computed_tensors={r"model\.embed_positions\.weights": "sinusoids"},
)
