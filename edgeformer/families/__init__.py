"""Model families: one file per Hugging Face `model_type`. A file in this package is a family without registration.

A family file defines `FAMILY`, a `Family`: how to read its config.json, and the names of its tensors. A dash in a
model_type is an underscore in the file's name. Files that start with an underscore hold functions that families share.
See docs/how-to/add-a-family.md.
"""

import functools
import importlib
import math
import pkgutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, cast

from edgeformer.config import DecoderConfig, EncoderConfig, ModelConfig, Seq2SeqConfig
from edgeformer.documents import schema
from edgeformer.errors import ConfigError, ContextLengthError, shown
from edgeformer.families import _nested
from edgeformer.families._encoder import read_decoder_head
from edgeformer.families._family import Computed, Family, Fields
from edgeformer.families._layers import both_ways
from edgeformer.families._nested import family_inside, find_tensors
from edgeformer.families._neutral import WITHOUT_EFFECT
from edgeformer.families._refused import REFUSED
from edgeformer.manifest.accounting import account

# Names of the number of experts of a mixture of experts in config.json.
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

MOST_PARAMETERS = 10**13
"""Parameters of a model at most; the largest that are published have 10**12."""

TRY_TRANSFORMERS_BACKEND = " transformers' own module may be tried instead: --backend transformers."
"""End of an error about a config.json that the family of a decoder refuses."""

__all__ = [
    "REFUSED", "Computed", "Family", "Fields", "checked", "family_inside", "family_names", "find_tensors", "has_family",
    "load_family", "read_model_config", "text_config",
]  # fmt: skip


def family_names() -> list[str]:
    """Return every supported `model_type`, sorted."""
    return list(_names())


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(
        sorted(each.name for each in pkgutil.iter_modules(__path__) if not (each.ispkg or each.name.startswith("_")))
    )


def has_family(model_type: str) -> bool:
    """Return whether there is a family of a `model_type`."""
    return _module_of(model_type) in family_names()


def _module_of(model_type: str) -> str:
    return model_type.replace("-", "_")  # xlm-roberta


def load_family(model_type: str) -> Family:
    """Return the family of a `model_type`. Raises ConfigError that says why there is none, or lists all families."""
    if model_type in REFUSED:
        raise ConfigError(
            f"model_type {model_type!r} is not supported: {REFUSED[model_type]}. `edgeformer models` lists what is."
        )
    if not has_family(model_type):
        known = ", ".join(family_names())
        raise ConfigError(
            f"model_type {model_type!r} is not supported. Supported families: {known}. Other decoders of transformers "
            "are exported as they are, where transformers is installed: --backend transformers."
        )
    return importlib.import_module(f"{__name__}.{_module_of(model_type)}").FAMILY


MOST_NAMED = 3
"""Fields of config.json that an error names at most."""


