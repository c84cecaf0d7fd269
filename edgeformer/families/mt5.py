"""mT5: multilingual T5 v1.1.

Source: transformers/models/mt5/modeling_mt5.py.
"""

from edgeformer.config import Seq2SeqConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.t5 import IGNORED, TENSORS, read_t5


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read an mT5 config.json."""
    fields.ignore("tokenizer_class", "scale_decoder_outputs")
    return read_t5(fields, context_length, tied=fields.take("tie_word_embeddings", True), scaled=False)


FAMILY = Family(
    summary="mT5; any context length",
    read_config=read_config,
    tensors=TENSORS,
    # Defaults of transformers' config class.
    defaults={"feed_forward_proj": "gated-gelu"},
    ignored_tensors=IGNORED,
    encoder_class="MT5EncoderModel",
)
