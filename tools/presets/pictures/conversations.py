"""Conversations about pictures as tokens: what stands for a picture, questions, answers, and where to look for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from tokenizers import Tokenizer
from torch import Tensor

from presets.packing import IGNORED
from presets.pictures import hints
from presets.pictures.questions import Asked
from presets.pictures.scenes import SEEN, TILE, TILE_CELLS

BORDER, WHOLE = "<fake_token_around_image>", "<global-img>"
TILES = SEEN // TILE
NAMES = [f"<row_{row + 1}_col_{column + 1}>" for row in range(TILES) for column in range(TILES)]
END, USER, ASSISTANT, IMAGE = "<|end|>", "<|user|>", "<|assistant|>", "<image>"
SPECIAL_TOKENS = [END, USER, ASSISTANT, IMAGE, BORDER, WHOLE, *NAMES]

STATES = TILE_CELLS**2
"""States of a tile, each of a cell; those of the whole picture are of quarters."""

Turns = Sequence[Asked]
"""Questions about a picture and their answers, each with those before it in sight."""


def prefix_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens before a question: the role, and what stands for a picture."""
    text = USER
    for index, name in enumerate(NAMES):
        text += BORDER + name + IMAGE * STATES
        text += "\n" if (index + 1) % TILES == 0 else ""
    text += f"\n{BORDER}{WHOLE}{IMAGE * STATES}{BORDER}"
    found: list[int] = tokenizer.encode(text).ids
    return found


@dataclass(frozen=True)
class Batch:
    """Conversations about pictures, each tensor [B, Q, S, …]. ids and targets: int64. pointers: where to look."""

    ids: Tensor
    targets: Tensor
    pointers: hints.Pointers


def encode_turns(tokenizer: Tokenizer, rows: Sequence[Sequence[Turns]]) -> Batch:
    """Return the same number of conversations about each picture as tokens."""

    @cache
    def encode(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text).ids
        return found

    user, assistant, end = (SPECIAL_TOKENS.index(token) for token in (USER, ASSISTANT, END))
    [comma] = encode(",")
    every = [turns for row in rows for turns in row]
    longest = (
        max(sum(len(encode(each.question)) + len(encode(each.answer)) + 3 for each in turns) for turns in every) - 1
    )
    ids, targets = torch.zeros(len(every), longest, dtype=torch.int64), torch.full((len(every), longest), IGNORED)
    pointers = hints.Pointers.none(len(every), longest)
    for index, turns in enumerate(every):
        start = 0
        for number, one in enumerate(turns):
            asked = [user] * (number > 0) + encode(one.question) + [assistant]
            answered = [*encode(one.answer), end]
            first, stop = start + len(asked) - 1, start + len(asked) + len(answered)
            ids[index, start:stop] = torch.tensor(asked + answered)
            targets[index, first : stop - 1] = torch.tensor(answered)
            listed = [first, *(first + 1 + place for place, token in enumerate(answered) if token == comma)]
            pointers.set(index, listed, one)
            start = stop
    shape = len(rows), -1, longest
    return Batch(ids.view(shape), targets.view(shape), pointers.view(len(rows)))