def read_model_config(data: dict[str, Any], context_length: int | None = None) -> tuple[Family, ModelConfig]:
    """Return the family and the `ModelConfig` of a Hugging Face config.json, or of the text model inside it.

    Args:
        data: contents of config.json.
        context_length: positions that the graph supports; None for all that the model has.

    Raises:
        ConfigError: the family is not supported, or config.json has a field that the family neither reads nor knows to
            have no effect.
    """
    text = text_config(data)
    if text is not None:
        if not has_family(text["model_type"]):
            raise ConfigError(
                f"the text model of this {data['model_type']} is of model_type {text['model_type']!r}, which no family "
                "reads (edgeformer models lists them)."
            )
        family, config = read_model_config(text, context_length)
        return family_inside(family, data["model_type"]), config
    experts = next((name for name in EXPERTS if data.get(name)), None)
    if experts is not None and not has_family(data["model_type"]):
        raise ConfigError(
            f"{data['model_type']} is a mixture of experts ({experts} = {shown(data[experts])}), and edgeformer has no "
            "blocks for those. Export a dense model."
        )
    family = load_family(data["model_type"])
    alone = family.encoder_class is not None and data.get("architectures") == [family.encoder_class]
    # transformers 5 writes is_encoder_decoder=False for a bare encoder, and the rest as for the encoder-decoder.
    read = data | {"is_encoder_decoder": True} if alone else data
    try:
        with _values_of(data):
            fields = Fields(read, family.defaults)
            config = family.read_config(fields, context_length)
            is_encoder = family.reads_is_causal and not fields.choice("is_causal", {True: True, False: False}, True)
            fields.finish()
            if is_encoder:
                head = read_decoder_head(fields, data.get("architectures"))
                family = family.without_head({} if head is None else {"classifier.output": "score|classifier"})
                config = both_ways(cast(DecoderConfig, config), head)
            elif isinstance(config, DecoderConfig) and (head := read_decoder_head(fields, data.get("architectures"))):
                family = family.without_head({"classifier.output": "score|classifier"})
                config = EncoderConfig.of_decoder(config, head=head)
            elif isinstance(config, EncoderConfig) and family.is_decoder:
                family = family.without_head()
            elif config.task == "dual-encoder":
                family = family.both_halves()
            config = checked(config)
            if alone and isinstance(config, Seq2SeqConfig):
                return family.encoder_alone(), config.encoder
    except ContextLengthError:
        raise
    except ConfigError as error:
        # Nothing falls back in silence: what the other way exports is not what was asked for.
        where = fields_of_value(data, error.value) if isinstance(error, schema.FieldError) else ""
        raise ConfigError(f"{where}{error}{TRY_TRANSFORMERS_BACKEND if family.is_decoder else ''}") from error
    return family, config


def fields_of_value(data: dict[str, Any], value: Any) -> str:
    """Return which fields of a config.json have a value that the model may not have; nothing for a common value."""
    found = [name for name, each in data.items() if type(each) is type(value) and each == value]
    named = " and ".join(f"{name} = {shown(value)}" for name in found)
    return f"config.json has {named}: " if 0 < len(found) <= MOST_NAMED else ""


def text_config(data: dict[str, Any], stored: Collection[str] = (), *, inside: bool = False) -> dict[str, Any] | None:
    """Return the config.json of the text model inside a model of several; None for a model of one.

    stored: names of all tensors of the checkpoint. inside: whether it is to run inside the whole model. Raises
    ConfigError for a config.json without model_type, and for fields of the whole model that belong neither to the text
    model nor to another modality.
    """
    model_type = data.get("model_type")
    if model_type is None:
        raise ConfigError("config.json has no model_type; edgeformer reads Hugging Face model folders.")
    if not isinstance(model_type, str):
        raise ConfigError(f"config.json has model_type = {shown(model_type)}; it must be a text, such as 'llama'.")
    if has_family(model_type):  # CLIP and SigLIP, whose families read the whole config.json
        return None
    with _values_of(data):
        return _nested.text_config(data, stored, inside=inside)


@contextmanager
def _values_of(data: dict[str, Any]) -> Iterator[None]:
    """Turn what values of a wrong kind lead to, such as a division by a size of zero, into a ConfigError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        numbers = {name: value for name, value in data.items() if isinstance(value, str) and _is_number(value)}
        texts = [f"{name} = {shown(value)}" for name, value in numbers.items() if name not in WITHOUT_EFFECT]
        said = f", {' and '.join(texts)} (a text, where a number is wanted)" if 0 < len(texts) <= MOST_NAMED else ""
        kind = f"config.json is not one of a {data['model_type']} model"
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise ConfigError(
            f"{kind}: a field of it has a value of the wrong kind{said} ({reason}). Sizes must be positive numbers."
        ) from error


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def checked(config: ModelConfig) -> ModelConfig:
    """Return a config, every field of which has the type that it declares: families pass on values of config.json.

    Raises ConfigError for another type, and for a model with more than MOST_PARAMETERS.
    """
    kind: Any = ModelConfig
    config = schema.from_json(kind, schema.to_json(config), "the model")
    parameters = account(config).parameters
    if parameters > MOST_PARAMETERS:
        raise ConfigError(
            f"config.json describes a model of {parameters:,} parameters; it may have {MOST_PARAMETERS:,} at most."
        )
    return config
