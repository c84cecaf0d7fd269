"""The length of a text that a tokenizer's files allow."""

from collections.abc import Mapping
from typing import Any

NO_LIMIT = 10**9
"""Numbers of this size and more stand for no limit of tokens; transformers writes 10³⁰."""


def token_limit(tokenizer_config: Mapping[str, Any]) -> int | None:
    """Return `model_max_length` of a tokenizer_config.json; None where it sets no limit."""
    limit = tokenizer_config.get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 1 <= limit < NO_LIMIT else None
