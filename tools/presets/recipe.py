"""The differences between one preset and another."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import nn

from edgeformer.config import DecoderConfig, ModelConfig
from edgeformer.families import Family, read_model_config
from edgeformer.families._nested import text_config
from edgeformer.families.picture_text import with_tower
from edgeformer.runtime.measure.evaluation.questions import Question
from presets.training import Loss, Options

__all__ = ["Question", "Recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to make one preset.

    Attributes:
        summary: a line for `edgeformer models`, containing {parameters}. data and use: text for the model card on what
            the model learned from and how to run it. hf_config and files: config.json, and the folder's other files by
            name (JSON data or text).
        make_tokenizer: makes the tokenizer from a seed.
        loss: the loss of a batch that it draws. first and first_steps: that of the first steps, where it is another
            one, on which not every parameter depends.
        questions: held-out questions from a seed.
        score: which of them the module answers correctly.
        scored: what that means, containing {total}.
        adapt: changes the ModelConfig where a file beside config.json affects it.
    """

    name: str
    summary: str
    data: str
    use: str
    options: Options
    hf_config: dict[str, Any]
    files: dict[str, Any]
    make_tokenizer: Callable[[int], Tokenizer]
    loss: Callable[[Tokenizer], Loss]
    questions: Callable[[int], list[Question]]
    score: Callable[[nn.Module, Tokenizer, list[Question]], list[bool]]
    first: Callable[[Tokenizer], Loss] | None = None
    first_steps: int = 0
    scored: str = "Exact matches on the {total:,} held-out problems of `evaluation.jsonl`, greedily, in float32."
    adapt: Callable[[ModelConfig], ModelConfig] = lambda config: config

    @property
    def folder(self) -> Path:
        """Return the preset's folder in the package."""
        return Path(__file__).parents[2] / "edgeformer" / "presets" / self.name

    def model(self) -> tuple[Family, ModelConfig]:
        """Return the family of the checkpoint, and its config."""
        text = text_config(self.hf_config, inside=True)
        family, config = read_model_config(text or self.hf_config)
        if text is not None:
            assert isinstance(config, DecoderConfig)
            family, config = with_tower(self.hf_config, family, config)
        return family, self.adapt(config)
