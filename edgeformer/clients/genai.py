"""genai_config.json, with which onnxruntime-genai loads the same folder.

Source: tested with onnxruntime-genai 0.18, which refuses unknown keys. `type: decoder` stands for any
decoder-only graph; the names of the tensors are its defaults.
"""

from typing import Any

from edgeformer.config import DecoderConfig
from edgeformer.manifest import Manifest

MAX_LENGTH = 4096
"""Tokens that onnxruntime-genai allocates its cache for; a user may raise it up to context_length."""


def genai_config(manifest: Manifest) -> dict[str, Any]:
    """Return the content of genai_config.json."""
    model, tokens, cache = manifest.model, manifest.tokens, manifest.cache
    ids: dict[str, Any] = {"eos_token_id": list(tokens.eos)} if tokens.eos else {}
    if tokens.bos is not None:
        ids["bos_token_id"] = tokens.bos
    # onnxruntime-genai requires a padding token. The end of text serves: padding is on the right, behind it.
    ids["pad_token_id"] = tokens.pad if tokens.pad is not None else (tokens.eos or (0,))[0]
    # onnxruntime-genai does not use these widths for such a graph, and a module that is not ours does not tell them.
    widths = (
        {}
        if not isinstance(model, DecoderConfig)
        else {"hidden_size": model.hidden_size, "num_attention_heads": model.attentions[0].num_heads}
    )
    kept = cache.key_value
    assert kept is not None, "other caches have no genai_config.json"
    provider_options = [{"cuda": {"use_tf32": "0"}}] if manifest.provider == "cuda" else []
    return {
        "model": {
            "type": "decoder",
            "context_length": manifest.context_length,
            "vocab_size": manifest.vocab_size,
            **ids,
            "decoder": {
                "filename": manifest.graph,
                "head_size": kept.head_dim,
                "num_key_value_heads": kept.num_kv_heads,
                "num_hidden_layers": cache.num_layers,
                **widths,
                "session_options": {"provider_options": provider_options},
            },
        },
        "search": {
            "do_sample": False,
            "max_length": min(manifest.context_length, MAX_LENGTH),
            "past_present_share_buffer": manifest.cache_form != "dynamic",
        },
    }
