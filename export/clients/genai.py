"""genai_config.json, with which onnxruntime-genai loads the same folder.

Source: tested with onnxruntime-genai 0.18, which takes unknown keys as errors. `type: decoder` stands for any
decoder-only graph; tensor names are its defaults.
"""

from typing import Any

from edgeformer.manifest import Manifest

# Clients allocate their cache for max_length; a user raises it up to context_length.
MAX_LENGTH = 4096


def genai_config(manifest: Manifest) -> dict[str, Any]:
    """Build the content of genai_config.json."""
    model, tokens = manifest.model, manifest.tokens
    attention = model.blocks[0].attention
    ids: dict[str, Any] = {"eos_token_id": list(tokens.eos)} if tokens.eos else {}
    if tokens.bos is not None:
        ids["bos_token_id"] = tokens.bos
    # It insists on a padding token; the end of text never collides with padding on the right.
    ids["pad_token_id"] = tokens.pad if tokens.pad is not None else (tokens.eos or (0,))[0]
    provider_options = [{"cuda": {"use_tf32": "0"}}] if manifest.provider == "cuda" else []
    return {
        "model": {
            "type": "decoder",
            "context_length": model.context_length,
            "vocab_size": model.vocab_size,
            **ids,
            "decoder": {
                "filename": manifest.graph,
                "head_size": attention.head_dim,
                "hidden_size": model.hidden_size,
                "num_attention_heads": attention.num_heads,
                "num_key_value_heads": attention.num_kv_heads,
                "num_hidden_layers": len(model.blocks),
                "session_options": {"provider_options": provider_options},
            },
        },
        "search": {
            "do_sample": False,
            "max_length": min(model.context_length, MAX_LENGTH),
            "past_present_share_buffer": True,
        },
    }
