"""The embeddings of a batch of texts with pictures, which an encoder reads at once.

tokens      [<s>, 9, 9, 31, </s>]      the placeholder, 9, for each state of a picture
embeddings  [e,   s, s, e,  e   ]      of tokens by the graph `embed_tokens`, and the states of the picture
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.caches.encoder_outputs import pad_right
from edgeformer.runtime.steps.picture_rows import PictureGraphs
from edgeformer.runtime.steps.picture_tower import Features


def placed_embeddings(
    graphs: PictureGraphs, texts: Sequence[NDArray[np.int64]], states: Sequence[Sequence[Features]], padding: int
) -> tuple[Features, NDArray[np.int64]]:
    """Return the embeddings of texts, float32 [B, S, E], padded on the right, and their mask, int64 [B, S].

    states: of the pictures of each text, in its order. padding: the token that fills rows.
    """
    ids, mask = pad_right([text.tolist() for text in texts], padding)
    embeddings: Features = graphs.embed.run(["inputs_embeds"], {"input_ids": ids})[0]
    for row, seen, found in zip(embeddings, (ids == graphs.token) & (mask == 1), states, strict=True):
        if found:
            row[seen] = np.concatenate(found)
    return embeddings, mask
