"""Small models of every form of cache: the family of transformers, sizes, and options of the export."""

TEXT = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 96, "bos_token_id": 1, "eos_token_id": 130,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip
KINDS = {
    "windows": ("gemma2", {"sliding_window": 8}, {}),
    "recurrent": ("qwen3_5_text", LINEAR, {}),
    "standard": ("qwen3", {}, {"ops": "standard", "cache": "static"}),
    "dynamic": ("qwen3", {}, {"ops": "standard", "cache": "dynamic"}),
}
T5 = {
    "vocab_size": 131, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "eos_token_id": 1,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "decoder_start_token_id": 0,
    "pad_token_id": 0,
}  # fmt: skip
