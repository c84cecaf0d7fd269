"""Pack documents of different lengths into rows of one length."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

IGNORED = -100
"""Target of a token whose successor is not learned; torch's own default of `ignore_index`."""


@dataclass(frozen=True)
class Tokens:
    """One document. targets: the successor of each token, or IGNORED."""

    ids: list[int]
    targets: list[int]


@dataclass(frozen=True)
class Rows:
    """Packed documents, each tensor int64 [B, S]. documents: numbers from 1 in each row, 0 for padding."""

    ids: Tensor
    targets: Tensor
    documents: Tensor


def encode(tokenizer: Tokenizer, pieces: Iterable[tuple[str, bool]]) -> Tokens:
    """Encode a text given in pieces, each with whether it is to be learned.

    The first token of a text has nothing before it, so it is never learned.
    """
    ids: list[int] = []
    learned: list[bool] = []
    for text, learn in pieces:
        found = tokenizer.encode(text).ids
        ids += found
        learned += [learn] * len(found)
    follows = zip(ids[1:], learned[1:], strict=True)
    return Tokens(ids, [token if learn else IGNORED for token, learn in follows] + [IGNORED])


def pack(documents: Iterable[Tokens], length: int) -> Rows:
    """Fill rows, the longest document first, each into the first row with room. Documents longer than a row are cut."""
    rows: list[list[Tokens]] = []
    room: list[int] = []
    for document in sorted(documents, key=lambda each: -len(each.ids)):
        size = min(len(document.ids), length)
        place = next((row for row, left in enumerate(room) if left >= size), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(length)
        rows[place].append(document)
        room[place] -= size
    return _fill(rows, length)


def one_a_row(documents: Sequence[Tokens]) -> Rows:
    """Return one row per document, in their order, padded to the longest."""
    return _fill([[document] for document in documents], max(len(document.ids) for document in documents))


def _fill(rows: Sequence[Sequence[Tokens]], length: int) -> Rows:
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    targets, numbers = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
    for row, members in enumerate(rows):
        start = 0
        for number, document in enumerate(members, 1):
            end = min(start + len(document.ids), length)
            ids[row, start:end] = torch.tensor(document.ids[: end - start])
            targets[row, start:end] = torch.tensor(document.targets[: end - start])
            numbers[row, start:end] = number
            start = end
    return Rows(ids, targets, numbers)


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Return rows of different lengths as int64 [B, longest], with the filler on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])
