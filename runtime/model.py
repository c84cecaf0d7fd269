"""What every model of a bundle has: its manifest, its sessions' provider, its tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeformer.errors import RequestError
from edgeformer.manifest import Manifest
from edgeformer.runtime.prepacked import open_graph
from edgeformer.runtime.session import ProviderChoice, choose_provider
from edgeformer.runtime.tokenizer import Tokenizer

Text = str | Sequence[int]
"""A text, or its token ids."""


class Model:
    """A model from a bundle. Made by `load`; not safe for concurrent use of one instance."""

    def __init__(self, folder: Path, manifest: Manifest, provider: ProviderChoice, threads: int | None):
        self.folder = folder
        self.manifest = manifest
        self.provider = choose_provider(provider, manifest)
        self.session: Any = open_graph(folder, manifest, manifest.graphs[-1], self.provider, threads)
        self.tokenizer = Tokenizer(folder) if "tokenizer.json" in manifest.files else None

    def encode(self, text: Text, what: str = "prompt", vocab_size: int | None = None) -> list[int]:
        """Token ids of a text, or given ones, checked against the vocabulary (the model's, by default)."""
        tokens = self.require_tokenizer().encode(text) if isinstance(text, str) else [int(id) for id in text]
        vocab_size = vocab_size or self.manifest.vocab_size
        if not tokens:
            raise RequestError(f"the {what} is empty; give at least one token.")
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            raise RequestError(f"the {what} has token ids outside 0 to {vocab_size - 1}, the model's vocabulary.")
        return tokens

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises RequestError where the bundle has none."""
        if self.tokenizer is None:
            raise RequestError(
                f"{self.folder} has no tokenizer.json, so it takes token ids, not text. To use text, put the model's "
                "tokenizer.json beside its config.json and export again."
            )
        return self.tokenizer


def is_batch(texts: Any) -> bool:
    """Whether something is a list of texts (or of their token ids) and not one text."""
    return not isinstance(texts, str) and len(texts) > 0 and not isinstance(texts[0], int | np.integer)
