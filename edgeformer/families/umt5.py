"""UMT5: mT5 whose every block has a relative position bias of its own.

Source: transformers/models/umt5/modeling_umt5.py.
"""

from dataclasses import replace

from edgeformer.config import Seq2SeqConfig, StackConfig, T5BiasConfig
from edgeformer.families import t5
from edgeformer.families._family import Fields
from edgeformer.families._layers import vary_attention


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a UMT5 config.json."""
    fields.ignore("scalable_attention")  # no code of transformers reads it
    # transformers 5.0 to 5.23 divide the logits of untied heads, too; others and the training do not.
    tied = fields.take("tie_word_embeddings", True)
    config = t5.read_t5(fields, context_length, tied=tied, scaled=fields.take("scale_decoder_outputs", tied))
    encoder, decoder = config.encoder, config.decoder
    return replace(
        config,
        encoder=vary_attention(encoder, _own_biases(encoder)),
        decoder=vary_attention(decoder, _own_biases(decoder)),
    )


def _own_biases(config: StackConfig) -> list[dict[str, T5BiasConfig]]:
    """Return the changes of each block's attention that give it a table of biases of its own."""
    biases = (attention.relative for attention in config.attentions)
    numbered = [(number, bias) for number, bias in enumerate(biases) if isinstance(bias, T5BiasConfig)]
    return [{"relative": replace(bias, table=number)} for number, bias in numbered]


FAMILY = replace(
    t5.FAMILY,
    summary="UMT5; any context length",
    read_config=read_config,
    tensors=t5.TENSORS
    | {
        f"{half}.relative.*": f"{half}.block.*.layer.0.SelfAttention.relative_attention_bias"
        for half in ("encoder", "decoder")
    },
    defaults={"feed_forward_proj": "gated-gelu"},
    encoder_class="UMT5EncoderModel",
)
