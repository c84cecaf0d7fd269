"""Stories that a preset goes on with itself: what its drafts have to guess when it writes greedily."""

from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgeformer.models import Decoder
from presets.corpora.mixture import plain
from presets.corpora.problem import draw
from presets.corpora.stories import story
from presets.packing import IGNORED, Tokens

BATCH = 256
"""Stories that are written at once; their beginnings are equally long."""

BEGUN = (2, 30)
"""Tokens of a beginning: at least, and fewer than."""


def own_stories(module: Decoder, tokenizer: Tokenizer, end: int, length: int, count: int, seed: int) -> list[Tokens]:
    """Return stories of up to `length` tokens, which the module wrote greedily behind beginnings of the corpus.

    end: the token that ends a story. The beginnings are not to be learned.
    """
    random, found = Random(f"{seed}/own"), list[Tokens]()
    while len(found) < count:
        size, prompts = random.randrange(*BEGUN), list[list[int]]()
        while len(prompts) < BATCH:
            ids = tokenizer.encode(plain(draw(story, random, held_out=False))[1][0]).ids
            if len(ids) > size:
                prompts.append(ids[:size])
        for text in greedy(module, torch.tensor(prompts), end, length).tolist():
            text = [*text[:size], *text[size : text.index(end, size) + 1 if end in text[size:] else None]]
            found.append(Tokens(text, [IGNORED] * (size - 1) + text[size:] + [IGNORED]))
    return found[:count]


@torch.no_grad()
def greedy(module: Decoder, prompts: Tensor, end: int, length: int) -> Tensor:
    """Return prompts int64 [B, P] with the most likely tokens behind them, int64 [B, length or less].

    It ends where every row has its end token.
    """
    geometry = module.config.cache_geometry
    caches = geometry.by_layer([torch.zeros(tensor.shape(len(prompts), 0)) for tensor in geometry.tensors()])
    ids, new, ended = prompts, prompts, torch.zeros(len(prompts), dtype=torch.bool)
    while ids.shape[1] < length and not ended.all():
        logits, caches = module(new, torch.ones_like(ids), caches)
        new = logits[:, -1].argmax(-1, keepdim=True)
        ids, ended = torch.cat((ids, new), 1), ended | (new[:, 0] == end)
    return ids
