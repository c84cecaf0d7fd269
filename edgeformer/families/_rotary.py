"""Read the rotary parameters of a Hugging Face config.json, in the layouts of transformers 4 and 5.

Source: transformers/modeling_rope_utils.py. Two kinds of scaling depend on the current length of the text there:

- `dynamic` has no effect up to max_position_embeddings, where the context of an export ends;
- `longrope` uses its short factors up to original_max_position_embeddings, and its long ones for longer requests.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from edgeformer.config import (
    LinearScaling,
    Llama3Scaling,
    LongFactors,
    LongRopeScaling,
    ProportionalScaling,
    RotaryConfig,
    RotaryScaling,
    YarnScaling,
)
from edgeformer.errors import ConfigError, ContextLengthError, shown
from edgeformer.families._family import Fields

IDLE_BESIDE_DEFAULT = {
    "attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "long_factor", "low_freq_factor",
    "mscale", "mscale_all_dim", "original_max_position_embeddings", "short_factor", "truncate",
}  # fmt: skip
"""Parameters of scalings that transformers does not read where the kind is `default`."""

DEFAULT_BASE = 10000.0
"""rope_theta of transformers where config.json has none."""


def read_context_length(
    fields: Fields, requested: int | None, name: str = "max_position_embeddings", unused: int = 0
) -> int:
    """Return the context length of the export: all positions of the model, or the requested number.

    requested: a context length, or None. name: field with the number of positions. unused: how many of these no token
    can have. Raises ContextLengthError for more positions than the model has.
    """
    available = fields.take(name) - unused
    if requested is not None and not 0 < requested <= available:
        raise ContextLengthError(f"--context-length is {requested}; this model has positions 1 to {available}.")
    return requested or available


def read_rope_fields(fields: Fields) -> dict[str, Any]:
    """Return `rope_parameters` (transformers 5) or `rope_scaling` (4), whichever config.json has; else nothing.

    Raises ConfigError where both are there and say different things: transformers takes `rope_scaling` and drops the
    other, its `rope_theta` too, which is rarely what the tool meant that wrote the second.
    """
    new, old = fields.take("rope_parameters", {}), fields.take("rope_scaling", {})
    if new and old and _normal(new) != _normal(old):
        raise ConfigError(
            f"config.json has both rope_parameters = {shown(new, 200)} and rope_scaling = {shown(old, 200)}, which say "
            "different things; transformers 5 takes rope_scaling alone, without the rope_theta of rope_parameters. "
            "Write what the model was trained with into rope_parameters, and remove rope_scaling."
        )
    return dict(new or old)


def _normal(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary parameters with the name that transformers 5 has for the kind, and without null."""
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    found = {name: value for name, value in parameters.items() if value is not None and name != "type"}
    return found | {"rope_type": kind}


def read_rotary(
    fields: Fields,
    head_dim: int,
    context_length: int,
    *,
    interleaved: bool = False,
    fraction: float | None = None,
    base: float = DEFAULT_BASE,
    otherwise: Mapping[str, Any] | None = None,
    known: Collection[str] = (),
) -> RotaryConfig:
    """Read `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4).

    Args:
        fields: config.json.
        head_dim: size of a head.
        context_length: positions of the export.
        interleaved: see `RotaryConfig`.
        fraction: default of the fraction of a head that rotates; None for families that always rotate whole heads.
        base: default of rope_theta.
        otherwise: the parameters where config.json has neither rope_parameters nor rope_scaling; None for no scaling.
        known: names of further parameters, which the caller reads.
    """
    stated = read_rope_fields(fields) or otherwise or {}
    parameters = {name: value for name, value in stated.items() if name not in known}
    base = fields.take("rope_theta", base)
    if fraction is None and parameters.get("partial_rotary_factor") == 1:
        del parameters["partial_rotary_factor"]  # whole heads rotate, as they do anyway
    if fraction is not None:
        outside = fields.take("partial_rotary_factor", fraction)
        fraction = parameters.pop("partial_rotary_factor", None) or outside
    return _read_rotary(fields, parameters, base, head_dim, context_length, interleaved, fraction)


def read_rotary_by_type(
    fields: Fields, head_dim: int | Mapping[str, int], context_length: int, otherwise: Mapping[str, Mapping[str, Any]]
) -> dict[str, RotaryConfig]:
    """Read `rope_parameters` of a family that has them by layer type.

    head_dim: size of a head, or that by layer type. otherwise: default parameters by layer type. Raises ConfigError for
    a type that is not in `otherwise`.
    """
    given = fields.take("rope_parameters", {})
    if given and fields.take("rope_scaling", {}):
        read_rope_fields(fields)  # which says that there are both
    for name in sorted(given.keys() - otherwise.keys()):
        raise ConfigError(
            f"config.json's rope_parameters have {name}; here they are given by layer type: {', '.join(otherwise)}."
        )
    sizes = dict.fromkeys(otherwise, head_dim) if isinstance(head_dim, int) else head_dim
    return {
        kind: _read_rotary(
            fields, {**parameters, **(given.get(kind) or {})}, DEFAULT_BASE, sizes[kind], context_length, False, None
        )
        for kind, parameters in otherwise.items()
    }


