"""Write models of transformers as GGUF files, by what llama.cpp's converters do, and say what such a file means.

Names of tensors are those of the package `gguf`, which llama.cpp's own converters use. Nothing here comes from
edgeformer, whose reader is held to it.
"""

import re

import gguf
import numpy as np
import torch
import transformers

PAIRED = {"llama", "mistral", "mixtral", "granite", "granitemoe", "smollm3"}
"""model_types whose queries and keys llama.cpp rotates by pairs."""

ONE_MORE = {"gemma", "gemma2", "gemma3_text"}
"""model_types whose norms are stored as 1 + weight."""

ARCHITECTURES = {
    "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss",
    "cohere": "command-r", "mistral": "llama",
}  # fmt: skip
"""llama.cpp's names where they are others than transformers'."""

QUANTS = gguf.GGMLQuantizationType


def load(folder):
    """Return transformers' own module of a folder, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def write_folder(folder, path, kind="F32", **options):
    """Write the model of a folder; return the module that means what the file means."""
    return write(load(folder), path, kind, **options)


def write(model, path, kind="F32", *, fault=None, tokens=None, shards=1, more=None, embedding=None, seed=0):
    """Write a module, and load what its quantized weights mean into it.

    kind: of matrices whose rows its blocks divide; embedding: of the table of tokens, by default the same. fault: one
    of `unpaired` and `plain norms`, what a converter must not leave out. tokens: the function that adds a tokenizer.
    more: further metadata by key.
    """
    config, kind = model.config, QUANTS[kind]
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=0 if shards == 1 else 8)
    _write_config(writer, config, architecture, dict(model.named_parameters()))
    for key, value in (more or {}).items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    if tokens is not None:
        tokens(writer)
    if (factors := _factors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    names = gguf.get_tensor_name_map(_number(architecture), config.num_hidden_layers)
    random, state = np.random.default_rng(seed), model.state_dict()
    for name, tensor in list(state.items()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, values, place in _parts(name, tensor, config):
            module, _, last = part.rpartition(".")
            assert names.get_name(module), part
            theirs = f"{names.get_name(module)}.{last}"
            used = QUANTS[embedding] if embedding and name.endswith("embed_tokens.weight") else kind
            raw, used = _stored(values.numpy(), used, random)
            place.copy_(torch.from_numpy(np.array(gguf.dequantize(raw, used)).reshape(values.shape)))
            writer.add_tensor(theirs, _arranged(raw, part, config, fault), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict(state)
    return model


def _factors(config):
    """Return the factors of frequencies that a converter stores for Llama 3's scaling, None for another one."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "llama3":
        return None
    size, long = config.head_dim, rope["original_max_position_embeddings"]
    lengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, size, 2) / size)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (long / lengths - low) / (high - low)
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    slow = np.where(lengths > long / low, rope["factor"], between)
    return np.where(lengths < long / high, 1, slow).astype(np.float32)


def _number(architecture):
    return next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def _parts(name, tensor, config):
    """Yield what a converter makes of a tensor: a name, numbers, and where they are in the tensor."""
    if config.model_type == "gpt_oss" and "experts." in name:
        bias, base = name.endswith("_bias"), name.partition("experts.")[0] + "experts"
        last = "bias" if bias else "weight"
        if "gate_up" in name:
            for index, each in enumerate(("gate_proj", "up_proj")):
                place = tensor[..., index::2] if bias else tensor[..., index::2].mT
                yield f"{base}.{each}.{last}", place.contiguous(), place
        else:
            place = tensor if bias else tensor.mT
            yield f"{base}.down_proj.{last}", place.contiguous(), place
    elif name.endswith(("experts.gate_up_proj", "block_sparse_moe.input_linear.weight")):
        half = tensor.shape[1] // 2
        base = name.removesuffix(".gate_up_proj")
        for index, each in enumerate(("gate_proj", "up_proj")):
            place = tensor[:, index * half : (index + 1) * half]
            full = f"{base}.{each}.weight"
            if config.model_type in ("mixtral", "granitemoe"):
                layer = re.search(r"layers\.(\d+)", name)[1]
                full = f"layers.{layer}.feed_forward.experts.{'w1' if index == 0 else 'w3'}.weight"
            yield full, place.contiguous(), place
    elif name.endswith("experts.down_proj"):
        full = f"{name}.weight"
        if config.model_type in ("mixtral", "granitemoe"):
            full = f"layers.{re.search(r'layers.(.+?)[.]', name)[1]}.feed_forward.experts.w2.weight"
        yield full, tensor.contiguous(), tensor
    elif config.model_type == "granitemoe" and "block_sparse_moe.router" in name:
        yield name.replace("router.weight", "router.layer.weight"), tensor, tensor
    elif config.model_type == "mixtral" and name.endswith("mlp.gate.weight"):
        yield name.replace("mlp.gate", "block_sparse_moe.gate"), tensor, tensor
    elif name.endswith("sinks"):
        yield f"{name}.weight", tensor, tensor
    elif name.endswith("shared_expert_gate.weight"):
        yield name, tensor[0], tensor[0]
    elif "conv.conv" in name:
        yield name, tensor.squeeze(1).contiguous(), tensor.squeeze(1)
    else:
        yield name, tensor, tensor


