"""Structured output: only tokens that a JSON schema, a regular expression or a grammar allows may come.

The package llguidance, of the extra `structured`, keeps the state of the grammar and finds the tokens that may follow.
It does so in a thread of its own while the graph runs: what may follow a token is known as soon as the token is chosen,
and is needed only when the logits after it are there.

    token t is chosen ──┬── the graph runs token t ────────────────┬── choose token t + 1 among the allowed ones
                        └── llguidance finds what may follow t ────┘
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError, require
from edgeformer.manifest.manifest import Manifest
from edgeformer.options.generation import StructuredOutputOptions
from edgeformer.runtime.text.tokenizer import Tokenizer

WHITESPACE = r" |\n[ \t]{0,20}"
"""Whitespace between the parts of a JSON text: enough for pretty printing, but bounded, because models fall into
whitespace without end. llama.cpp bounds it alike."""


class StructuredOutput(StructuredOutputOptions):
    """The options of structured output, of which at most one is set; `json_schema` is JSON."""

    @property
    def _given(self) -> list[str]:
        return [name for name in ("json_schema", "regex", "grammar") if getattr(self, name) is not None]

    def constraint(self, tokenizer: Tokenizer | None, manifest: Manifest) -> "Constraint | None":
        """Return the constraint of one row; None without an option.

        Raises RequestError for a schema, an expression or a grammar that llguidance does not take, and for a model
        without a tokenizer; MissingDependencyError if llguidance is not installed.
        """
        if not self._given:
            return None
        (name,) = self._given
        if tokenizer is None:
            raise RequestError(f"{name} needs a tokenizer, and this bundle has none.", field=name)
        llguidance = require("llguidance", "structured")
        matcher = llguidance.LLMatcher(_grammar_tokenizer(tokenizer, manifest), self._grammar(), log_level=0)
        if matcher.is_error():
            raise RequestError(f"{name} cannot be followed: {matcher.get_error().strip()}", field=name)
        return Constraint(matcher, manifest.vocab_size)

    def _grammar(self) -> str:
        """Return the option as a grammar of llguidance."""
        matcher = require("llguidance", "structured").LLMatcher
        if self.json_schema is not None:
            grammar: str = matcher.grammar_from_json_schema(
                self.json_schema, defaults={"whitespace_pattern": WHITESPACE}
            )
        elif self.regex is not None:
            grammar = matcher.grammar_from_regex(self.regex)
        else:
            grammar = matcher.grammar_from_lark(self.grammar)
        return grammar


OVERLAP_FROM = 16_384
"""Tokens of a vocabulary from which the search has a thread of its own. For 2,048 tokens it takes 10 µs, less than the
17 µs to hand it to a thread; for 128,000 it takes 60 µs, and 1 ms in complicated grammars (medians on a Xeon)."""


class Constraint:
    """The state of the grammar of one row, after the tokens that were accepted so far.

    finished: whether the text is complete and nothing can follow. forced: tokens of the text that must follow, as the
    tokenizer writes it; other tokens may spell it, too.
    """

    def __init__(self, matcher: Any, vocab_size: int):
        self._matcher = matcher
        self._vocab_size = vocab_size
        bits = np.zeros(-(-vocab_size // 32), np.uint32)
        self._bits, self._address = bits.view(np.uint8), bits.ctypes.data
        self.finished = False
        self._search()

    def allowed(self) -> NDArray[np.int64]:
        """Return the ids of the tokens that may come next: int64 [N], at least one.

        Raises RequestError where none can follow.
        """
        ids = self._next.result() if isinstance(self._next, Future) else self._next
        if not len(ids):
            reason = self._matcher.get_error().strip() or "the vocabulary cannot spell what must follow"
            raise RequestError(f"no token can follow in the structured output: {reason}.")
        return ids

    def accept(self, token: int) -> None:
        """Go on behind a token, which must be an allowed one."""
        if not self._matcher.consume_token(token):
            raise RequestError(f"the structured output cannot go on: {self._matcher.get_error().strip()}.")
        self.finished = self._matcher.is_stopped()
        if not self.finished:
            self._search()

    def _search(self) -> None:
        """Start to look for the tokens that may come next."""
        self.forced: list[int] = self._matcher.compute_ff_tokens()
        overlaps = self._vocab_size >= OVERLAP_FROM
        self._next = _worker().submit(self._find_allowed) if overlaps else self._find_allowed()

    def _find_allowed(self) -> NDArray[np.int64]:
        self._matcher.unsafe_compute_mask_ptr(self._address, self._bits.nbytes)
        allowed = np.unpackbits(self._bits, count=self._vocab_size, bitorder="little")
        return allowed.view(np.bool_).nonzero()[0]  # much faster than of integers


@cache
def _worker() -> ThreadPoolExecutor:
    """Return the thread that finds allowed tokens, of all rows in turn: one, since the graph needs the other cores."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeformer-grammar")


_TOKENIZERS: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()
"""llguidance's own form of the tokenizers in use, which takes up to a second to make."""


def _grammar_tokenizer(tokenizer: Tokenizer, manifest: Manifest) -> Any:
    """Return llguidance's tokenizer for a tokenizer and the end tokens of its model."""
    if tokenizer not in _TOKENIZERS:
        size = tokenizer.backend.get_vocab_size(with_added_tokens=True)
        _TOKENIZERS[tokenizer] = require("llguidance", "structured").LLTokenizer(
            tokenizer.backend.to_str(),
            n_vocab=-(-max(manifest.vocab_size, size) // 32) * 32,
            eos_token=list(manifest.tokens.eos) or None,
        )
    return _TOKENIZERS[tokenizer]
