"""Models of every form of cache (family of transformers, sizes, options of the export), and drafts of given lengths."""

from small_models import LINEAR, TEXT

VOCABULARY = TEXT["vocab_size"]
CONTEXT = TEXT["max_position_embeddings"]
WINDOW = 8
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
