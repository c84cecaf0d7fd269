"""The comparison of modules of each kind with those of transformers: the class there, and the outputs compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeformer.config import (
    ClassificationHead,
    DualEncoderConfig,
    EncoderConfig,
    PictureEncoderConfig,
    PictureTower,
    Seq2SeqConfig,
)
from edgeformer.models.pictures.comparison import (
    encoder_by_ours,
    encoder_by_theirs,
    pictures_by_ours,
    pictures_by_theirs,
    sounds_by_theirs,
)


@dataclass(frozen=True)
class Comparison:
    """How modules of a kind are run beside those of transformers.

    Attributes:
        class_name: returns the name of transformers' class with the head that is exported, of a config and the
            `architectures` of config.json.
        ours: returns the outputs of edgeformer's module, of its config, inputs [1, …] and empty caches, one for each
            stack of the config, or `PicturesInText`.
        theirs: returns the same outputs of transformers' module.
    """

    class_name: Callable[[Any, Sequence[str]], str]
    ours: Callable[[Any, Any, Any, Sequence[Any]], list[Tensor]]
    theirs: Callable[[Any, Any, Any], list[Tensor]]


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
    return _of_head(config, module(text, torch.ones_like(text), *types))


def _of_head(config: EncoderConfig, outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of edgeformer's module that are compared."""
    named = dict(zip(("last_hidden_state", *(each.name for each in config.head_outputs)), outputs, strict=True))
    return [named[name] for name in _compared(config) or ["last_hidden_state"]]


def _encoder_theirs(model: Any, config: EncoderConfig, inputs: list[Tensor]) -> list[Tensor]:
    outputs = model(input_ids=inputs[0], return_dict=True)
    if isinstance(config.head, ClassificationHead) and config.head.tokens is not None:
        first, *second = config.head.tokens
        logits = outputs.logits[:, -1]
        return [logits[:, [first]] - sum((logits[:, [token]] for token in second), torch.zeros(1, 1))]
    return [getattr(outputs, name) for name in _compared(config) or ["last_hidden_state"]]


def _seeing_ours(module: Any, config: PictureEncoderConfig, inputs: Any, caches: Sequence[Any]) -> list[Tensor]:
    features, *outputs = encoder_by_ours(module, config, inputs)
    return [features, *_of_head(config, outputs)]


def _seeing_theirs(model: Any, config: PictureEncoderConfig, inputs: Any) -> list[Tensor]:
    features, outputs = encoder_by_theirs(model, config, inputs)
    return [features, *(getattr(outputs, name) for name in _compared(config) or ["last_hidden_state"])]


def _seq2seq_class(config: Seq2SeqConfig, architectures: Sequence[str]) -> str:
    if config.sees_pictures:
        return "VisionEncoderDecoderModel"
    return "AutoModelForSpeechSeq2Seq" if config.is_speech else "AutoModelForSeq2SeqLM"


def _seq2seq_ours(module: Any, config: Seq2SeqConfig, inputs: list[Tensor], caches: Sequence[Any]) -> list[Tensor]:
    source, target = inputs
    masks = [torch.ones_like(source)] if config.reads_text else []
    states, encoder_caches = module.encode(source, *masks)
    source_mask = torch.ones(1, states.shape[1], dtype=torch.int64)
    logits, _ = module.decode(target, torch.ones_like(target), source_mask, caches, encoder_caches)
    return [states, logits]


def _seq2seq_theirs(model: Any, config: Seq2SeqConfig, inputs: list[Tensor]) -> list[Tensor]:
    name = "pixel_values" if config.sees_pictures else "input_features" if config.is_speech else "input_ids"
    outputs = model(**{name: inputs[0]}, decoder_input_ids=inputs[1], use_cache=False, return_dict=True)
    return [outputs.encoder_last_hidden_state, outputs.logits]


def _of_pictures(config: PictureTower, pictures: list[Tensor]) -> dict[str, Tensor]:
    """Return what a tower reads of pictures, by the names of transformers, which graphs have, too."""
    return {spec.name: each for spec, each in zip(config.inputs(tiled=False), pictures, strict=True)}


def _seen(states: Tensor, pictures: list[Tensor]) -> Tensor:
    """Return the states [1, P, E] of a picture's own patches; those of padding have no meaning."""
    return states if len(pictures) == 1 else states[:, : int(pictures[1].sum())]


def _vision_class(config: PictureTower, architectures: Sequence[str]) -> str:
    return architectures[0] if architectures else "AutoModel"


def _vision_ours(module: Any, config: PictureTower, inputs: list[Tensor], caches: Sequence[Any]) -> list[Tensor]:
    states, *others = module(*inputs)
    if config.classifier is not None:  # transformers returns no states beside logits
        return [others[-1]]
    return [_seen(states, inputs), *others[-1:]]  # nor a pooled vector beside its projection


def _vision_theirs(model: Any, config: PictureTower, inputs: list[Tensor]) -> list[Tensor]:
    outputs = model(**_of_pictures(config, inputs), return_dict=True)
    names = ("last_hidden_state", "pooler_output", "image_embeds", "logits")
    states, *others = (getattr(outputs, name, None) for name in names)
    return [each for each in (None if states is None else _seen(states, inputs), *others) if each is not None]


def _dual_class(config: DualEncoderConfig, architectures: Sequence[str]) -> str:
    return architectures[0] if architectures else "AutoModel"


def _dual_ours(module: Any, config: DualEncoderConfig, inputs: list[Tensor], caches: Sequence[Any]) -> list[Tensor]:
    return list(module(*inputs))


def _dual_theirs(model: Any, config: DualEncoderConfig, inputs: list[Tensor]) -> list[Tensor]:
    outputs = model(input_ids=inputs[0], **_of_pictures(config.vision, inputs[1:]), return_dict=True)
    return [outputs.logits_per_image, outputs.logits_per_text, outputs.text_embeds, outputs.image_embeds]


def _states_or_logits(outputs: Any) -> Tensor:
    found: Tensor = outputs.last_hidden_state if getattr(outputs, "logits", None) is None else outputs.logits
    return found


DECODER = Comparison(lambda config, architectures: "AutoModelForCausalLM", _decoder_ours, _decoder_theirs)
ENCODER = Comparison(_encoder_class, _encoder_ours, _encoder_theirs)
PICTURE_ENCODER = Comparison(_encoder_class, _seeing_ours, _seeing_theirs)
VISION = Comparison(_vision_class, _vision_ours, _vision_theirs)
DUAL = Comparison(_dual_class, _dual_ours, _dual_theirs)
SEQ2SEQ = Comparison(_seq2seq_class, _seq2seq_ours, _seq2seq_theirs)
SOUND_TEXT = Comparison(lambda config, architectures: "AutoModelForMultimodalLM", pictures_by_ours, sounds_by_theirs)
PICTURE_TEXT = Comparison(
    lambda config, architectures: "AutoModelForImageTextToText", pictures_by_ours, pictures_by_theirs
)
