"""ESM-2 and ESM-1b, encoders of proteins: pre-norm blocks, rotary or learned positions, masks that are dropped.

Source: transformers/models/esm/modeling_esm.py. What predicts contacts of residues from attentions is left out.
"""

from dataclasses import replace

from edgeformer.config import (
    BlockConfig,
    EncoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    RotaryConfig,
    TokenDropout,
)
from edgeformer.errors import ConfigError
from edgeformer.families._attention import multi_head
from edgeformer.families._encoder import layer_norm, read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import DEFAULT_BASE, read_context_length
from edgeformer.families.bert import body_tensors, read_norm
from edgeformer.families.roberta import HEAD_TENSORS, ROBERTA_IGNORED

TRAINED_MASKS = 0.15 * 0.8
"""The fraction of masks that all models of the family were trained with."""


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read an ESM config.json."""
    fields.ignore("attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout_prob", "tie_word_embeddings")
    fields.ignore("esmfold_config", "vocab_list")  # of a model that folds
    fields.choice("hidden_act", {"gelu": None}, "gelu")  # transformers takes its own GELU, whatever is written
    for name in ("add_cross_attention", "is_decoder", "is_folding_model"):
        fields.choice(name, {False: None, None: None}, False)
    norm = read_norm(fields)
    heads = usual_heads(fields, norm, lambda: "gelu", "tanh")
    del heads["ForQuestionAnswering"]  # transformers has no class for it
    head = read_head(fields, "Esm", heads)
    hidden_size, padding = fields.take("hidden_size"), fields.take("pad_token_id", None)
    is_rotary = fields.choice("position_embedding_type", {"absolute": False, "rotary": True}, "absolute")
    base, first = fields.take("rope_theta", DEFAULT_BASE), 0 if is_rotary else (padding or 0) + 1
    if not is_rotary and padding is None:
        raise ConfigError("config.json has no pad_token_id; the table of positions begins behind its row.")
    context_length = read_context_length(fields, context_length, unused=first)
    attention = multi_head(hidden_size, fields.take("num_attention_heads"), bias=True, causal=False)
    rotary = RotaryConfig(rotary_dim=attention.head_dim, base=base, interleaved=False, scaling=None)
    block = BlockConfig(
        attention=replace(attention, rotary=rotary) if is_rotary else attention,
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("intermediate_size"), activation="gelu", gated=False, bias=True
        ),
        norm=norm,
        norm_placement="pre",
    )
    rows = fields.take("max_position_embeddings")
    return EncoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=context_length,
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm,
        position_embedding=None if is_rotary else LearnedPositions(rows=rows, offset=first),
        embedding_norm=norm if fields.take("emb_layer_norm_before", False) else None,
        token_dropout=_read_token_dropout(fields),
        head=head,
    )


def _read_token_dropout(fields: Fields) -> TokenDropout | None:
    mask = fields.take("mask_token_id", None)
    if not fields.take("token_dropout", False):
        return None
    if mask is None:
        raise ConfigError("config.json has no mask_token_id; token_dropout = True drops its embedding.")
    return TokenDropout(mask_token=mask, trained=TRAINED_MASKS)


LAYER = "esm.encoder.layer.*"

FAMILY = Family(
    summary="ESM-2 and ESM-1b (proteins); masked residues, labels of proteins and residues, embeddings",
    read_config=read_config,
    tensors={
        **body_tensors("esm"),
        **layer_norm("embedding_norm", "esm.embeddings.layer_norm"),
        **layer_norm("blocks.*.attention_norm", f"{LAYER}.attention.LayerNorm"),
        **layer_norm("blocks.*.feed_forward_norm", f"{LAYER}.LayerNorm"),
        **layer_norm("final_norm", "esm.encoder.emb_layer_norm_after"),
        **HEAD_TENSORS,
    },
    optional_prefix="esm.",
    computed_tensors={
        r"(\w+\.)?embeddings\.position_ids": "positions",
        r"(\w+\.)?(encoder\.layer\.(\d+|\*)\.attention\.self\.)?rotary_embeddings\.inv_freq": (
            "rotary_frequencies"  # with the star, as transformers 5 writes it
        ),
    },
    ignored_tensors=(
        *ROBERTA_IGNORED,
        r"(\w+\.)?contact_head\.regression\.(weight|bias)",
        r"(\w+\.)?embeddings\.position_embeddings\.weight",  # of a model that rotates, as in transformers
    ),
)
