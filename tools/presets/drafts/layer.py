"""Drafts of a layer of multi-token prediction over packed documents, several tokens deep, as they are made at run time.

A draft that begins behind token i reads the layer's own states from its second token on, and attends to what the layer
read of the text up to there, and to itself:

    of the text        h₀t₁   h₁t₂   h₂t₃   h₃t₄          ──→ first drafted token behind each, and states g⁰
    second of a draft     ↘ g⁰₀t₂  ↘ g⁰₁t₃  ↘ g⁰₂t₄       ──→ second drafted tokens, and states g¹
    third of a draft         ↘ g¹₀t₃  ↘ g¹₁t₄             ──→ third …

The drafts of all places run beside each other, as one row of [depth · S] places with a mask. Source: the "training-time
test" of EAGLE-3 (arXiv 2503.01840); the layer is that of `MTPConfig`.
"""

import torch
from torch import Tensor

from edgeformer.models import Decoder
from edgeformer.models.stack import Run
from presets.packing import IGNORED, Rows


def body(module: Decoder, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the states that the head reads [B, S, E], and the logits behind each token [B, S, V]."""
    x, run = module.embed(rows.ids, rows.documents)
    for index in range(len(module.blocks)):
        x, _ = module.run_block(index, x, (), run)
    states = module.final_states(x)
    return states, module.logits_of(states)


def drafted(module: Decoder, rows: Rows, states: Tensor, depth: int) -> Tensor:
    """Return the layer's states of drafts of `depth` tokens from every place on, [B, depth, S, E].

    The states that a draft feeds back are inputs like any others: no gradient goes through them.
    """
    assert module.config.mtp is not None and module.config.mtp.block.attention is not None
    batch, length = rows.ids.shape
    embedded, read = module.embed_tokens(rows.ids), [states]
    tokens = [embedded.roll(-1 - number, 1) for number in range(depth)]
    for count in range(1, depth + 1):
        with torch.set_grad_enabled(torch.is_grad_enabled() and count == depth):
            positions = torch.cat([torch.arange(length) + number for number in range(count)])[None]
            run = Run(_visible(rows.documents, count), positions, positions, {})
            context = module._attention_context(module.config.mtp.block.attention, run)
            found, _ = module.mtp(torch.cat(tokens[:count], 1), torch.cat(read, 1), (), context)
        read.append(found[:, -length:])
    return found.view(batch, depth, length, -1)


def _visible(documents: Tensor, depth: int) -> Tensor:
    """Return which places each may attend to, bool [B, depth · S, depth · S]: its text's, and its own draft's."""
    length = documents.shape[1]
    text = (documents[:, :, None] == documents[:, None]) & torch.ones(length, length, dtype=torch.bool).tril()
    own, none = torch.eye(length, dtype=torch.bool).expand_as(text), torch.zeros_like(text)
    parts = [
        torch.cat((text, *(own if number <= row else none for number in range(1, depth))), -1) for row in range(depth)
    ]
    return torch.cat(parts, 1)


def verified(rows: Rows, depth: int) -> Tensor:
    """Return which drafted tokens stand for a token that the model learned to write, bool [B, depth, S].

    Token n of the draft of place i is judged by what the body says behind token i + n, for n from 1.
    """
    found = []
    for number in range(1, depth + 1):
        targets, documents = (each.roll(-number, 1) for each in (rows.targets, rows.documents))
        inside = torch.arange(rows.ids.shape[1]) < rows.ids.shape[1] - number
        found.append((targets != IGNORED) & (documents == rows.documents) & (rows.documents > 0) & inside)
    return torch.stack(found, 1)


def accepted(module: Decoder, rows: Rows, depth: int) -> Tensor:
    """Return how many of the drafted tokens come true when the body writes greedily, by the length of what is right.

    int64 [depth + 1]: the drafts whose first 1 … depth tokens are all the body's, behind the number of all drafts.
    """
    states, logits = body(module, rows)
    chosen = module.logits_of(drafted(module, rows, states, depth)).argmax(-1)
    asked = verified(rows, depth).all(1)
    counts, right = [asked.sum()], asked
    for number in range(depth):
        right = right & (chosen[:, number] == logits.argmax(-1).roll(-1 - number, 1))
        counts.append(right.sum())
    return torch.stack(counts)
