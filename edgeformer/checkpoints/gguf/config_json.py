"""Make the config.json and the generation_config.json of a GGUF file of its metadata."""

import math
import struct
from typing import Any

from edgeformer.checkpoints.gguf.architectures import Architecture, Config, find_architecture
from edgeformer.checkpoints.gguf.gguf_file import GgufFile
from edgeformer.checkpoints.gguf.metadata import Metadata
from edgeformer.errors import ConfigError

CONTROL = 3
"""Kind of a token of the tokenizer that is no text."""

ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "[EOT]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
)  # fmt: skip
"""Control tokens that end an answer wherever a tokenizer has them, as llama.cpp takes them by their texts."""


NO_TOKENS: Config = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Fields for which transformers has defaults where they are absent."""


def read_config_json(file: GgufFile) -> Config:
    """Return the config.json of a file, with transformers' names. Raises ConfigError for a file that is not read."""
    metadata = Metadata(file)
    architecture = find_architecture(metadata)
    config = _common(metadata, architecture)
    config["rope_scaling"] = _read_scaling(metadata, config)
    config |= architecture.read(metadata, config)
    metadata.finish()
    return NO_TOKENS | {name: value for name, value in config.items() if value is not None}


def read_generation_config(file: GgufFile) -> Config:
    """Return the token ids that generation needs: the end of a text, of a turn, of a message, and others."""
    metadata = Metadata(file)
    tokens, kinds = (file.metadata.get(f"tokenizer.ggml.{name}") or [] for name in ("tokens", "token_type"))
    named = [metadata.token(name) for name in ("eos", "eot", "eom")]
    if isinstance(tokens, list) and isinstance(kinds, list):
        named += [id for id, (text, kind) in enumerate(zip(tokens, kinds, strict=False)) if _ends(text, kind)]
    ends = list(dict.fromkeys(id for id in named if id is not None))
    if "<|return|>" in tokens and "<|end|>" in tokens:  # of gpt-oss, whose <|end|> separates messages of one answer
        ends = [id for id in ends if id != tokens.index("<|end|>")]
    found = {
        "bos_token_id": metadata.token("bos"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": metadata.token("padding"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _ends(text: Any, kind: Any) -> bool:
    return kind == CONTROL and text in ENDS


def _common(metadata: Metadata, architecture: Architecture) -> Config:
    """Return the fields that all architectures share."""
    file, take = metadata.file, metadata.take
    heads, hidden = take("attention.head_count", int), take("embedding_length", int)
    if heads <= 0 or hidden <= 0:
        raise ConfigError(f"{file.name} has {heads} heads and states of {hidden} numbers; both must be positive.")
    if "token_embd.weight" not in file.tensors:
        raise ConfigError(f"{file.name} has no token_embd.weight: it is no model by itself.")
    head_dim = take("attention.key_length", int, hidden // heads)
    metadata.fixed("attention.value_length", head_dim)
    if not architecture.partial:
        metadata.fixed("rope.dimension_count", head_dim)
    norms = "layer_norm_epsilon" if architecture.layer_norm else "layer_norm_rms_epsilon"
    take("vocab_size", int, None)  # the table of tokens has as many rows
    generation = read_generation_config(file)
    return {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": take("feed_forward_length", int, None),
        "num_hidden_layers": take("block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": take("attention.head_count_kv", (int, list), heads),
        "head_dim": head_dim,
        "max_position_embeddings": take("context_length", int),
        architecture.layer_norm or "rms_norm_eps": float(take(f"attention.{norms}", float)),
        "rope_theta": float(take("rope.freq_base", float, 10000.0)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **generation,
    }


def _read_scaling(metadata: Metadata, config: Config) -> Config | None:
    """Return `rope_scaling` of transformers; None where rotary embeddings are not scaled."""
    take, tensors = metadata.take, metadata.file.tensors
    old = take("rope.scale_linear", float, 1.0)
    kind, factor = take("rope.scaling.type", str, "linear"), float(take("rope.scaling.factor", float, old) or 1.0)
    original = take("rope.scaling.original_context_length", int, None)
    if {"rope_factors_long.weight", "rope_factors_short.weight"} <= tensors.keys():
        positions = config["max_position_embeddings"]
        return {
            "rope_type": "longrope",
            "short_factor": _numbers(metadata.file, "rope_factors_short.weight"),
            "long_factor": _numbers(metadata.file, "rope_factors_long.weight"),
            "original_max_position_embeddings": original or positions,
            "attention_factor": float(take("rope.scaling.attn_factor", float, 1.0)),
        }
    if kind == "yarn":
        for name in ("attn_factor", "yarn_ext_factor", "yarn_attn_factor"):
            metadata.fixed(f"rope.scaling.{name}", 1.0)
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original or config["max_position_embeddings"],
            "beta_fast": float(take("rope.scaling.yarn_beta_fast", float, 32.0)),
            "beta_slow": float(take("rope.scaling.yarn_beta_slow", float, 1.0)),
        }
    if kind not in ("none", "linear"):
        raise ConfigError(f"{metadata.file.name} has rope.scaling.type = {kind!r}, which edgeformer does not compute.")
    metadata.fixed("rope.scaling.attn_factor", 1.0)
    factors = _numbers(metadata.file, "rope_freqs.weight") if "rope_freqs.weight" in tensors else []
    if any(each != 1 for each in factors):
        return _of_factors(metadata, factors, factor if kind == "linear" else 1.0, config)
    return {"rope_type": "linear", "factor": factor} if kind == "linear" and factor != 1 else None


def _of_factors(metadata: Metadata, factors: list[float], factor: float, config: Config) -> Config:
    """Return the scaling of a table of factors, one for each frequency: that of Llama 3, whose numbers are not stored.

    LongRoPE has such tables; with one for all lengths and no factor of scores it is the same.
    """
    if factor != 1:
        raise ConfigError(f"{metadata.file.name} scales rotary embeddings twice: by {factor} and by rope_freqs.")
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": config["max_position_embeddings"],
        "attention_factor": 1.0,
    }


def _numbers(file: GgufFile, name: str) -> list[float]:
    """Return the numbers of a small tensor of float32."""
    tensor = file.tensors[name]
    count = math.prod(tensor.shape)
    if tensor.type.name != "F32" or count > 1 << 16:
        raise ConfigError(f"{file.name} holds {name} as {list(tensor.shape)} of {tensor.type.name}; it must be F32.")
    return list(struct.unpack_from(f"<{count}f", tensor.data, tensor.start))
