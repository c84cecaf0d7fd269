"""Run a model on calibration texts, and observe what its layers read and return."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgeformer.export.calibrate.picture_texts import SeenPicture
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.reference.reference import Reference
from edgeformer.models.model_spec import ModelSpec
from edgeformer.runtime.caches.encoder_outputs import pad_right
from edgeformer.runtime.media.pictures.positions import AXES, picture_spans, positions_of


@dataclass(frozen=True)
class Inputs:
    """Texts as a module reads them.

    Attributes:
        ids, mask: int64 [B, S] each; the mask is 0 for padding.
        features: what stands in the places of embeddings, float32 [N, E]; None for texts without pictures.
        seen: where it stands, bool [B, S].
        positions: int64 [3, B, S], where positions have axes.
    """

    ids: Tensor
    mask: Tensor
    features: Tensor | None = None
    seen: Tensor | None = None
    positions: Tensor | None = None

    def twice(self) -> "Inputs":
        """Return the same texts twice in the batch."""
        return Inputs(
            self.ids.repeat(2, 1),
            self.mask.repeat(2, 1),
            None if self.features is None else self.features.repeat(2, 1),
            None if self.seen is None else self.seen.repeat(2, 1),
            None if self.positions is None else self.positions.repeat(1, 2, 1),
        )

    def run(self, reference: Reference, model_spec: ModelSpec) -> Tensor:
        """Return what the loaded module returns first: logits [B, S, V], or hidden states of an encoder.

        Pictures look back, as text does, also where they attend both ways: layers read all tokens in one run here.
        """
        module, caches = reference.module, reference.empty_caches(len(self.ids))
        if self.features is None:
            return model_spec.read(module, self.ids, self.mask, caches)[0]
        embeddings = module.with_pictures(module.embed_wide(self.ids), self.seen, self.features)
        if model_spec.form == "encoder":
            states: Tensor = module.read_embeddings(embeddings, self.mask)[0]
            return states
        logits: Tensor = module.read_embeddings(embeddings, self.mask, caches, self.positions, looks_back=True)[0]
        return logits


def inputs_of(reference: Reference, text: CalibrationTokens) -> Inputs:
    """Return what a module reads of all texts, padded on the right; its tower reads their pictures."""
    ids, mask = map(torch.from_numpy, pad_right([each.tolist() for each in text.texts], 0))
    if not text.pictures:
        return Inputs(ids, mask)
    config = reference.module.seeing
    with reference.loaded():
        features = [_features(reference.module, picture) for row in text.pictures for picture in row]
    seen = (ids == text.placeholder) & mask.bool()
    if config.axes is None:
        return Inputs(ids, mask, torch.cat(features), seen)
    positions = np.tile(np.arange(ids.shape[1]), (AXES, len(ids), 1))
    for row, (tokens, pictures) in enumerate(zip(text.texts, text.pictures, strict=True)):
        spans = picture_spans(tokens, text.placeholder, [(each.grid[0], each.grid[1]) for each in pictures])
        positions[:, row, : len(tokens)] = positions_of(len(tokens), spans)
    return Inputs(ids, mask, torch.cat(features), seen, torch.from_numpy(positions))


def _features(module: Any, picture: SeenPicture) -> Tensor:
    """Return the states of a picture [n, E], of all runs of the tower."""
    config, states = module.seeing, []
    for run in picture.runs:
        given = [torch.from_numpy(value[None] if config.tiled else value) for value in run.values()]
        states.append(module.see(*given).flatten(0, -2))
    found = torch.cat(states)
    if picture.packing is None:
        return found
    return torch.from_numpy(picture.packing.packed(found.numpy()))


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
    inputs: Inputs,
    *,
    until: Callable[[], bool],
    before: Iterable[tuple[nn.Module, Callable[[Tensor], None]]],
    after: Iterable[tuple[nn.Module, Callable[[Tensor, Tensor], None]]] = (),
) -> None:
    """Run a model on texts, and call observers when its layers run.

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
        inputs.run(reference, model_spec)


def _before(observe: Callable[[Tensor], None], until: Callable[[], bool], layer: nn.Module, inputs: Any) -> None:
    observe(inputs[0])
    if until():
        raise _StopForward


def _after(observe: Callable[[Tensor, Tensor], None], layer: nn.Module, inputs: Any, output: Tensor) -> None:
    observe(inputs[0], output)
