"""The comparison of modules of each kind with those of transformers: the class there, and the outputs compared."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from edgeformer.config import (
    ClassificationHead,
    DualEncoderConfig,
    EncoderConfig,
    PictureTextConfig,
    Seq2SeqConfig,
    VisionConfig,
)


@dataclass(frozen=True)
class Comparison:
    """How modules of a kind are run beside those of transformers.

    Attributes:
        class_name: returns the name of transformers' class with the head that is exported, of a config and the
            `architectures` of config.json.
        ours: returns the outputs of edgeformer's module, of its config, inputs [1, …] and empty caches, one for each
            stack of the config.
        theirs: returns the same outputs of transformers' module.
    """

    class_name: Callable[[Any, Sequence[str]], str]
    ours: Callable[[Any, Any, list[Tensor], Sequence[Any]], list[Tensor]]
    theirs: Callable[[Any, Any, list[Tensor]], list[Tensor]]


def _decoder_ours(module: Any, config: Any, inputs: list[Tensor], caches: Sequence[Any]) -> list[Tensor]:
    (text,) = inputs
    return [module(text, torch.ones_like(text), caches)[0]]


def _decoder_theirs(model: Any, config: Any, inputs: list[Tensor]) -> list[Tensor]:
    return [_states_or_logits(model(input_ids=inputs[0], return_dict=True, use_cache=False))]


LOGITS = frozenset({"logits", "start_logits", "end_logits"})
"""Outputs of heads that transformers' classes have, too, under the same names."""


def _compared(config: EncoderConfig) -> list[str]:
    """Return the outputs of the head that transformers' class has; none where the states are compared instead."""
    return [output.name for output in config.head_outputs if output.name in LOGITS]


def _encoder_class(config: EncoderConfig, architectures: Sequence[str]) -> str:
    return "AutoModel" if not _compared(config) or not architectures else architectures[0]


def _encoder_ours(module: Any, config: EncoderConfig, inputs: list[Tensor], caches: Sequence[Any]) -> list[Tensor]:
    (text,) = inputs
    types = [torch.zeros_like(text)] if config.token_types > 1 else []
    outputs = module(text, torch.ones_like(text), *types)
    named = dict(zip(("last_hidden_state", *(each.name for each in config.head_outputs)), outputs, strict=True))
    return [named[name] for name in _compared(config) or ["last_hidden_state"]]


def _encoder_theirs(model: Any, config: EncoderConfig, inputs: list[Tensor]) -> list[Tensor]:
    outputs = model(input_ids=inputs[0], return_dict=True)
    if isinstance(config.head, ClassificationHead) and config.head.tokens is not None:
        first, *second = config.head.tokens
        logits = outputs.logits[:, -1]
        return [logits[:, [first]] - sum((logits[:, [token]] for token in second), torch.zeros(1, 1))]
    return [getattr(outputs, name) for name in _compared(config) or ["last_hidden_state"]]


def _seq2seq_class(config: Seq2SeqConfig, architectures: Sequence[str]) -> str:
    return "AutoModelForSpeechSeq2Seq" if config.is_speech else "AutoModelForSeq2SeqLM"


def _seq2seq_ours(module: Any, config: Seq2SeqConfig, inputs: list[Tensor], caches: Sequence[Any]) -> list[Tensor]:
    source, target = inputs
    masks = [] if config.is_speech else [torch.ones_like(source)]
    states, encoder_caches = module.encode(source, *masks)
    source_mask = torch.ones(1, states.shape[1], dtype=torch.int64)
    logits, _ = module.decode(target, torch.ones_like(target), source_mask, caches, encoder_caches)
    return [states, logits]


def _seq2seq_theirs(model: Any, config: Seq2SeqConfig, inputs: list[Tensor]) -> list[Tensor]:
    name = "input_features" if config.is_speech else "input_ids"
    outputs = model(**{name: inputs[0]}, decoder_input_ids=inputs[1], use_cache=False, return_dict=True)
    return [outputs.encoder_last_hidden_state, outputs.logits]


def _vision_class(config: VisionConfig, architectures: Sequence[str]) -> str:
    return architectures[0] if architectures else "AutoModel"


def _vision_ours(module: Any, config: VisionConfig, inputs: list[Tensor], caches: Sequence[Any]) -> list[Tensor]:
    states, *others = module(*inputs)
    if config.classifier is not None:  # transformers returns no states beside logits
        return [others[-1]]
    return [states, *others[-1:]]  # nor a pooled vector beside its projection


def _vision_theirs(model: Any, config: VisionConfig, inputs: list[Tensor]) -> list[Tensor]:
    outputs = model(pixel_values=inputs[0], return_dict=True)
    names = ("last_hidden_state", "pooler_output", "image_embeds", "logits")
    return [each for each in (getattr(outputs, name, None) for name in names) if each is not None]


def _dual_class(config: DualEncoderConfig, architectures: Sequence[str]) -> str:
    return architectures[0] if architectures else "AutoModel"


def _dual_ours(module: Any, config: DualEncoderConfig, inputs: list[Tensor], caches: Sequence[Any]) -> list[Tensor]:
    return list(module(*inputs))


def _dual_theirs(model: Any, config: DualEncoderConfig, inputs: list[Tensor]) -> list[Tensor]:
    outputs = model(input_ids=inputs[0], pixel_values=inputs[1], return_dict=True)
    return [outputs.logits_per_image, outputs.logits_per_text, outputs.text_embeds, outputs.image_embeds]


def _states_or_logits(outputs: Any) -> Tensor:
    found: Tensor = outputs.last_hidden_state if getattr(outputs, "logits", None) is None else outputs.logits
    return found


