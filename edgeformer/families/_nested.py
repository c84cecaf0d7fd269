"""The text model inside a bigger checkpoint: its config.json, as if it stood alone, and its tensors among the others.

transformers writes the config of a text model into a field of the whole model's config.json, without the values that
are defaults of its class, and its tensors under a prefix. The tables are in `_wrappers.py` and `text_defaults.json`.
Source: transformers/configuration_utils.py, transformers/conversion_mapping.py.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from edgeformer.errors import ConfigError, shown
from edgeformer.families._experts import COUNTS
from edgeformer.families._family import Family
from edgeformer.families._neutral import is_neutral
from edgeformer.families._refused import REFUSED
from edgeformer.families._wrappers import (
    INSEPARABLE,
    SAME_ON_TEXT,
    WORDS,
    WRAPPERS,
    Heads,
    Wrapper,
    is_foreign,
    modality_of,
    wrapper_of,
)

TIED = "tie_word_embeddings"
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
OF_THE_WHOLE = {"_name_or_path", "architectures", "auto_map", "model_type", "transformers_version"}
"""Fields that describe the whole model, and not its text model."""

LAYOUTS = (
    ("language_model.{base}.", "language_model.{head}."),
    ("model.language_model.", "{head}."),
    ("model.text_model.", "{head}."),
    ("text_model.", "{head}."),
    ("model.language_model.{base}.", "model.language_model.{head}."),
    ("thinker.{base}.", "thinker.{head}."),
    ("language_model.", "{head}."),
    ("{base}.", "{head}."),
)
"""Prefixes of the names of a text model's body and head. `{base}` and `{head}`: those of the model by itself. The first
layout is transformers 4's, which 5 also writes for models that had it."""


def text_config(
    data: Mapping[str, Any], stored: Collection[str] = (), *, inside: bool = False
) -> dict[str, Any] | None:
    """Return the config.json of the text model inside a bigger model, as if it stood alone; None for other models.

    data: config.json of the whole model. stored: names of all tensors of the checkpoint, where they are known; a head
    that is stored is not tied where config.json does not say so (as in transformers' `tie_weights`). inside: whether it
    is to run inside the whole model.

    Raises ConfigError for fields of the whole model that belong neither to the text model nor to another modality.
    """
    model_type = str(data.get("model_type"))
    wrapper = wrapper_of(model_type) if inside else WRAPPERS.get(model_type)
    if wrapper is None:
        if isinstance(data.get("text_config"), dict) and model_type not in REFUSED:
            reason = "its text model is not known to compute inside what it computes by itself"
            if model_type in INSEPARABLE:
                reason = f"its text model is not exported by itself: {INSEPARABLE[model_type].inside}"
            raise ConfigError(
                f"{data.get('model_type')} is made of several models (text_config in its config.json), and {reason}. "
                f"The text models of these are: {', '.join(WRAPPERS)}."
            )
        return None
    inner = data.get(wrapper.place)
    if not isinstance(inner, dict | None):
        raise ConfigError(f"config.json has {wrapper.place} = {shown(inner)}; it must be the config of its text model.")
    is_flat = inner is None
    given = {name: value for name, value in (data if inner is None else inner).items() if not is_foreign(name, wrapper)}
    kind = wrapper.text if is_flat else str(given.get("model_type") or wrapper.text)
    if wrapper.heads is not None and kind != wrapper.text:
        raise ConfigError(
            f"the text model of this {model_type} is of model_type {kind!r}; supported here: {wrapper.text}."
        )
    text = {**_defaults_beside(kind, given), **wrapper.defaults, **given, "model_type": kind}
    if is_flat:
        text = {name: value for name, value in text.items() if name not in OF_THE_WHOLE} | {"model_type": kind}
    else:
        _check_outer(data, text, wrapper)
    text |= {name: data[name] for name in TOKENS if data.get(name) is not None}
    text[TIED] = _is_tied(data, given, wrapper, stored)
    if wrapper.heads is not None:
        text = _with_head(text, data, wrapper.heads)
    text = _with_plain_positions(text_config(text, stored) or text)
    return text | {"model_type": SAME_ON_TEXT.get(text["model_type"], text["model_type"])}


