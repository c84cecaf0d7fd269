"""The loss that quantization causes: logits of a model on texts, compared with those of its float32 export."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgeformer.runtime import load

PIECE = 16
"""Positions whose logits are compared at a time: some in float64 stay in the processor's cache."""


@dataclass(frozen=True)
class Text:
    """Token ids of a question and its answer; the first `asked` tokens are the question."""

    tokens: list[int]
    asked: int = 0


@dataclass(frozen=True)
class Loss:
    """The loss that quantization causes.

    Attributes:
        bytes: size of graph and weights.
        kl: mean divergence over the tokens of the answers, in nats.
        kl_anywhere: over all tokens.
        top1: fraction of answer tokens where the top-1 token is the same.
        perplexity: ratio to float32's, on the answers.
    """

    bytes: int
    kl: float
    kl_anywhere: float
    top1: float
    perplexity: float


def logits_of(bundle: Path, texts: list[Text]) -> Iterator[NDArray[np.float32]]:
    """Yield logits [S, V] after each of the S tokens, one text after the other."""
    model = load(bundle, provider="cpu")
    return (model.forward(text.tokens) for text in texts)


def keep_logits(bundle: Path, texts: list[Text], folder: Path) -> list[NDArray[np.float32]]:
    """Return the logits after each token of each text, mapped from files that are written into a folder."""
    for number, logits in enumerate(logits_of(bundle, texts)):
        np.save(folder / f"{number}.npy", logits)
    return read_logits(texts, folder)


def read_logits(texts: list[Text], folder: Path) -> list[NDArray[np.float32]]:
    """Return the logits that `keep_logits` wrote."""
    return [np.load(folder / f"{number}.npy", mmap_mode="r") for number in range(len(texts))]


def perplexity_of(logits: Iterable[NDArray[np.float32]], texts: list[Text]) -> float:
    """Return the perplexity of the answers."""
    nats = []
    for text, each in zip(texts, logits, strict=True):
        predicted = np.take_along_axis(log_softmax(each)[:-1], np.array(text.tokens[1:])[:, None], -1)[:, 0]
        nats.append(-predicted[max(text.asked - 1, 0) :])
    return float(np.exp(np.concatenate(nats).mean()))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the log-probabilities of the next token [S, V]."""
    return torch.from_numpy(np.array(logits)).double().log_softmax(-1).numpy()


def _rows(
    rounded: NDArray[np.float32], whole: NDArray[np.float32], tokens: list[int], first: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return, of PIECE positions: divergences, whether the top-1 tokens are the same, and nats lost on the next token.

    The last token is followed by none, so that the third has a number less at the end of a text.
    """
    piece = slice(first, first + PIECE)
    ours, truth = log_softmax(rounded[piece]), log_softmax(whole[piece])
    divergence = (np.exp(truth) * (truth - ours)).sum(-1)
    nexts = np.array(tokens[first + 1 : first + PIECE + 1], np.int64)
    rows = np.arange(len(nexts))
    return divergence, ours.argmax(-1) == truth.argmax(-1), truth[rows, nexts] - ours[rows, nexts]


def compare(
    files: Iterable[Path],
    logits: Iterable[NDArray[np.float32]],
    exact: Iterable[NDArray[np.float32]],
    texts: list[Text],
) -> Loss:
    """Return the loss of a model, given its files, its logits and the exact logits."""
    everywhere, divergences, same, nats = [], [], [], []
    for text, rounded, whole in zip(texts, logits, exact, strict=True):
        pieces = [_rows(rounded, whole, text.tokens, first) for first in range(0, len(text.tokens), PIECE)]
        divergence, alike, lost = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        written = slice(max(text.asked - 1, 0), None)  # the last token of a question predicts the first of the answer
        everywhere.append(divergence)
        divergences.append(divergence[written])
        same.append(alike[written])
        nats.append(lost[written])
    return Loss(
        bytes=sum(path.stat().st_size for path in files),
        kl=float(np.concatenate(divergences).mean()),
        kl_anywhere=float(np.concatenate(everywhere).mean()),
        top1=float(np.concatenate(same).mean()),
        perplexity=float(np.exp(np.concatenate(nats).mean())),
    )
