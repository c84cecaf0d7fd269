"""Models that never were on a hub: config.json holds a `ModelConfig`, and tensors have the names of our own modules.

    {"model_type": "generic", "model": {"vocab_size": 32000, "hidden_size": 512, "blocks": [{"repeat": 8, …}], …}}

`ModelConfig.to_json` writes the inner part; `parameter_shapes` lists the tensors.
"""

from dataclasses import replace

from edgeformer.config import ModelConfig
from edgeformer.errors import ConfigError
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> ModelConfig:
    """Read the ModelConfig inside config.json."""
    config = ModelConfig.from_json(fields.take("model"), "model")
    if context_length is None:
        return config
    if not 0 < context_length <= config.context_length:
        raise ConfigError(
            f"--context-length is {context_length}; this model has positions 1 to {config.context_length}."
        )
    return replace(config, context_length=context_length)


class _SameNames(dict[str, str]):
    """A table in which every module is called as we call it."""

    def __missing__(self, module: str) -> str:
        return module


FAMILY = Family(
    summary="any ModelConfig as JSON, with safetensors under our own names",
    read_config=read_config,
    tensors=_SameNames(),
)
