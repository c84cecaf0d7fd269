"""Read `adapter_config.json`, the config of a LoRA adapter, as PEFT writes it.

    y = W x + scale · B (A x)          A [rank, in], B [out, rank], scale = alpha / rank, or alpha / √rank (rsLoRA)

The reader is strict: a field that is set and that may change what the adapted model computes is refused by its name.
Which modules are adapted follows from the names of the adapter's tensors.
Source: peft 0.21.2, peft/tuners/lora/config.py and model.py.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeformer.documents.json_document import read_object
from edgeformer.errors import ConfigError, shown
from edgeformer.families._neutral import TOOLS

CONFIG_FILE = "adapter_config.json"

PREPARED = (True, False, "gaussian", "eva", "orthogonal")
"""Ways to initialize A and B before training (`init_lora_weights`) that leave the weights of the base as they are."""

WITHOUT_EFFECT = {
    # What was trained, and how: the names of the tensors say which modules are adapted.
    "auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode", "layers_pattern",
    "layers_to_transform", "lora_dropout", "modules_to_save", "peft_type", "peft_version", "revision", "runtime_config",
    "target_modules", "task_type",
    # Of the initialization of A and B.
    "corda_config", "eva_config", "init_lora_weights", "loftq_config", "lora_ga_config",
    # Of training on several devices, and of a quantized base.
    "megatron_config", "megatron_core", "qalora_group_size",
    # PEFT itself sets it by the class of the module.
    "fan_in_fan_out",
}  # fmt: skip

READ = {"r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "bias"}


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """The fields of an adapter's config that its tensors are read with.

    Attributes:
        rank: of every module that no pattern of `ranks` matches.
        alpha: the numerator of the scale, of every module that no pattern of `alphas` matches.
        ranks, alphas: exceptions, by regular expressions of the last parts of a module's name.
        rank_stabilized: whether the scale is alpha / √rank (rsLoRA).
        decomposed: whether the rows of the adapted weights are scaled to learned lengths (DoRA).
        targets: names of the adapted modules; None where the config has a regular expression or "all-linear".
        excluded: names of modules that are not adapted although they are targets; None where the config has a regular
            expression for them.
        base: the model that the adapter was trained on, as its config names it, for people.
    """

    rank: int
    alpha: float
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    rank_stabilized: bool = False
    decomposed: bool = False
    targets: tuple[str, ...] | None = None
    excluded: tuple[str, ...] | None = ()
    base: str | None = None

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        return _first_match(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of B A of a module."""
        rank, alpha = self.rank_of(module), _first_match(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)

    def targets_module(self, module: str) -> bool:
        """Return whether the config names a module as adapted, or names none."""
        return self.targets is None or any(module == name or module.endswith(f".{name}") for name in self.targets)

    def may_exclude(self, target: str) -> bool:
        """Return whether the config may leave out a target wherever it is, so that no tensor has its name."""
        if self.excluded is None:
            return True
        either = [pair for name in self.excluded for pair in ((name, target), (target, name))]
        return any(f".{long}".endswith(f".{short}") for long, short in either)

    def __str__(self) -> str:
        kind = ("rs" if self.rank_stabilized else "") + ("DoRA" if self.decomposed else "LoRA")
        ranks = sorted({self.rank, *self.ranks.values()})
        return f"{kind} of rank {ranks[0]}" + (f" to {ranks[-1]}" if len(ranks) > 1 else "")


def read_lora_config(folder: Path) -> LoraConfig:
    """Read the config of an adapter's folder. Raises ConfigError for what is no LoRA, or may compute something else."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no {CONFIG_FILE}; the folder of an adapter has one beside its safetensors file. Save the "
            "adapter with save_pretrained of PEFT, or download it (hf download ID --local-dir DIR)."
        )
    fields = read_object(path)
    if fields.get("peft_type") != "LORA":
        raise ConfigError(
            f"{path} has peft_type = {shown(fields.get('peft_type'))}, and only LORA is supported. Merge the adapter "
            "with PEFT (merge_and_unload), save the model, and export that folder."
        )
    refused = {
        name: value
        for name, value in fields.items()
        if value and name not in WITHOUT_EFFECT | READ and not name.startswith(tuple(TOOLS))
    }
    if fields.get("init_lora_weights", True) not in PREPARED:
        refused["init_lora_weights"] = fields["init_lora_weights"]
    if refused:
        listed = ", ".join(f"{name} = {shown(value)}" for name, value in sorted(refused.items()))
        raise ConfigError(
            f"{path} has fields that edgeformer does not apply: {listed}. They may change what the model computes, so "
            "nothing was exported. Merge the adapter with PEFT (merge_and_unload), save the model, and export that "
            "folder."
        )
    targets, excluded = fields.get("target_modules"), fields.get("exclude_modules") or []
    return LoraConfig(
        rank=_number(path, "r", fields.get("r", 8), int),
        alpha=_number(path, "lora_alpha", fields.get("lora_alpha", 8), float),
        ranks=_pattern(path, "rank_pattern", fields, int),
        alphas=_pattern(path, "alpha_pattern", fields, float),
        rank_stabilized=bool(fields.get("use_rslora")),
        decomposed=bool(fields.get("use_dora")),
        targets=tuple(map(str, targets)) if isinstance(targets, list) else None,
        excluded=tuple(map(str, excluded)) if isinstance(excluded, list) else None,
        base=None if fields.get("base_model_name_or_path") is None else str(fields["base_model_name_or_path"]),
    )


def _number(path: Path, name: str, value: Any, kind: type[Any]) -> Any:
    valid = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not valid or (kind is int and (value != int(value) or value < 1)):
        wanted = "a whole number of at least 1" if kind is int else "a number"
        raise ConfigError(f"{path} has {name} = {shown(value)}; it must be {wanted}.")
    return kind(value)


def _pattern(path: Path, name: str, fields: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return a field of numbers by regular expressions. Raises ConfigError where it is none."""
    value = fields.get(name) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path} has {name} = {shown(value)}; it must be an object of numbers by patterns.")
    for pattern in value:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{path} has the pattern {shown(pattern)} in {name}, which is none: {error}.") from None
    return {pattern: _number(path, f"{name}[{pattern!r}]", number, kind) for pattern, number in value.items()}


def _first_match(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """Return the entry of the first pattern that matches the last parts of a module's name, as PEFT does."""
    matched = (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
    return next(matched, otherwise)
