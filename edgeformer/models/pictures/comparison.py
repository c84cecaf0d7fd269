"""The comparison of models of pictures and text with those of transformers: what both read, and their outputs."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from edgeformer.config import PictureEncoderConfig, PictureTextConfig

PLACEHOLDER = -1
"""The id in the place of each state of a picture, in the texts that are compared."""
ANSWER = 8
"""Tokens at the end of such a text that follow a prompt whose tokens attend both ways."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """How the states of tiles are put together: which of them are added, int64 [T, n], and their factors [T, n]."""

    rows: Tensor
    weights: Tensor

    def of(self, states: Tensor) -> Tensor:
        """Return the states of a picture [T, E], of those of all tiles [N, E], as runtimes compute them."""
        return (states[self.rows] * self.weights.unsqueeze(-1)).sum(1)


@dataclass(frozen=True, kw_only=True)
class BeyondLimit:
    """States of the tiles of a picture [N, P, E], its height and width [2], and how they become fewer."""

    states: Tensor
    size: Tensor
    packed: Packed


@dataclass(frozen=True, kw_only=True)
class PicturesInText:
    """A text with pictures, as both modules read it.

    Attributes:
        text: int64 [1, N], with `PLACEHOLDER` in the place of each state.
        pictures: what `PictureText.see` reads: of one run for all pictures, or of one for each.
        theirs: what transformers' module reads of all pictures, by its names.
        positions: int64 [3, 1, N], where positions have axes.
        packed: how states of tiles are put together, where they are.
        beyond: a picture of more states than are kept, where there is a limit.
    """

    text: Tensor
    pictures: Sequence[Sequence[Tensor]]
    theirs: Mapping[str, Tensor]
    positions: Tensor | None = None
    packed: Packed | None = None
    beyond: BeyondLimit | None = None


def encoder_by_ours(module: Any, config: PictureEncoderConfig, inputs: PicturesInText) -> list[Tensor]:
    """Return what edgeformer's module of an encoder computes: states of pictures, and what its graph returns."""
    text, seen = inputs.text, inputs.text == PLACEHOLDER
    features = torch.cat([module.see(*picture).flatten(0, 1) for picture in inputs.pictures])
    embeddings = module.with_pictures(module.embed_wide(text.masked_fill(seen, 0)), seen, features)
    return [features, *module.read_embeddings(embeddings, torch.ones_like(text))]


def encoder_by_theirs(model: Any, config: PictureEncoderConfig, inputs: PicturesInText) -> tuple[Tensor, Any]:
    """Return what transformers' module of an encoder computes: states of pictures, and its output."""
    text = inputs.text.masked_fill(inputs.text == PLACEHOLDER, model.config.image_token_id)
    features = getattr(model, "model", model).get_image_features(**inputs.theirs, return_dict=True).pooler_output
    states = torch.cat([each.flatten(0, -2) for each in features])
    return states, model(input_ids=text, return_dict=True, **inputs.theirs)


def pictures_by_ours(
    module: Any, config: PictureTextConfig, inputs: PicturesInText, caches: Sequence[Any]
) -> list[Tensor]:
    """Return what edgeformer's module computes: states of pictures, logits, and states beyond a limit."""
    text, seen = inputs.text, inputs.text == PLACEHOLDER
    features = torch.cat([module.see(*picture).flatten(0, 1) for picture in inputs.pictures])
    if inputs.packed is not None:
        features = inputs.packed.of(features)
    placeholder = 0 if config.layer_input is None else config.layer_input.placeholder
    embeddings = module.with_pictures(module.embed_wide(text.masked_fill(seen, placeholder)), seen, features)
    if config.bidirectional is None:
        positions = [] if inputs.positions is None else [inputs.positions]
        logits = module.read_embeddings(embeddings, torch.ones_like(text), caches, *positions)[0]
    else:
        numbers = _prompt(text) - 1 if config.bidirectional == "prompt" else _pictures(seen)
        logits = module.read_blocks(embeddings, numbers[0].tolist(), caches)[0]
    beyond = [] if inputs.beyond is None else [inputs.beyond.packed.of(inputs.beyond.states.flatten(0, 1))]
    return [features[:, : config.hidden_size], logits, *beyond]


