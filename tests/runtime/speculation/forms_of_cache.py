"""Models of every form of cache (family of transformers, sizes, options of the export), and drafts of given lengths."""

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


class Lengths:
    """Drafts of given lengths in turn, whatever they cost."""

    def __init__(self, lengths):
        self._lengths, self._asked = lengths, 0

    def choose(self, pending=0):
        self._asked += 1
        return self._lengths[self._asked % len(self._lengths)]

    def record_run(self, seconds, tokens, drafted):
        """Forget it."""

    def record_drafts(self, right, wrong):
        """Forget it."""
