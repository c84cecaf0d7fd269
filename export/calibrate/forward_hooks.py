"""Let a model read the texts that it is calibrated with, and look at what its layers read."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from edgeformer.config import EncoderConfig, Seq2SeqConfig
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.reference.reference import Reference
from edgeformer.model_spec import ModelSpec
from edgeformer.runtime.encoder_outputs import pad_right


def padded(text: CalibrationTokens) -> tuple[Tensor, Tensor]:
    """Token ids of all texts, and which are no padding: int64 [B, S] each."""
    ids, mask = map(torch.from_numpy, pad_right([each.tolist() for each in text.texts], 0))
    return ids, mask


def valid_tokens(x: Tensor, valid: Tensor) -> Tensor:
    """Inputs [n, K] of a layer, of x [..., K], without those of padding. valid: bool [B, S].

    No copy, where all are valid: those of a wide layer are a large part of what calibration takes.
    """
    padding = x.shape[:-1] == valid.shape and not valid.all()
    return x[valid] if padding else x.flatten(0, -2)


class Enough(Exception):
    """For hooks to raise: all that was to be seen of a text has been, and logits as a rule need not be computed."""


def let_read(reference: Reference, model_spec: ModelSpec, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Let a model of any kind read token ids int64 [B, S]; both halves of a pair read the same.

    Returns what it says: logits or, of an encoder, states and what its head makes of them.
    """
    config, module = model_spec.config, reference.module
    caches = [reference.empty_cache(len(ids))] * model_spec.cache.num_layers
    match config:
        case EncoderConfig(token_types=types):
            return tuple(module(ids, mask, torch.zeros_like(ids) if types > 1 else None))
        case Seq2SeqConfig():
            _, sources = module.encode(ids, mask)
            return (module.decode(ids, mask, mask, caches, sources)[0],)
        case _:
            return (module(ids, mask, caches)[0],)


def read_with_hooks(
    reference: Reference, model_spec: ModelSpec, ids: Tensor, mask: Tensor, hooks: Sequence[RemovableHandle]
) -> None:
    """Let a model read until a hook of its layers has seen `Enough`, and remove the hooks."""
    with ExitStack() as undo:
        for hook in hooks:
            undo.callback(hook.remove)
        undo.enter_context(reference.loaded())
        undo.enter_context(suppress(Enough))
        let_read(reference, model_spec, ids, mask)