def _read_rotary(
    fields: Fields,
    parameters: dict[str, Any],
    base: float,
    head_dim: int,
    context_length: int,
    interleaved: bool,
    fraction: float | None,
) -> RotaryConfig:
    base = parameters.pop("rope_theta", None) or base
    # Both layouts may name the kind; transformers prefers rope_type.
    legacy_kind = parameters.pop("type", "default")
    kind = parameters.pop("rope_type", None) or legacy_kind
    positions = fields.take("max_position_embeddings")
    original = fields.take("original_max_position_embeddings", None)
    if kind == "proportional" and fraction is not None:
        raise ConfigError("RoPE scaling 'proportional' is not supported with partial rotary embeddings.")
    read = {key: value for key, value in parameters.items() if value is not None}
    scaling = _read_scaling(kind, read, positions, original, context_length)
    if read:
        raise ConfigError(f"RoPE scaling {kind!r} has parameters that are not known: {', '.join(sorted(read))}.")
    rotary_dim = head_dim if fraction is None else int(head_dim * fraction)
    return RotaryConfig(rotary_dim=rotary_dim, base=float(base), interleaved=interleaved, scaling=scaling)


def _read_scaling(
    kind: str, read: dict[str, Any], positions: int, original: int | None, context_length: int
) -> RotaryScaling | None:
    """Return the scaling of a `kind`, and remove its parameters from `read`."""

    def take(name: str) -> Any:
        if name not in read:
            raise ConfigError(f"RoPE scaling {kind!r} requires {name} in config.json's rope parameters.")
        return read.pop(name)

    if kind == "default":
        for name in IDLE_BESIDE_DEFAULT & read.keys():
            del read[name]
        return None
    if kind == "dynamic":
        take("factor")
        read.pop("original_max_position_embeddings", None)
        return None
    if kind == "linear":
        return LinearScaling(factor=float(take("factor")))
    if kind == "proportional":
        fraction = float(read.pop("partial_rotary_factor", 1.0))
        return ProportionalScaling(factor=float(read.pop("factor", 1.0)), fraction=fraction)

    # Context length of pre-training: a field of config.json (Phi-3), a rope parameter, or all positions.
    original = original or read.get("original_max_position_embeddings") or positions
    read.pop("original_max_position_embeddings", None)
    if kind == "llama3":
        return Llama3Scaling(
            factor=float(take("factor")),
            low_freq_factor=float(take("low_freq_factor")),
            high_freq_factor=float(take("high_freq_factor")),
            original_context_length=original,
        )
    if kind == "yarn":
        factor = float(read.pop("factor", positions / original))
        return YarnScaling(
            factor=factor,
            attention_factor=_yarn_attention_factor(read, factor),
            beta_fast=float(read.pop("beta_fast", 32) or 32),
            beta_slow=float(read.pop("beta_slow", 1) or 1),
            original_context_length=original,
            truncate=bool(read.pop("truncate", True)),
        )
    if kind in ("longrope", "su"):  # "su" is the first name of it, in Phi-3
        factor = float(read.pop("factor", positions / original))
        attention_factor = read.pop("attention_factor", None)
        if attention_factor is None:
            attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        short, long = (tuple(map(float, take(name))) for name in ("short_factor", "long_factor"))
        above = LongFactors(above=original, factors=long, attention_factor=attention_factor)
        return LongRopeScaling(
            factors=short, attention_factor=attention_factor,
            long=above if context_length > original and long != short else None,
        )  # fmt: skip
    raise ConfigError(
        f"RoPE scaling {kind!r} is not supported; supported: default, linear, dynamic, proportional, llama3, yarn, "
        "longrope."
    )


def _yarn_attention_factor(read: dict[str, Any], factor: float) -> float:
    """Return YaRN's attention factor: the given one, or 0.1 · ln(factor) + 1.

    If both of DeepSeek's multipliers are set, it is (0.1 · mscale · ln(factor) + 1) / (0.1 · mscale_all_dim ·
    ln(factor) + 1).
    """
    given = read.pop("attention_factor", None)
    mscale, mscale_all_dim = read.pop("mscale", None), read.pop("mscale_all_dim", None)
    if given is not None:
        return float(given)
    if mscale and mscale_all_dim:
        return yarn_temperature(factor, mscale) / yarn_temperature(factor, mscale_all_dim)
    return yarn_temperature(factor, 1)


def yarn_temperature(factor: float, multiplier: float) -> float:
    """Return 0.1 · multiplier · ln(factor) + 1, or 1 where contexts are not extended. Source: arXiv 2309.00071."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0
