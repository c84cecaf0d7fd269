"""The result of every way into an export: a model spec, its weights, and where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from edgeformer.lora.adapter_tensors import Update
from edgeformer.manifest.parts import AdapterOrigin, Backend, SpecialTokens, TextModelOf, TextPrompts
from edgeformer.models.model_spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a model comes from, and what its bundle takes along from there.

    name: of the bundle. origin: the source, for people. tokens: ids that generation needs. random_weights: the seed of
    a model that has no checkpoint. folder: whose tokenizer and generation files are copied. hf_config: what clients
    find as config.json. generation: fields of generation_config.json that an encoder-decoder generates with. backend:
    the library that has the module, where it is neither ours nor the user's. text_model_of: the bigger model that this
    is the text model of. merged_adapter: the LoRA adapter that is merged into the weights. prompts: of a sentence
    encoder. lower_case: whether the tokenizer is to lower the case of texts, too. pickled_weights: SHA-256 of each
    pickle that the weights were read from, by name.
    """

    name: str
    origin: str
    tokens: SpecialTokens
    random_weights: int | None = None
    folder: Path | None = None
    hf_config: dict[str, Any] | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    backend: Backend | None = None
    text_model_of: TextModelOf | None = None
    merged_adapter: AdapterOrigin | None = None
    prompts: TextPrompts | None = None
    lower_case: bool = False
    pickled_weights: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Whether the eager module was compared with the one that another library has for the same checkpoint.

    library: name and version. difference: the largest difference of an output over the largest output; None where
    nothing was compared, and `reason` says why, to follow "because".
    """

    library: str | None = None
    difference: float | None = None
    reason: str | None = None

    def describe(self) -> str:
        """Describe the comparison in a sentence."""
        if self.difference is None:
            return f"Eager PyTorch was not compared with transformers' own module, because {self.reason}."
        return (
            f"Eager PyTorch differs from the module of {self.library} by {self.difference:.1e} of the largest output, "
            "in float64 on the same checkpoint."
        )


@dataclass(frozen=True)
class OpenedAdapter:
    """A LoRA adapter that is to be kept apart from the weights. updates: what it adds, by parameter."""

    name: str
    origin: AdapterOrigin
    updates: Mapping[str, Update]


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A model that is ready to be exported.

    weights: the parameters of the module by name, each read when it is needed. notes: what people should know about how
    the module was opened. comparison: with the module of transformers; None where there is nothing to compare.
    adapters: those that are kept apart from the weights.
    """

    model_spec: ModelSpec
    weights: Mapping[str, Tensor]
    provenance: Provenance
    notes: tuple[str, ...] = ()
    comparison: Comparison | None = None
    adapters: tuple[OpenedAdapter, ...] = ()
