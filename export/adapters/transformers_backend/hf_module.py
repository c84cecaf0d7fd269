"""Modules of transformers, built from a config alone: parameters on the meta device, buffers with their values.

Buffers that no checkpoint stores (rotary frequencies, scales) are computed by the modules' own constructors, so they
are real; parameters are never allocated for longer than their constructor runs.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from edgeformer.errors import ConfigError, ExportError
from edgeformer.export.adapters.transformers_backend.attention import NAME, registered
from edgeformer.source import CONTEXT_FIELDS

PARTS = ("vision_config", "audio_config", "text_config", "text_encoder", "audio_encoder", "patcher_config")
"""What configs of several models call their parts."""


def read_config(hf_config: Mapping[str, Any]) -> Any:
    """Make transformers' own config object of a config.json. Raises ConfigError for what cannot be a decoder here."""
    model_type = str(hf_config.get("model_type"))
    installed = f"transformers {transformers.__version__}"
    if model_type not in CONFIG_MAPPING:
        remote = " It brings code of its own (auto_map), which is not run." if "auto_map" in hf_config else ""
        raise ConfigError(f"{installed} has no model_type {model_type!r}.{remote} A newer transformers may have it.")
    if hf_config.get("quantization_config"):
        raise ConfigError(
            "its weights are quantized (quantization_config in config.json); --backend transformers reads plain "
            "weights. Give the model that it was quantized from."
        )
    values = {name: value for name, value in hf_config.items() if name not in ("model_type", "auto_map")}
    try:
        config = CONFIG_MAPPING[model_type].from_dict(values)
    except Exception as error:  # whatever transformers' validation raises is about this config.json
        raise ConfigError(f"{installed} does not take this config.json: {type(error).__name__}: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(
            f"{model_type} is not a causal language model in {installed}; --backend exports nothing else yet."
        )
    parts = [name for name in PARTS if getattr(config, name, None) is not None]
    if parts:
        raise ConfigError(
            f"{model_type} is made of several models ({', '.join(parts)} in its config.json), and a bundle holds a "
            "text decoder. If its text part has a model_type of its own, save that part as a checkpoint and export it."
        )
    return config


def context_length(config: Any, asked: int | None) -> int:
    """Positions to provide for: as asked, at most what the model has."""
    said = [getattr(config, name, None) for name in CONTEXT_FIELDS]
    has = next((value for value in said if isinstance(value, int) and value > 0), None)
    if asked is None and has is None:
        raise ConfigError(
            f"config.json of this {config.model_type} does not say how many positions the model has (none of "
            f"{', '.join(CONTEXT_FIELDS)}). Say for how many to provide: --context-length N."
        )
    if asked is not None and (asked < 1 or (has is not None and asked > has)):
        raise ConfigError(f"--context-length {asked} is not between 1 and the {has} positions that the model has.")
    return asked or has  # type: ignore[return-value]


def build(config: Any, dtype: torch.dtype, attention: str) -> Any:
    """Build the causal LM of a config for inference: meta parameters of `dtype`, real buffers.

    attention: "eager", or the name of ours. The config is not changed.
    """
    with registered(), _parameters_on_meta():
        try:
            model = transformers.AutoModelForCausalLM.from_config(
                copy.deepcopy(config), dtype=dtype, attn_implementation=attention
            )
        except Exception as error:  # code that is not ours, which may raise anything
            if isinstance(error, KeyError) and error.args == (NAME,):
                raise ExportError(
                    f"{config.model_type} chooses among attention classes of its own, and takes none through "
                    "transformers' attention interface. Only a family file can export it."
                ) from None
            raise ConfigError(
                f"transformers {transformers.__version__} builds no {config.model_type} of this config.json: "
                f"{type(error).__name__}: {error}"
            ) from error
    for module in model.modules():
        if isinstance(module, transformers.PreTrainedModel):
            # It reads token ids to warn of padding, which neither the meta device nor a trace can.
            module.warn_if_padding_and_no_attention_mask = _say_nothing  # type: ignore[method-assign]
    return model.eval().requires_grad_(False)


def _say_nothing(*args: Any) -> None:
    return None


def forward_arguments(model: nn.Module) -> set[str]:
    """Names of what the model's forward takes."""
    return set(inspect.signature(model.forward).parameters)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move every parameter to the meta device when a module takes it, for the length of a `with` block."""
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.detach().to("meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
