"""Multi-token prediction: the layers behind the last one by which checkpoints of some families draft tokens.

A family says in `Family.mtp` where its checkpoints store such a layer. Sources: DeepSeek-V3 (arXiv 2412.19437, section
2.2); of names and the order of states, vllm/model_executor/models/qwen3_5_mtp.py and mimo_mtp.py. transformers does not
run these layers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgeformer.config import DecoderConfig, FeedForwardConfig, ModelConfig, MTPConfig
from edgeformer.errors import ConfigError, shown
from edgeformer.families._family import Family, Packed

LAYERS = "model.layers.*."
"""Beginning of the names of the tensors of a decoder's blocks."""

Part = Literal["token_norm", "state_norm", "projection", "norm"]


@dataclass(frozen=True, kw_only=True)
class MTPTables:
    """Where the checkpoints of a family store a layer that drafts tokens.

    Attributes:
        count: field of config.json with the number of such layers.
        if_absent: the number where config.json does not say it.
        intermediate_size: field of config.json with the width of its feed-forward, where that is not the model's.
        block: beginning of the names of its block's tensors, which are those of the last block with attention.
        parts: the modules beside the block.
        hidden_first: the state stands before the embedding in what the projection multiplies.
    """

    count: str
    block: str
    parts: Mapping[Part, str]
    hidden_first: bool = False
    if_absent: int = 0
    intermediate_size: str = "mtp_intermediate_size"


PREDICTION = r"mtp\..*"
"""Names of the tensors of layers of multi-token prediction, which generation without drafts leaves out."""

MTP = MTPTables(
    count="mtp_num_hidden_layers",
    block="mtp.layers.0.",
    parts={
        "token_norm": "mtp.pre_fc_norm_embedding",
        "state_norm": "mtp.pre_fc_norm_hidden",
        "projection": "mtp.fc",
        "norm": "mtp.norm",
    },
)
"""Where Qwen3-Next and later have it. Source: vllm/model_executor/models/qwen3_5_mtp.py and qwen3_next_mtp.py."""


def with_mtp(hf_config: Mapping[str, Any], family: Family, config: ModelConfig) -> tuple[Family, DecoderConfig]:
    """Return a family and a config with the layer that drafts tokens. hf_config: config.json of the text model.

    Raises ConfigError for a model that has none, or one of another form.
    """
    tables, model_type = family.mtp, hf_config["model_type"]
    if tables is None or config.kind != "decoder":
        raise ConfigError(
            f"mtp is for models with a layer of multi-token prediction, and edgeformer does not know of {model_type}. "
            "Leave mtp out."
        )
    count = hf_config.get(tables.count, tables.if_absent)
    if count != 1:
        has = "no such layer" if not count else f"{shown(count)} of them, and edgeformer runs one"
        raise ConfigError(
            f"mtp is for models with a layer of multi-token prediction, and config.json has {tables.count} = "
            f"{shown(count)}: {has}. Leave mtp out."
        )
    if hf_config.get("mtp_use_dedicated_embeddings"):
        raise ConfigError(
            "config.json has mtp_use_dedicated_embeddings = true, and edgeformer's layers of multi-token prediction "
            "share the model's embeddings. Leave mtp out."
        )
    if config.short_context is not None:
        raise ConfigError(
            f"mtp is for models whose tokens turn alike in all requests; here those beyond {config.short_context} "
            "tokens turn by other factors. Leave mtp out, or give a context_length of that or less."
        )
    block = next(block for block in reversed(config.blocks) if block.attention is not None)
    width = hf_config.get(tables.intermediate_size)
    if width is not None:
        assert isinstance(block.feed_forward, FeedForwardConfig)
        block = replace(block, feed_forward=replace(block.feed_forward, intermediate_size=width))
    assert config.final_norm is not None, "families with such layers have a final norm"
    layer = MTPConfig(block=block, norm=config.final_norm, hidden_first=tables.hidden_first)
    return _with_tensors(family, tables), replace(config, mtp=layer)


def _with_tensors(family: Family, tables: MTPTables) -> Family:
    """Return a family that reads the tensors of the layer, and no longer passes over them."""
    block = {
        ours.replace("blocks.*.", "mtp.block.", 1): _of_layer(theirs, tables.block)
        for ours, theirs in family.tensors.items()
        if ours.startswith("blocks.*.")
    }
    parts = {f"mtp.{part}": module for part, module in tables.parts.items()}
    names = [f"{module}.weight" for module in parts.values()]
    ignored = (each for each in family.ignored_tensors if not any(re.fullmatch(each, name) for name in names))
    return replace(family, tensors={**family.tensors, **block, **parts}, ignored_tensors=tuple(ignored))


def _of_layer(theirs: Any, prefix: str) -> Any:
    """Return an entry of `Family.tensors` of a block with the names of the layer."""
    match theirs:
        case str():
            return "|".join(name.replace(LAYERS, prefix, 1) for name in theirs.split("|"))
        case Packed():
            return replace(theirs, module=_of_layer(theirs.module, prefix))
        case _:
            return tuple(_of_layer(each, prefix) for each in theirs)