def _with_head(text: dict[str, Any], data: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    """Return the config.json of a text model with the head that the whole model has."""
    theirs, ours = heads.classes
    of_text = {name: value for name, value in text.items() if name not in heads.fields}
    of_text |= {name: data[name] for name in heads.fields if name in data}
    classes = data.get("architectures")
    if isinstance(classes, list):
        of_text["architectures"] = [
            ours + name.removeprefix(theirs) if isinstance(name, str) and name.startswith(theirs) else name
            for name in classes
        ]
    return of_text


def _defaults_beside(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a model_type, without that of a number of experts that is given under another name."""
    counted = any(given.get(name) is not None for name in COUNTS)
    return {name: value for name, value in text_defaults().get(kind, {}).items() if not (counted and name in COUNTS)}


@cache
def text_defaults() -> dict[str, dict[str, Any]]:
    """Return the values that transformers' config classes have for absent fields, by model_type."""
    defaults: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("text_defaults.json").read_text())
    return defaults


def _check_outer(data: Mapping[str, Any], text: Mapping[str, Any], wrapper: Wrapper) -> None:
    """Raise a ConfigError for fields of the whole model that nobody has looked at."""
    unknown = {
        name: value
        for name, value in data.items()
        if name not in {wrapper.place, TIED, *wrapper.unread, *(wrapper.heads.fields if wrapper.heads else ())}
        and not is_neutral(name, data)
        and not is_foreign(name, wrapper)
        and not (name in text and text[name] == value)
    }
    if unknown:
        listed = ", ".join(f"{name} = {shown(value, 200)}" for name, value in sorted(unknown.items()))
        raise ConfigError(
            f"config.json of this {data['model_type']} has fields beside {wrapper.place} that are not known to belong "
            f"to another modality: {listed}. They may change what its text model computes, so nothing was exported."
        )


def _is_tied(data: Mapping[str, Any], text: Mapping[str, Any], wrapper: Wrapper, stored: Collection[str]) -> bool:
    """Return whether the head is the embedding: as the whole model says, or else as its text model or default says."""
    if data.get(TIED):
        return True
    claimed = text.get(TIED) or (wrapper.tied and TIED not in data)
    return bool(claimed) and not any(name.endswith("lm_head.weight") for name in stored)


def _with_plain_positions(text: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json without the sections of three-dimensional positions.

    Positions have three axes (time, height, width) that are equal for tokens of a text, so that the sections of
    frequencies (`mrope_section`) that turn by each axis turn by one position.
    """
    plain = {name: value for name, value in text.items() if name != "use_mrope"}
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(plain.get(name), dict):
            rope = {key: value for key, value in plain[name].items() if not key.startswith("mrope_")}
            plain[name] = {key: "default" if value == "mrope" else value for key, value in rope.items()}
    return plain


def family_inside(family: Family, model_type: str | None) -> Family:
    """Return the family of a text model inside a model of a type; as it is where that is None."""
    wrapper = None if model_type is None else wrapper_of(model_type)
    if wrapper is None:
        return replace(family, nested=model_type is not None)
    heads = {} if wrapper.heads is None else wrapper.heads.modules
    return replace(family, nested=True, heads=heads, transposed=(*family.transposed, *wrapper.transposed))


def find_tensors(family: Family, stored: Collection[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Find the tensors of a text model in the checkpoint of a bigger one.

    Returns the name that each of them has there by the name that the text model's family gives it, and the names of the
    tensors of other modalities by modality. A tensor that belongs to neither keeps its name.
    """
    embedding, head = str(family.tensors["embedding"]), str(family.tensors.get("head", "lm_head"))
    base, _, rest = embedding.partition(".")
    layouts = [(body.format(base=base), top.format(head=head)) for body, top in LAYOUTS]
    found = next((layout for layout in layouts if f"{layout[0]}{rest}.weight" in stored), layouts[-1])
    renamed = dict(zip(found, (f"{base}.", f"{head}."), strict=True))
    renamed |= {f"{theirs}.": f"{ours}." for theirs, ours in family.heads.items()}
    names: dict[str, str] = {}
    left_out: dict[str, list[str]] = {}
    for name in stored:
        prefix = next((prefix for prefix in renamed if name.startswith(prefix)), None)
        modality = None if prefix else _modality_of_tensor(name)
        if modality is not None:
            left_out.setdefault(modality, []).append(name)
        else:
            names[name if prefix is None else renamed[prefix] + name.removeprefix(prefix)] = name
    return names, {modality: left_out[modality] for modality in WORDS if modality in left_out}


def _modality_of_tensor(name: str) -> str | None:
    """Return the modality of the module that a tensor lies in, which is the first one below the whole model."""
    modules = name.split(".")
    while len(modules) > 1 and modules[0] in ("model", "thinker"):
        modules = modules[1:]
    return modality_of(modules[0])