def _pictures(seen: Tensor) -> Tensor:
    """Return the number of the picture that each token [1, S] is a state of, between which is text; −1 for text."""
    begins = seen & ~F.pad(seen[:, :-1], (1, 0))
    return torch.where(seen, begins.cumsum(1), -1)


def _prompt(text: Tensor) -> Tensor:
    """Return 1 for the tokens [1, S] of a prompt, and 0 for those of the answer behind it."""
    return (torch.arange(text.shape[1]) < text.shape[1] - ANSWER).to(torch.int64).unsqueeze(0)


def pictures_by_theirs(model: Any, config: PictureTextConfig, inputs: PicturesInText) -> list[Tensor]:
    """Return what transformers' module computes: states of pictures, logits, and states beyond a limit."""
    text, seen, types = inputs.text, inputs.text == PLACEHOLDER, {}
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:  # by which it decides what attends both ways
        types = {"mm_token_type_ids": seen.to(torch.int64)}
    elif config.bidirectional is not None:
        types = {"token_type_ids": 1 - _prompt(text) if config.bidirectional == "prompt" else seen.to(torch.int64)}
    text = text.masked_fill(seen, model.config.image_token_id)
    cpu = torch.device("cpu")  # Idefics3 moves states to where its parameters are, which are on the meta device
    devices = (patch.object(kind, "device", cpu) for kind in {type(model), type(model.model)})
    with ExitStack() as patches, positions_in_float32(model):
        for each in devices:
            patches.enter_context(each)
        features = model.get_image_features(**inputs.theirs, return_dict=True).pooler_output
        masks = static_masks(model, text, **types) if config.bidirectional == "windows" else {}
        logits = model(input_ids=text, return_dict=True, use_cache=False, **types, **masks, **inputs.theirs).logits
    beyond = []
    if inputs.beyond is not None:
        states, size = inputs.beyond.states, [inputs.beyond.size.tolist()]
        extra = {"image_newline": states[0, -1], "vision_aspect_ratio": model.config.vision_aspect_ratio}
        beyond, _ = model.model.pack_image_features([states[:, :-1]], size, **extra)
    return [torch.cat([each.flatten(0, -2) for each in features]), logits, *beyond]


def static_masks(model: Any, text: Tensor, mm_token_type_ids: Tensor) -> dict[str, Any]:
    """Return the masks of a text as `generate` of transformers makes them for a static cache: an argument of `forward`.

    They are those that it makes by itself, but for the unified Gemma 4 (`families/picture_text/…/gemma4_unified.py`).
    """
    hidden = model.config.get_text_config().hidden_size
    states, positions = torch.zeros(*text.shape, hidden, dtype=torch.float64), torch.arange(text.shape[1])[None]
    # Without mask and cache, whose argument has another name since transformers 5.24.
    masks = model.create_masks_for_generate(
        model.config, states, None, None, positions, mm_token_type_ids=mm_token_type_ids
    )
    return {"attention_mask": masks}


def sounds_by_theirs(model: Any, config: PictureTextConfig, inputs: PicturesInText) -> list[Tensor]:
    """Return what transformers' module computes: states of recordings, and logits."""
    text = inputs.text.masked_fill(inputs.text == PLACEHOLDER, model.config.audio_token_id)
    found: list[Tensor] = []
    # Not every class has a method for these states alone.
    hook = model.model.multi_modal_projector.register_forward_hook(lambda module, given, states: found.append(states))
    try:
        logits = model(
            input_ids=text, attention_mask=torch.ones_like(text), return_dict=True, use_cache=False, **inputs.theirs
        ).logits
    finally:
        hook.remove()
    features = found[0].reshape(-1, config.hidden_size)
    return [features if inputs.packed is None else inputs.packed.of(features), logits]


@contextmanager
def positions_in_float32(model: Any) -> Iterator[None]:
    """Let towers that find positions by parts of height and width compute these in float32, as they always do.

    Where everything else is computed in float64, rounding would make other positions of them.
    """
    before, entered = torch.get_default_dtype(), ExitStack()

    def enter(*_: Any) -> None:
        entered.enter_context(torch._C.DisableTorchFunction())  # of a mode that computes in float64
        torch.set_default_dtype(torch.float32)

    def leave(*_: Any) -> None:
        torch.set_default_dtype(before)
        entered.close()

    hooks = []
    for module in model.modules():
        if hasattr(module, "num_patches_per_side"):
            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
