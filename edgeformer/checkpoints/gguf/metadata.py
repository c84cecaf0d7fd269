"""The metadata of a GGUF file, read key by key; a key that nobody reads may change what the model computes.

Keys of the model's maths begin with its architecture. Those of other beginnings (general, tokenizer, split, quantize,
and marks of tools) change nothing that llama.cpp computes with the model.
"""

import struct
from typing import Any

from edgeformer.checkpoints.gguf.gguf_file import GgufFile
from edgeformer.errors import ConfigError, shown

_REQUIRED: Any = object()

OF_OTHER_FILES = ("adapter", "clip", "diffusion", "xielu")
"""Beginnings of keys of files that hold something else than a decoder that is read here."""

IDLE = {
    "rope.scaling.finetuned": (True, False), "tensor_data_layout": ("Meta AI original pth", "reference"),
    "attention.causal": (True,), "expert_count": (0,), "expert_used_count": (0,), "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1), "expert_weights_scale": (0.0, 1.0), "pooling_type": (0,),
    "nextn_predict_layers": (0,), "leading_dense_block_count": (0,), "n_deepstack_layers": (0,),
    "attention.max_alibi_bias": (0.0,), "attention.clamp_kqv": (0.0,), "rope.scaling.yarn_log_multiplier": (0.0,),
    "expert_shared_feed_forward_length": (0,),
}  # fmt: skip
"""Keys of an architecture, with the values at which they change nothing."""


class Metadata:
    """The metadata of a file; `finish` raises an error if a key of its architecture was not read."""

    def __init__(self, file: GgufFile):
        self.file = file
        architecture = file.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise ConfigError(f"{file.name} names no architecture (general.architecture), so nothing was exported.")
        self.architecture = architecture
        prefix = f"{architecture}."
        self._values = {key[len(prefix) :]: each for key, each in file.metadata.items() if key.startswith(prefix)}
        self._unread = {name for name, value in self._values.items() if not _is_idle(name, value)}
        foreign = sorted(key for key in file.metadata if key.partition(".")[0] in OF_OTHER_FILES)
        if foreign:
            raise ConfigError(f"{file.name} has {foreign[0]}, which belongs to no decoder that edgeformer reads.")

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = _REQUIRED) -> Any:
        """Return a value of the architecture; the default where it is absent. Raises ConfigError without either.

        kind: of the value; float takes whole numbers, too.
        """
        self._unread.discard(name)
        value = self._values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise ConfigError(f"{self.file.name} has no {self.architecture}.{name}, which its architecture needs.")
            return default
        kinds = (int, float) if kind is float else kind
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ConfigError(
                f"{self.file.name} has {self.architecture}.{name} = {shown(value)}, which is of another type than it "
                "must be."
            )
        return _decimal(value) if isinstance(value, float) else value

    def fixed(self, name: str, *values: Any) -> None:
        """Read a value that may be absent, or one of `values`. Raises ConfigError for another one."""
        self._unread.discard(name)
        found = self._values.get(name)
        if found is not None and found not in values:
            raise ConfigError(
                f"{self.file.name} has {self.architecture}.{name} = {shown(found)}, and edgeformer computes "
                f"{' or '.join(map(str, values))} alone."
            )

    def token(self, name: str) -> int | None:
        """Return the id of a token of the tokenizer, None where there is none."""
        value = self.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def finish(self) -> None:
        """Raise a ConfigError if a value was not read."""
        if self._unread:
            named = sorted(self._unread)
            listed = ", ".join(f"{self.architecture}.{name} = {shown(self._values[name])}" for name in named[:5])
            raise ConfigError(
                f"{self.file.name} has metadata that edgeformer does not know: {listed}. It may change what the model "
                "computes, so nothing was exported."
            )


def _is_idle(name: str, value: Any) -> bool:
    return any(type(value) is type(known) and value == known for known in IDLE.get(name, ()))


def _decimal(value: float) -> float:
    """Return the shortest decimal of a float32, which is what config.json had: 1e-05 for 9.999999747378752e-06."""
    shortest = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((each for each in shortest if struct.pack("<f", each) == struct.pack("<f", value)), value)
