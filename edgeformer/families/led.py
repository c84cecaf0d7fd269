"""LED: BART whose encoder has Longformer's windows, and no global token, as in transformers by default.

Source: transformers/models/led/modeling_led.py.
"""

from edgeformer.config import DecoderConfig, EncoderConfig, LearnedPositions, Seq2SeqConfig
from edgeformer.families._bart import LOGITS_BIAS, NORM, TENSORS, ignore_training, read_blocks
from edgeformer.families._family import Family, Fields, Packed
from edgeformer.families._layers import vary_attention, within
from edgeformer.families._rotary import read_context_length
from edgeformer.families.longformer import PARTS, read_windows


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read an LED config.json. The context length is that of the source; the target has at most its own positions."""
    ignore_training(fields)
    fields.ignore("attention_probs_dropout_prob", "intermediate_size", "max_position_embeddings")
    hidden_size, vocab_size = fields.take("d_model"), fields.take("vocab_size")
    tied = fields.take("tie_word_embeddings", True)
    rows = {half: fields.take(f"max_{half}_position_embeddings") for half in ("encoder", "decoder")}
    length = read_context_length(fields, context_length, "max_encoder_position_embeddings")
    sizes = {"vocab_size": vocab_size, "hidden_size": hidden_size, "final_norm": None, "embedding_norm": NORM}
    encoder = EncoderConfig(
        context_length=length,
        blocks=read_blocks(fields, "encoder", norm_placement="post"),
        position_embedding=LearnedPositions(rows=rows["encoder"]),
        **sizes,
    )
    windows = read_windows(fields, len(encoder.blocks))
    return Seq2SeqConfig(
        encoder=vary_attention(encoder, ({"window": within(window, encoder)} for window in windows)),
        decoder=DecoderConfig(
            context_length=min(context_length or rows["decoder"], rows["decoder"]),
            blocks=read_blocks(fields, "decoder", norm_placement="post"),
            position_embedding=LearnedPositions(rows=rows["decoder"]),
            tied_head=tied,
            head_bias=True,
            **sizes,
        ),
        shared_embedding=tied,
    )


def _renamed(theirs: str | Packed) -> str:
    assert isinstance(theirs, str)
    return theirs.replace("model.", "led.")


ATTENTION = "led.encoder.layers.*.self_attn"

FAMILY = Family(
    summary="LED without global tokens",
    read_config=read_config,
    tensors={
        **{ours: _renamed(theirs) for ours, theirs in TENSORS.items()},
        **{f"encoder.blocks.*.attention.{part}": f"{ATTENTION}.longformer_self_attn.{part}" for part in PARTS},
        "encoder.blocks.*.attention.output": f"{ATTENTION}.output",
    },
    defaults={"activation_function": "gelu"},
    optional_prefix="led.",
    ignored_tensors=(
        r"led\.shared\.weight",
        # Projections of global tokens.
        rf"led\.encoder\.layers\.\d+\.self_attn\.longformer_self_attn\.({'|'.join(PARTS)})_global\.(weight|bias)",
    ),
    zero_if_absent=(LOGITS_BIAS,),
)
