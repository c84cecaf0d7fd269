"""What makes one preset different from another."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import nn

from edgeformer.config import ModelConfig
from edgeformer.families import Family, read_model_config
from edgeformer.runtime.evaluation.questions import Question
from presets.training import Loss, Options

__all__ = ["Question", "Recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to make one preset.

    summary: for `edgeformer models`, with {parameters} in it. data and use: for the model card, what it learned from
    and how to run it. hf_config and files: config.json, and what else stands in the folder, by file name (JSON data, or
    a text). make_tokenizer: from a seed. loss: of a batch that it draws. questions: held-out ones, from a seed. score:
    which of them the module answers rightly. scored: what that means, with the number of questions in {total}. adapt:
    changes the ModelConfig, where a file beside config.json has a say in it.
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
    scored: str = "Exact matches on the {total:,} held-out problems of `evaluation.jsonl`, greedily, in float32."
    adapt: Callable[[ModelConfig], ModelConfig] = lambda config: config

    @property
    def folder(self) -> Path:
        """Where the package keeps it."""
        return Path(__file__).parents[2] / "edgeformer" / "presets" / self.name

    def model(self) -> tuple[Family, ModelConfig]:
        """The family of its checkpoint, and its config."""
        family, config = read_model_config(self.hf_config)
        return family, self.adapt(config)
