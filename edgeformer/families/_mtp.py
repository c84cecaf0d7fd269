"""Multi-token prediction: the layers behind the last one by which checkpoints of some families draft tokens.

A family says in `Family.mtp` where its checkpoints store such a layer. Sources: DeepSeek-V3 (arXiv 2412.19437, section
2.2); of names and the order of states, vllm/model_executor/models/qwen3_5_mtp.py and mimo_mtp.py, and those of the
constants below.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
        copies: stored copies of modules of the model, which the layer shares, by our names of these.
        hidden_first: the state stands before the embedding in what the projection multiplies.
        normalized: see `MTPConfig`.
        like_first: its block is like the model's first one, not like the last one with attention.

    `{layers}` in a name is the number of the model's layers.
    """

    count: str
    block: str
    parts: Mapping[Part, str]
    copies: Mapping[str, str] = field(default_factory=dict)
    hidden_first: bool = False
    normalized: bool = True
    like_first: bool = False
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

BEHIND = "model.layers.{layers}."
"""Beginning of the names of the tensors of the layer behind the last one."""

BEHIND_LAST = MTPTables(
    count="num_nextn_predict_layers",
    block=BEHIND,
    parts={
        "token_norm": f"{BEHIND}enorm",
        "state_norm": f"{BEHIND}hnorm",
        "projection": f"{BEHIND}eh_proj",
        "norm": f"{BEHIND}shared_head.norm",
    },
    copies={"embedding": f"{BEHIND}embed_tokens", "head": f"{BEHIND}shared_head.head"},
)
"""Where DeepSeek-V3 and GLM-4.5 have it: a layer like the last one, with the parts and copies beside its block.

Sources: vllm/model_executor/models/deepseek_mtp.py, glm4_moe_mtp.py and glm4_moe_lite_mtp.py; SGLang's
deepseek_nextn.py and glm4_moe_nextn.py; `MtpModel` of transformers/modeling_layers.py. The embedding stands first, and
the state is read behind the final norm. A further token is drafted with the state behind `shared_head.norm`, as in
SGLang and transformers; engines that took the state before this norm saw fewer drafts come true (pull requests 46075
and 47448 of vllm-project/vllm, 1764 of ROCm/ATOM). vLLM reads zeros instead of the embedding at position 0; SGLang and
transformers do not, and neither does edgeformer. SGLang and transformers leave the copies of embedding and head unread.
"""


def behind(*layers: int) -> str:
    """Return the names of the tensors of the layer behind the last one, of models with so many layers."""
    return re.escape(BEHIND).replace(re.escape("{layers}"), f"({'|'.join(map(str, layers))})") + ".*"


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
    blocks = config.blocks if tables.like_first else config.blocks[::-1]
    block = next(block for block in blocks if block.attention is not None)
    width = hf_config.get(tables.intermediate_size)
    if width is not None:
        assert isinstance(block.feed_forward, FeedForwardConfig)
        block = replace(block, feed_forward=replace(block.feed_forward, intermediate_size=width))
    assert config.final_norm is not None, "families with such layers have a final norm"
    layer = MTPConfig(
        block=block, norm=config.final_norm, hidden_first=tables.hidden_first, normalized=tables.normalized
    )
    return _with_tensors(family, tables, len(config.blocks)), replace(config, mtp=layer)


def _with_tensors(family: Family, tables: MTPTables, layers: int) -> Family:
    """Return a family that reads the tensors of the layer, and no longer passes over them."""

    def named(module: str) -> str:
        return module.replace("{layers}", str(layers))

    block = {
        ours.replace("blocks.*.", "mtp.block.", 1): _of_layer(theirs, named(tables.block))
        for ours, theirs in family.tensors.items()
        if ours.startswith("blocks.*.")
    }
    parts = {f"mtp.{part}": named(module) for part, module in tables.parts.items()}
    names = [f"{module}.weight" for module in parts.values()]
    ignored = (each for each in family.ignored_tensors if not any(re.fullmatch(each, name) for name in names))
    copies = {f"{named(module)}.weight": f"{ours}.weight" for ours, module in tables.copies.items()}
    tensors = {**family.tensors, **block, **parts}
    return replace(family, tensors=tensors, ignored_tensors=tuple(ignored), copies=copies)


def _of_layer(theirs: Any, prefix: str) -> Any:
    """Return an entry of `Family.tensors` of a block with the names of the layer."""
    match theirs:
        case str():
            return "|".join(name.replace(LAYERS, prefix, 1) for name in theirs.split("|"))
        case Packed():
            return replace(theirs, module=_of_layer(theirs.module, prefix))
        case _:
            return tuple(_of_layer(each, prefix) for each in theirs)