def _stored(values, kind, random):
    """Return the bytes of numbers and their type: random blocks where the package only reads the type."""
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if values.ndim < 2 or values.shape[-1] % block:
        kind = QUANTS.F32
    if kind in (QUANTS.F32, QUANTS.F16):
        return values.astype(np.float32 if kind == QUANTS.F32 else np.float16), kind
    try:
        return gguf.quantize(values, kind), kind
    except NotImplementedError:
        return _random_blocks(values.shape, kind, random), kind


SCALES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ3_XXS": (0,), "IQ1_S": (0,), "IQ3_S": (0,), "IQ2_S": (0,),
}  # fmt: skip
"""Bytes at which a block has its float16 scales."""


def _random_blocks(shape, kind, random):
    """Return random blocks, with scales that make weights of about the size that a matrix has."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = random.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    if kind == QUANTS.IQ1_M:  # whose scale is spread over the high bits of four numbers
        rows[..., 48:56] = np.array([0x0249, 0x0249, 0x0249, 0x1249], "<u2").view(np.uint8)
    for place in SCALES.get(kind.name, ()):
        rows[..., place : place + 2] = np.float16(1).reshape(1).view(np.uint8)
    spread = np.abs(gguf.dequantize(rows.reshape(*shape[:-1], -1), kind)).mean()
    for place in SCALES.get(kind.name, ()):
        scale = np.float16(0.3 / spread / np.sqrt(shape[-1])).reshape(1)
        rows[..., place : place + 2] = scale.view(np.uint8)
    return rows.reshape(*shape[:-1], -1)


def _arranged(raw, name, config, fault):
    """Return the bytes of a tensor as a converter stores them."""
    if config.model_type in PAIRED and fault != "unpaired":
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for module, count in heads.items():
            if module in name:
                return raw.reshape(count, 2, -1, *raw.shape[1:]).swapaxes(1, 2).reshape(raw.shape)
    if config.model_type in ONE_MORE and name.endswith("norm.weight") and fault != "plain norms":
        return raw + np.float32(1)
    return raw


def _write_config(writer, config, architecture, parameters):
    """Add the metadata that llama.cpp's converters write."""
    heads, rope = config.num_attention_heads, getattr(config, "rope_parameters", None) or {}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    width = parameters.get("model.layers.0.feed_forward.w1.weight")
    writer.add_feed_forward_length(config.intermediate_size if width is None else len(width))
    writer.add_head_count(heads)
    writer.add_vocab_size(config.vocab_size)
    kv_heads = config.num_key_value_heads
    if config.model_type == "lfm2":
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in config.layer_types]
        writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_head_count_kv(kv_heads)
    base = rope.get("full_attention", rope)
    writer.add_rope_freq_base(base.get("rope_theta", 10000.0))
    if base.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(base["rope_type"]))
        writer.add_rope_scaling_factor(base["factor"])
    if base.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(base["original_max_position_embeddings"])
    if config.model_type in ("cohere", "cohere2", "starcoder2"):
        writer.add_layer_norm_eps(config.norm_epsilon if architecture == "starcoder2" else config.layer_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.norm_eps if architecture == "lfm2" else config.rms_norm_eps)
    rotated = int(head_dim * base.get("partial_rotary_factor", 1.0))
    if getattr(config, "head_dim", None):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture in ("llama", "phi3", "granite", "granitemoe", "smollm3", "cohere2"):
        writer.add_rope_dimension_count(rotated)
    if getattr(config, "sliding_window", None) and architecture in ("gemma2", "gemma3", "gpt-oss", "cohere2", "phi3"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "phi3" and base.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if architecture.startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if architecture in ("command-r", "cohere2"):
        writer.add_logit_scale(config.logit_scale)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture in ("qwen2moe", "qwen3moe", "gpt-oss"):
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_file_type(0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
