"""Models of every form of cache: family of transformers, sizes, and options of the export."""

VOCABULARY = 131
CONTEXT = 96
WINDOW = 8
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": CONTEXT,
    "bos_token_id": 1, "eos_token_id": 130,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip
KINDS = {
    "static": ("llama", {}, {}),
    "windows": ("gemma2", {"sliding_window": WINDOW}, {}),
    "recurrent": ("qwen3_5_text", LINEAR, {}),
    "dynamic": ("llama", {}, {"ops": "portable", "cache": "dynamic"}),
    "standard": ("llama", {}, {"ops": "standard", "cache": "static"}),
}
