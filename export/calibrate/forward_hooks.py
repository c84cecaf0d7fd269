"""Run a model on calibration texts, and observe what its layers read and return."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.reference.reference import Reference
from edgeformer.models.model_spec import ModelSpec
from edgeformer.runtime.caches.encoder_outputs import pad_right


def padded(text: CalibrationTokens) -> tuple[Tensor, Tensor]:
    """Return the token ids of all texts and the mask that is 0 for padding, int64 [B, S] each."""
    ids, mask = map(torch.from_numpy, pad_right([each.tolist() for each in text.texts], 0))
    return ids, mask


def valid_tokens(x: Tensor, valid: Tensor) -> Tensor:
    """Return the inputs x [..., K] of a layer as [n, K], without those of padding. valid: bool [B, S].

    Nothing is copied if all tokens are valid: the inputs of a wide layer are a large part of calibration's memory.
    """
    padding = x.shape[:-1] == valid.shape and not valid.all()
    return x[valid] if padding else x.flatten(0, -2)


class _StopForward(Exception):
    """Raised by a hook to end a forward pass, for which PyTorch has no other way. It does not leave this module."""


def run_observed(
    reference: Reference,
    model_spec: ModelSpec,
    ids: Tensor,
    mask: Tensor,
    *,
    until: Callable[[], bool],
    before: Iterable[tuple[nn.Module, Callable[[Tensor], None]]],
    after: Iterable[tuple[nn.Module, Callable[[Tensor, Tensor], None]]] = (),
) -> None:
    """Run a model on token ids int64 [B, S], and call observers when its layers run.

    before: layers, and observers that are called with a layer's input before it runs. after: observers that are called
    with its input and its output, which they may change in place. The run ends as soon as `until()` is true after an
    observer of `before`; as a rule that saves the logits [B, S, V].
    """
    with ExitStack() as stack:
        for layer, observe in before:
            stack.callback(layer.register_forward_pre_hook(partial(_before, observe, until)).remove)
        for layer, observe_both in after:
            stack.callback(layer.register_forward_hook(partial(_after, observe_both)).remove)
        stack.enter_context(reference.loaded())
        stack.enter_context(suppress(_StopForward))
        model_spec.read(reference.module, ids, mask, reference.empty_caches(len(ids)))


def _before(observe: Callable[[Tensor], None], until: Callable[[], bool], layer: nn.Module, inputs: Any) -> None:
    observe(inputs[0])
    if until():
        raise _StopForward


def _after(observe: Callable[[Tensor, Tensor], None], layer: nn.Module, inputs: Any, output: Tensor) -> None:
    observe(inputs[0], output)
