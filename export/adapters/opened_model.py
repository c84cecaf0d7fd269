"""The result of every way into an export: a model spec, its weights, and where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from edgeformer.manifest import Backend, SpecialTokens, TextModelOf
from edgeformer.model_spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a model comes from, and what its bundle takes along from there.

    name: of the bundle. origin: the source, for people. tokens: ids that generation needs. random_weights: the seed of
    a model that has no checkpoint. folder: whose tokenizer and generation files are copied. hf_config: what clients
    find as config.json. generation: fields of generation_config.json that an encoder-decoder generates with. backend:
    the library that has the module, where it is neither ours nor the user's. text_model_of: the bigger model that this
    is the text model of.
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


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A model that is ready to be exported.

    weights: the parameters of the module by name, each read when it is needed. notes: what people should know about how
    the module was opened.
    """

    model_spec: ModelSpec
    weights: Mapping[str, Tensor]
    provenance: Provenance
    notes: tuple[str, ...] = ()
