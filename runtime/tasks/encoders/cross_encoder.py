"""Scores of pairs of texts, as sentence-transformers' CrossEncoder gives them.

Source: sentence_transformers/cross_encoder/model.py of sentence-transformers 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import ClassificationHead
from edgeformer.runtime.tasks.labels import sigmoid
from edgeformer.runtime.text import long_texts
from edgeformer.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A document of a ranking: its place in the list that was given, its score, and its text."""

    index: int
    score: float
    text: str


def encode_messages(
    tokenizer: Tokenizer, pair: tuple[str, str], prompt: str | None, is_open: bool, most: int | None
) -> list[int]:
    """Return the token ids of a pair by the chat template, as messages of the roles query and document.

    prompt: the message of the system. is_open: whether the answer begins at the end. most: tokens at most; what is
    too long is cut within the document, so that what the template writes behind it stays.
    """
    texts = pair if most is None else tuple(long_texts.beginning(tokenizer.backend, text, most) for text in pair)

    def encode(document: str) -> list[int]:
        messages = [] if prompt is None else [{"role": "system", "content": prompt}]
        messages += [{"role": "query", "content": texts[0]}, {"role": "document", "content": document}]
        return tokenizer.encode_chat(messages, add_generation_prompt=is_open)

    ids = encode(texts[1])
    if most is None or len(ids) <= most:
        return ids
    one, other = encode("a")[::-1], encode("b")[::-1]
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    suffix = one[:same][::-1]
    return [*ids[: max(0, most - same)], *suffix][:most]


def score_of(head: ClassificationHead, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scores of logits [..., labels]; one label has no axis of its own."""
    score = head.score or ("sigmoid" if len(head.labels) == 1 else "identity")
    if score == "sigmoid":
        logits = sigmoid(logits).astype(np.float32)
    return logits[..., 0] if len(head.labels) == 1 else logits


def best_documents(documents: Sequence[str], scores: NDArray[np.float32], most: int) -> list[Ranked]:
    """Return at most so many documents by falling score; of equal ones the first comes first."""
    order = np.argsort(-scores, kind="stable")[:most].tolist()
    return [Ranked(index=index, score=float(scores[index]), text=documents[index]) for index in order]