PLACEHOLDER = -1
"""The id in the place of each state of a picture, in the texts that are compared."""
ANSWER = 8
"""Tokens at the end of such a text that follow a prompt whose tokens attend both ways."""


def _picture_text_class(config: PictureTextConfig, architectures: Sequence[str]) -> str:
    return "AutoModelForImageTextToText"


def _picture_text_ours(
    module: Any, config: PictureTextConfig, inputs: list[Tensor], caches: Sequence[Any]
) -> list[Tensor]:
    pixels, text, *more = inputs
    seen, positions, packed = text == PLACEHOLDER, list[Tensor](), list[Tensor]()
    if config.grid_vision is not None:
        grids, *positions = more
        patches = pixels.split([int(grid.prod()) for grid in grids])
        pictures = zip(patches, grids.split(1), strict=True)
        features = torch.cat([module.see(*picture) for picture in pictures], 1).flatten(0, 1)
    else:
        features = module.see(pixels.flatten(0, 1) if more else pixels).flatten(0, 1)
        if more:
            features = _put_together(features, *more[1:3])
            packed = [_put_together(more[3].flatten(0, 1), *more[5:])] if more[3:] else []
    embeddings = module.embed_wide(text.masked_fill(seen, 0))
    embeddings = embeddings.masked_scatter(seen.unsqueeze(-1), features.to(embeddings.dtype))
    if config.bidirectional is None:
        logits = module.read_embeddings(embeddings, torch.ones_like(text), caches, *positions)[0]
    else:
        count = config.picture_tokens or 0
        numbers = _prompt(text) - 1 if config.bidirectional == "prompt" else _pictures(seen, count)
        logits = module.read_blocks(embeddings, numbers[0].tolist(), caches)[0]
    return [features[:, : config.hidden_size], logits, *packed]


def _put_together(states: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums of states [N, E], as runtimes compute them by a `Packing`."""
    return (states[rows] * weights.unsqueeze(-1)).sum(1)


def _pictures(seen: Tensor, count: int) -> Tensor:
    """Return the number of the picture that each token [1, S] is a state of, which have `count`; −1 for text."""
    return torch.where(seen, (seen.cumsum(1) - 1) // count, -1)


def _prompt(text: Tensor) -> Tensor:
    """Return 1 for the tokens [1, S] of a prompt, and 0 for those of the answer behind it."""
    return (torch.arange(text.shape[1]) < text.shape[1] - ANSWER).to(torch.int64).unsqueeze(0)


def _picture_text_theirs(model: Any, config: PictureTextConfig, inputs: list[Tensor]) -> list[Tensor]:
    pixels, text, *more = inputs
    seen, packing = text == PLACEHOLDER, more if config.grid_vision is None else []
    sizes, options = {"image_sizes": packing[0]} if packing else {}, {}
    if config.grid_vision is not None:
        if model.config.model_type == "lfm2_vl":
            padded = _padded_patches(pixels, more[0], config.grid_vision.square)
            pixels, sizes = padded.pop("pixel_values"), padded
        else:
            sizes, options = {"image_grid_thw": more[0]}, {"mm_token_type_ids": seen.int()}
    if config.bidirectional is not None:
        types = {"pictures": seen.to(torch.int64), "prompt": 1 - _prompt(text)}
        options = {"token_type_ids": types[config.bidirectional]}
    text = text.masked_fill(seen, model.config.image_token_id)
    cpu = torch.device("cpu")  # Idefics3 moves states to where its parameters are, which are on the meta device
    devices = (patch.object(kind, "device", cpu) for kind in {type(model), type(model.model)})
    with ExitStack() as patches, _positions_in_float32(model):
        for each in devices:
            patches.enter_context(each)
        features = model.get_image_features(pixel_values=pixels, **sizes, return_dict=True).pooler_output
        options |= sizes
        logits = model(input_ids=text, pixel_values=pixels, return_dict=True, use_cache=False, **options).logits
    packed = []
    if packing[3:]:
        states, size, limit = packing[3], [packing[4].tolist()], model.config.vision_aspect_ratio
        extra = {"image_newline": states[0, -1], "vision_aspect_ratio": limit}
        [found], _ = model.model.pack_image_features([states[:, :-1]], size, **extra)
        packed = [found]
    return [torch.cat([each.flatten(0, -2) for each in features]), logits, *packed]


def _padded_patches(patches: Tensor, grids: Tensor, square: int) -> dict[str, Tensor]:
    """Return patches in squares as those of SigLIP 2: row by row, and padded to the most that a picture has."""
    shapes, counts = grids[:, 1:], grids.prod(1)
    padded = patches.new_zeros(len(grids), int(counts.max()), patches.shape[1])
    for row, part, (rows, columns) in zip(padded, patches.split(counts.tolist()), shapes.tolist(), strict=True):
        squares = part.view(rows // square, columns // square, square, square, -1)
        row[: len(part)] = squares.transpose(1, 2).reshape(len(part), -1)
    mask = torch.arange(padded.shape[1]) < counts.unsqueeze(1)
    return {"pixel_values": padded, "spatial_shapes": shapes, "pixel_attention_mask": mask.int()}


@contextmanager
def _positions_in_float32(model: Any) -> Iterator[None]:
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


DECODER = Comparison(lambda config, architectures: "AutoModelForCausalLM", _decoder_ours, _decoder_theirs)
ENCODER = Comparison(_encoder_class, _encoder_ours, _encoder_theirs)
VISION = Comparison(_vision_class, _vision_ours, _vision_theirs)
DUAL = Comparison(_dual_class, _dual_ours, _dual_theirs)
SEQ2SEQ = Comparison(_seq2seq_class, _seq2seq_ours, _seq2seq_theirs)
PICTURE_TEXT = Comparison(_picture_text_class, _picture_text_ours, _picture_text_theirs)
