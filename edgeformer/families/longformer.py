"""Longformer: RoBERTa with windows; the first token has global attention if the text is classified.

Source: transformers/models/longformer/modeling_longformer.py.
"""

from edgeformer.config import ClassificationHead, EncoderConfig, QuestionAnsweringHead
from edgeformer.errors import ConfigError
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import of_each_layer, vary_attention, within
from edgeformer.families.bert import COUNTED, body_tensors
from edgeformer.families.roberta import HEAD_TENSORS, ROBERTA_IGNORED, read_roberta


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a Longformer config.json."""
    fields.ignore("onnx_export", "sep_token_id")
    # Options of the first release that transformers does not have.
    fields.choice("attention_mode", {"longformer": None}, "longformer")
    fields.choice("ignore_attention_mask", {False: None}, False)
    config = read_roberta(fields, context_length, "Longformer")
    if isinstance(config.head, QuestionAnsweringHead):
        raise ConfigError(
            "config.json has architectures = ['LongformerForQuestionAnswering'], where every token of the question is "
            "global, and edgeformer has a fixed number of global tokens. For the states alone, change it to "
            "['LongformerModel']."
        )
    windows = read_windows(fields, len(config.blocks))
    # In transformers, the first token is global if its state is classified; otherwise no token is.
    if isinstance(config.head, ClassificationHead) and config.head.pooling == "first":
        everywhere = {"global_tokens": 1, "global_projections": True}
        return vary_attention(config, ({"window": window, **everywhere} for window in windows))
    return vary_attention(config, ({"window": within(window, config)} for window in windows))


def read_windows(fields: Fields, layers: int) -> list[int]:
    """Return the window of each layer, half of `attention_window` on each side. Raises ConfigError for an odd one."""
    widths = fields.take("attention_window", 512)
    widths = of_each_layer("attention_window", widths if isinstance(widths, list) else [widths] * layers, layers)
    odd = [width for width in widths if width <= 0 or width % 2]
    if odd:
        raise ConfigError(f"config.json has attention_window = {odd[0]}; windows are positive even numbers.")
    return [width // 2 + 1 for width in widths]


PARTS = ("query", "key", "value")

FAMILY = Family(
    summary="Longformer; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        **body_tensors("longformer"),
        **{
            f"blocks.*.attention.global_{part}": f"longformer.encoder.layer.*.attention.self.{part}_global"
            for part in PARTS
        },
        **HEAD_TENSORS,
    },
    optional_prefix="longformer.",
    computed_tensors=COUNTED,
    # Projections of global tokens, for models without these.
    ignored_tensors=(
        *ROBERTA_IGNORED,
        rf"longformer\.encoder\.layer\.\d+\.attention\.self\.({'|'.join(PARTS)})_global\.(weight|bias)",
    ),
)
