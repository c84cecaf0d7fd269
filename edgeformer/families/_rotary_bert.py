"""BERT with rotary embeddings in place of a table of positions: NomicBERT, Jina Embeddings v3."""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families._encoder import Head, layer_norm
from edgeformer.families._family import Fields, Packed, packed_qkv
from edgeformer.families._layers import vary_attention
from edgeformer.families._rotary import read_rotary
from edgeformer.families.bert import read_bert


def read_rotary_bert(fields: Fields, context_length: int | None, head: Head, base: float) -> EncoderConfig:
    """Read the fields of BERT and of its rotary embedding; base: default of rope_theta."""
    config = replace(read_bert(fields, context_length, head), position_embedding=None)
    attention = config.attentions[0]
    width = fields.take("head_dim", attention.head_dim)
    rotary = read_rotary(fields, width, config.context_length, base=base)
    changes = {"head_dim": width, "scale": width**-0.5, "rotary": rotary}
    return vary_attention(config, [changes] * len(config.blocks))


def rotary_body_tensors(model: str, attention: str) -> dict[str, str | Packed]:
    """Return the tensor names of all modules but the heads and the feed-forwards.

    model: prefix of all. attention: name of the attention in a layer.
    """
    layer = f"{model}.encoder.layers.*"
    return {
        "embedding": f"{model}.embeddings.word_embeddings",
        "token_type_embedding": f"{model}.embeddings.token_type_embeddings",
        **layer_norm("embedding_norm", f"{model}.emb_ln"),
        **packed_qkv(f"{layer}.{attention}.Wqkv"),
        "blocks.*.attention.output": f"{layer}.{attention}.out_proj",
        **layer_norm("blocks.*.attention_norm", f"{layer}.norm1"),
        **layer_norm("blocks.*.feed_forward_norm", f"{layer}.norm2"),
    }
