"""Models without a family: config.json holds a `ModelConfig`, and tensors have the names of edgeformer's modules.

    {"model_type": "generic", "model": {"vocab_size": 32000, "hidden_size": 512, "blocks": [{"repeat": 8, …}], …}}

`edgeformer.documents.schema.to_json` writes the inner part; `parameter_shapes` lists the tensors.
"""

from typing import Any

from edgeformer.config import ModelConfig
from edgeformer.documents import schema
from edgeformer.errors import ConfigError
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> ModelConfig:
    """Read the ModelConfig in config.json; its default `kind` is decoder."""
    data = fields.take("model")
    kind: Any = ModelConfig
    config: ModelConfig = schema.from_json(
        kind, {"kind": "decoder"} | data if isinstance(data, dict) else data, "model"
    )
    if context_length is None:
        return config
    if not 0 < context_length <= config.context_length:
        raise ConfigError(
            f"--context-length is {context_length}; this model has positions 1 to {config.context_length}."
        )
    return config.with_context_length(context_length)


class _SameNames(dict[str, str]):
    """A table of tensor names that maps every module to itself."""

    def __missing__(self, module: str) -> str:
        return module


FAMILY = Family(
    summary="any ModelConfig as JSON, with safetensors that have edgeformer's names",
    read_config=read_config,
    tensors=_SameNames(),
)
