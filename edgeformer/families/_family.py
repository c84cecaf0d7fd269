"""What a family is, and the strict reader that its config function works with."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from edgeformer.config import ModelConfig
from edgeformer.errors import ConfigError

# Fields of any config.json that have no effect on what the model computes when it runs.
WITHOUT_EFFECT = {
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id", "dtype", "eos_token_id",
    "initializer_range", "model_type", "pad_token_id", "torch_dtype", "transformers_version", "transformers.js_config",
    "use_cache",
}  # fmt: skip

_REQUIRED = object()


class Fields:
    """A config.json that is read field by field and, in the end, must have been read whole."""

    def __init__(self, data: dict[str, Any]):
        self._data = data
        self._unread = set(data) - WITHOUT_EFFECT

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return a field; where it is absent or null, `default` (the one of the family's format)."""
        self._unread.discard(name)
        value = self._data.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ConfigError(f"config.json has no {name}; a {self._data['model_type']} model requires it.")
        return default

    def ignore(self, *names: str) -> None:
        """Mark fields that this family knows to have no effect."""
        self._unread.difference_update(names)

    def choice(self, name: str, choices: dict[str, Any], default: Any = _REQUIRED) -> Any:
        """Return what `choices` holds for the field's value."""
        value = self.take(name, default)
        if value not in choices:
            known = ", ".join(choices)
            raise ConfigError(f"config.json has {name} = {value!r}, which is not supported here; supported: {known}.")
        return choices[value]

    def finish(self) -> None:
        """Raise a ConfigError if a field was left unread: it might change what the model computes."""
        if self._unread:
            listed = ", ".join(f"{name} = {self._data[name]!r}" for name in sorted(self._unread))
            raise ConfigError(
                f"config.json has fields that the {self._data['model_type']} family does not know: {listed}. "
                "They may change what the model computes, so nothing was exported."
            )


@dataclass(frozen=True, kw_only=True)
class Family:
    """How checkpoints of one `model_type` are read.

    summary: one line for people, what is read. read_config: from the fields of config.json and a wished context length
    (None: all there is) to a ModelConfig. tensors: our module → the checkpoint's module, `*` for the block's number;
    parameters keep their last name. ignored_tensors: patterns of tensor names that carry nothing (tables that old
    checkpoints stored).
    """

    summary: str
    read_config: Callable[[Fields, int | None], ModelConfig]
    tensors: dict[str, str]
    ignored_tensors: tuple[str, ...] = ()

    def tensor_names(self, parameters: Iterable[str]) -> dict[str, str]:
        """Map each parameter of our module to the checkpoint's tensor name."""
        return {name: self._tensor_name(name) for name in parameters}

    def _tensor_name(self, parameter: str) -> str:
        module, _, last = parameter.rpartition(".")
        numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", module)
        pattern = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module)
        theirs = self.tensors[pattern]
        for number in numbers:
            theirs = theirs.replace("*", number, 1)
        return f"{theirs}.{last}"

    def ignores(self, tensor: str) -> bool:
        """Whether `tensor`, found in a checkpoint, is known to carry nothing."""
        return any(re.fullmatch(pattern, tensor) for pattern in self.ignored_tensors)
