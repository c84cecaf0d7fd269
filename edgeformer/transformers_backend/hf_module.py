"""Build modules of transformers from a config alone: parameters on the meta device, buffers with their values.

Buffers that no checkpoint stores (rotary frequencies, scales) are computed by the constructors of the modules, so they
must be real; a parameter is allocated only until its module registers it.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from edgeformer.checkpoints.found_model import CONTEXT_FIELDS
from edgeformer.errors import ConfigError, ExportError
from edgeformer.transformers_backend.patches.attention import registered
from edgeformer.transformers_backend.transformers_shim import (
    ATTENTION_NAME,
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    parameters_on_meta,
    quietly,
    silence_padding_warning,
    transformers,
)

INSTALLED = f"transformers {transformers.__version__}"

FLOAT = "__float__"
"""The one key of an object that stands for a number such as Infinity in a config.json of transformers."""

PARTS = ("vision_config", "audio_config", "text_config", "text_encoder", "audio_encoder", "patcher_config")
"""Fields of a config that hold the configs of several models."""


def read_config(hf_config: Mapping[str, Any]) -> Any:
    """Return transformers' config object for a config.json. Raises ConfigError unless it is that of a decoder."""
    model_type = str(hf_config.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        remote = " It brings code of its own (auto_map), which is not run." if "auto_map" in hf_config else ""
        raise ConfigError(f"{INSTALLED} has no model_type {model_type!r}.{remote} A newer transformers may have it.")
    if hf_config.get("quantization_config"):
        raise ConfigError(
            "its weights are quantized (quantization_config in config.json); --backend transformers reads plain "
            "weights. Give the model that it was quantized from."
        )
    values = {name: decoded(value) for name, value in hf_config.items() if name not in ("model_type", "auto_map")}
    try:
        config = CONFIG_MAPPING[model_type].from_dict(values)
    except Exception as error:  # transformers' own validation may raise anything
        raise ConfigError(f"{INSTALLED} does not take this config.json: {type(error).__name__}: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(
            f"{model_type} is not a causal language model in {INSTALLED}; --backend exports nothing else yet."
        )
    parts = [name for name in PARTS if getattr(config, name, None) is not None]
    if parts:
        raise ConfigError(
            f"{model_type} is made of several models ({', '.join(parts)} in its config.json), and a bundle holds a "
            "text decoder. Export it without --backend: edgeformer reads the text models that it knows where they lie."
        )
    return config


def decoded(value: Any) -> Any:
    """Return a value of config.json with the numbers that JSON lacks, which transformers writes as {"__float__": …}."""
    if isinstance(value, list):
        return [decoded(each) for each in value]
    if isinstance(value, Mapping):
        return float(value[FLOAT]) if value.keys() == {FLOAT} else {key: decoded(each) for key, each in value.items()}
    return value


def context_length(config: Any, asked: int | None) -> int:
    """Return how many positions to export: `asked`, or all that the model has. Raises ConfigError for more."""
    stated = [getattr(config, name, None) for name in CONTEXT_FIELDS]
    available = next((value for value in stated if isinstance(value, int) and value > 0), None)
    length = available if asked is None else asked
    if length is None:
        raise ConfigError(
            f"config.json of this {config.model_type} does not say how many positions the model has (none of "
            f"{', '.join(CONTEXT_FIELDS)}). Say for how many to provide: --context-length N."
        )
    if length < 1 or (available is not None and length > available):
        raise ConfigError(
            f"--context-length {asked} is not between 1 and the {available} positions that the model has."
        )
    return length


def build(config: Any, dtype: torch.dtype, attention: str) -> Any:
    """Build the causal LM of a config for inference: meta parameters of `dtype`, real buffers.

    Buffers of real numbers that checkpoints store, such as the biases of routers, are parameters of the result.
    attention: "eager", or `ATTENTION_NAME`. The config is not changed. Raises ConfigError where transformers cannot
    build it, and ExportError where it does not take our attention.
    """
    with registered(), parameters_on_meta(), quietly():
        try:
            model = transformers.AutoModelForCausalLM.from_config(
                copy.deepcopy(config), dtype=dtype, attn_implementation=attention, experts_implementation="eager"
            )
        except Exception as error:  # code that is not ours may raise anything
            if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):
                raise ExportError(
                    f"{config.model_type} chooses among attention classes of its own, and takes none through "
                    "transformers' attention interface. Only a family file can export it."
                ) from None
            raise ConfigError(
                f"{INSTALLED} builds no {config.model_type} of this config.json: {type(error).__name__}: {error}"
            ) from error
    silence_padding_warning(model)
    _make_parameters_of_stored_buffers(model)
    return model.eval().requires_grad_(False)


def _make_parameters_of_stored_buffers(model: nn.Module) -> None:
    """Replace floating-point buffers that are part of a checkpoint: their values are read from it, as weights are."""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name not in module._non_persistent_buffers_set and buffer.is_floating_point():
                delattr(module, name)
                module.register_parameter(name, nn.Parameter(buffer.to("meta"), requires_grad=False))
