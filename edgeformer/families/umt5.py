"""UMT5: mT5 whose every block has a relative position bias of its own.

Source: transformers/models/umt5/modeling_umt5.py.
"""

from dataclasses import replace

from edgeformer.config import BlockConfig, Seq2SeqConfig, T5BiasConfig
from edgeformer.families import t5
from edgeformer.families._family import Fields


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a UMT5 config.json."""
    fields.ignore("scalable_attention")  # no code of transformers reads it
    # transformers 5 divides the logits of untied heads, too; version 4 and the training do not.
    tied = fields.take("tie_word_embeddings", True)
    config = t5.read_t5(fields, context_length, tied=tied, scaled=tied)
    encoder, decoder = config.encoder, config.decoder
    return replace(
        config,
        encoder=replace(encoder, blocks=_own_biases(encoder.blocks)),
        decoder=replace(decoder, blocks=_own_biases(decoder.blocks)),
    )


def _own_biases(blocks: tuple[BlockConfig, ...]) -> tuple[BlockConfig, ...]:
    """Return the blocks with a table of biases each."""
    changed = []
    for number, block in enumerate(blocks):
        assert isinstance(block.attention.relative, T5BiasConfig)
        relative = replace(block.attention.relative, table=number)
        changed.append(replace(block, attention=replace(block.attention, relative=relative)))
    return tuple(changed)


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
)
