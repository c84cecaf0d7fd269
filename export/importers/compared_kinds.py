"""How modules of each kind are run beside those of transformers: the class there, and the outputs that are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeformer.config import EncoderConfig, PoolingHead, Seq2SeqConfig, Task
from edgeformer.export.reference.reference import Reference


@dataclass(frozen=True, kw_only=True)
class ComparedKind:
    """The knowledge of a comparison about one kind of model.

    Attributes:
        class_name: returns the name of transformers' class with the head that is exported, of a config and the
            `architectures` of config.json.
        ours: returns the outputs of edgeformer's module on inputs [1, …], one for each stack of the config.
        theirs: returns the same outputs of transformers' module.
    """

    class_name: Callable[[Any, Sequence[str]], str]
    ours: Callable[[Reference, Any, list[Tensor]], list[Tensor]]
    theirs: Callable[[Any, Any, list[Tensor]], list[Tensor]]


def _decoder_ours(reference: Reference, config: Any, inputs: list[Tensor]) -> list[Tensor]:
    (text,) = inputs
    return [reference.module(text, torch.ones_like(text), reference.empty_caches(1))[0]]


def _decoder_theirs(model: Any, config: Any, inputs: list[Tensor]) -> list[Tensor]:
    return [_states_or_logits(model(input_ids=inputs[0], return_dict=True, use_cache=False))]


def _returns_states(config: EncoderConfig) -> bool:
    """Return whether the states are compared, because transformers' class has no head either."""
    return config.head is None or isinstance(config.head, PoolingHead)


def _encoder_class(config: EncoderConfig, architectures: Sequence[str]) -> str:
    return "AutoModel" if _returns_states(config) or not architectures else architectures[0]


def _encoder_ours(reference: Reference, config: EncoderConfig, inputs: list[Tensor]) -> list[Tensor]:
    (text,) = inputs
    types = [torch.zeros_like(text)] if config.token_types > 1 else []
    outputs = reference.module(text, torch.ones_like(text), *types)
    return [outputs[0] if _returns_states(config) else outputs[1]]


def _encoder_theirs(model: Any, config: EncoderConfig, inputs: list[Tensor]) -> list[Tensor]:
    return [_states_or_logits(model(input_ids=inputs[0], return_dict=True))]


def _seq2seq_class(config: Seq2SeqConfig, architectures: Sequence[str]) -> str:
    return "AutoModelForSpeechSeq2Seq" if config.is_speech else "AutoModelForSeq2SeqLM"


def _seq2seq_ours(reference: Reference, config: Seq2SeqConfig, inputs: list[Tensor]) -> list[Tensor]:
    source, target = inputs
    masks = [] if config.is_speech else [torch.ones_like(source)]
    states, encoder_caches = reference.module.encode(source, *masks)
    source_mask = torch.ones(1, states.shape[1], dtype=torch.int64)
    caches = reference.empty_caches(1)
    logits, _ = reference.module.decode(target, torch.ones_like(target), source_mask, caches, encoder_caches)
    return [states, logits]


def _seq2seq_theirs(model: Any, config: Seq2SeqConfig, inputs: list[Tensor]) -> list[Tensor]:
    name = "input_features" if config.is_speech else "input_ids"
    outputs = model(**{name: inputs[0]}, decoder_input_ids=inputs[1], use_cache=False, return_dict=True)
    return [outputs.encoder_last_hidden_state, outputs.logits]


def _states_or_logits(outputs: Any) -> Tensor:
    found: Tensor = outputs.last_hidden_state if getattr(outputs, "logits", None) is None else outputs.logits
    return found


COMPARED_KINDS: dict[Task, ComparedKind] = {
    "causal-lm": ComparedKind(
        class_name=lambda config, architectures: "AutoModelForCausalLM",
        ours=_decoder_ours,
        theirs=_decoder_theirs,
    ),
    "encoder": ComparedKind(class_name=_encoder_class, ours=_encoder_ours, theirs=_encoder_theirs),
    "seq2seq-lm": ComparedKind(class_name=_seq2seq_class, ours=_seq2seq_ours, theirs=_seq2seq_theirs),
}
"""How modules of all kinds are compared."""
