"""Model families: one file per Hugging Face `model_type`. A file in this package is a family without registration.

A family file defines `FAMILY`, a `Family`: how to read its config.json, and the names of its tensors. A dash in a
model_type is an underscore in the file's name. Files that start with an underscore hold functions that families share.
See docs/how-to/add-a-family.md.
"""

import importlib
import pkgutil
from dataclasses import replace
from typing import Any

from edgeformer.config import ModelConfig
from edgeformer.errors import ConfigError
from edgeformer.families._family import GENERATION_FIELDS, Family, Fields
from edgeformer.families._nested import find_tensors, text_config

# Names of the number of experts of a mixture of experts in config.json.
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

__all__ = [
    "GENERATION_FIELDS", "Family", "Fields", "family_names", "find_tensors", "load_family", "read_model_config",
    "text_config",
]  # fmt: skip


def family_names() -> list[str]:
    """Return every supported `model_type`, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load_family(model_type: str) -> Family:
    """Return the family of a `model_type`. Raises ConfigError that lists all families if there is none."""
    module = model_type.replace("-", "_")  # xlm-roberta
    if module not in family_names():
        known = ", ".join(family_names())
        raise ConfigError(
            f"model_type {model_type!r} is not supported. Supported families: {known}. Other decoders of transformers "
            "may be captured as they are: --backend transformers."
        )
    return importlib.import_module(f"{__name__}.{module}").FAMILY


def read_model_config(data: dict[str, Any], context_length: int | None = None) -> tuple[Family, ModelConfig]:
    """Return the family and the `ModelConfig` of a Hugging Face config.json, or of the text model inside it.

    Args:
        data: contents of config.json.
        context_length: positions that the graph supports; None for all that the model has.

    Raises:
        ConfigError: the family is not supported, or config.json has a field that the family neither reads nor knows to
            have no effect.
    """
    if "model_type" not in data:
        raise ConfigError("config.json has no model_type; edgeformer reads Hugging Face model folders.")
    text = text_config(data)
    if text is not None:
        family, config = read_model_config(text, context_length)
        return replace(family, nested=True), config
    experts = next((name for name in EXPERTS if data.get(name)), None)
    if experts is not None and data["model_type"] not in family_names():
        raise ConfigError(
            f"{data['model_type']} is a mixture of experts ({experts} = {data[experts]}), and edgeformer has no blocks "
            "for those. Export a dense model."
        )
    family = load_family(data["model_type"])
    fields = Fields(data, family.defaults)
    try:
        config = family.read_config(fields, context_length)
    except (ArithmeticError, TypeError, ValueError, AttributeError) as error:
        # For example a size of zero that is a divisor, or a string instead of a number.
        raise ConfigError(
            f"config.json is not one of a {data['model_type']} model: a field of it has a value of the wrong kind "
            f"({type(error).__name__}: {error}). Sizes must be positive numbers."
        ) from error
    fields.finish()
    return family, config
