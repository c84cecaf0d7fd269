"""The result of every way into an export: a model spec, its weights, and where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from edgeformer.export.importers.tokenizer_files import TokenizerFiles
from edgeformer.lora.adapter_tensors import Update
from edgeformer.manifest.parts import AdapterOrigin, Provenance, Similarity, SpecialTokens, TextPrompts
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.models.model_spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a model comes from, and what its bundle takes along from there.

    Attributes:
        name: name of the bundle.
        provenance: what the manifest says.
        tokens: ids that generation needs.
        folder: whose tokenizer and generation files are copied.
        tokenizer: keeps that folder on disk where it is temporary.
        hf_config: what clients find as config.json.
        generation: fields of generation_config.json that an encoder-decoder generates with.
        prompts: of a sentence encoder.
        pictures: the processor of a model that reads pictures.
        placeholder: what stands for a picture in a prompt.
        similarity: of a dual encoder.
        lower_case: whether the tokenizer is to lower the case of texts, too.
    """

    name: str
    provenance: Provenance
    tokens: SpecialTokens
    folder: Path | None = None
    tokenizer: TokenizerFiles | None = None
    hf_config: dict[str, Any] | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    prompts: TextPrompts | None = None
    pictures: PictureProcessor | None = None
    placeholder: Placeholder | None = None
    similarity: Similarity | None = None
    lower_case: bool = False


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

    Attributes:
        model_spec: how to build its module, and what an export must know of it.
        weights: the parameters of the module by name, each read when it is needed.
        origin: where it comes from.
        notes: what people should know about how the module was opened.
        warnings: what they should know about its tokenizer and generation files (`checkpoint_warnings`).
        comparison: with the module of transformers; None where there is nothing to compare.
        adapters: those that are kept apart from the weights.
    """

    model_spec: ModelSpec
    weights: Mapping[str, Tensor]
    origin: Origin
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    comparison: Comparison | None = None
    adapters: tuple[OpenedAdapter, ...] = ()
