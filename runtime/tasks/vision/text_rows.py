"""The token ids of texts for a dual encoder, as the processor that it was trained with makes them."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import DualEncoderConfig
from edgeformer.runtime.text.tokenizer import Tokenizer


def text_rows(tokenizer: Tokenizer, texts: Sequence[str], config: DualEncoderConfig, padding: int) -> NDArray[np.int64]:
    """Return the token ids of texts, int64 [N, S], cut to the context length, and padded to it where the model is.

    padding: the token that stands for none. tokenizer_config.json says on which side it is (padding_side).
    """
    encoded = [tokenizer.encode_truncated([text], config.context_length)[0] for text in texts]
    side: Literal["left", "right"] = "left" if tokenizer.config.get("padding_side") == "left" else "right"
    return padded(encoded, config, padding, side)


def padded(
    encoded: Sequence[Sequence[int]], config: DualEncoderConfig, padding: int, side: Literal["left", "right"]
) -> NDArray[np.int64]:
    """Return token ids as rows of one length, int64 [N, S]: the longest, or the context length of a padded model.

    A model that is not padded to its context length counts positions from the first token, so that its padding is
    always on the right.
    """
    length = config.context_length if config.padded else max(1, *map(len, encoded))
    rows = np.full((len(encoded), length), padding, np.int64)
    for row, ids in zip(rows, encoded, strict=True):
        start = length - len(ids) if config.padded and side == "left" else 0
        row[start : start + len(ids)] = ids
    return rows
