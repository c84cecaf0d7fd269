"""`load` a bundle and generate with it."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest import Manifest
from edgeformer.runtime.decoder import StaticDecoder
from edgeformer.runtime.generate import Generation, Row, run_rows
from edgeformer.runtime.sampling import Sampling
from edgeformer.runtime.session import ProviderChoice, choose_provider, open_session
from edgeformer.runtime.streaming import TextStream
from edgeformer.runtime.tokenizer import Message, Tokenizer

DEFAULT_NEW_TOKENS = 256

Prompt = str | Sequence[int]
"""A text, or its token ids."""


def load(path: str | Path, provider: ProviderChoice = "auto", threads: int | None = None) -> "CausalLM":
    """Open a bundle folder.

    provider: `auto` takes CUDA where onnxruntime has it and the bundle runs on it, else the CPU. threads: None for all
    usable cores. Raises BundleError for a damaged folder (sizes are checked; `edgeformer verify` checks contents) and
    RequestError for a provider that cannot be had.
    """
    folder = Path(path)
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    if manifest.parity is not None and not manifest.certifies(folder):
        warnings.warn(
            f"the graph in {folder} is not the one that its parity certificate speaks of; it was changed after the "
            "export. Check it with: edgeformer verify",
            stacklevel=2,
        )
    return CausalLM(folder, manifest, provider, threads)


class CausalLM:
    """A decoder-only language model from a bundle. Made by `load`; not safe for concurrent use of one instance."""

    def __init__(self, folder: Path, manifest: Manifest, provider: ProviderChoice, threads: int | None):
        self.folder = folder
        self.manifest = manifest
        self.provider = choose_provider(provider, manifest)
        self.session: Any = open_session(folder / manifest.graphs[-1], self.provider, threads)
        self.tokenizer = Tokenizer(folder) if "tokenizer.json" in manifest.files else None

    def new_decoder(self, batch_size: int, capacity: int) -> StaticDecoder:
        """Allocate a static cache for `batch_size` rows of `capacity` tokens, to feed by hand."""
        return StaticDecoder(self.session, self.manifest, batch_size, capacity, self.provider)

    def forward(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after every token of one text: float32 [S, V]."""
        tokens = self._encode(token_ids)
        return self.new_decoder(1, len(tokens)).prefill_all(0, tokens)

    @overload
    def generate(self, prompt: Prompt, **options: Any) -> Generation: ...

    @overload
    def generate(self, prompt: Sequence[str] | Sequence[Sequence[int]], **options: Any) -> list[Generation]: ...

    def generate(
        self,
        prompt: Any,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        **sampling: Any,
    ) -> Any:
        """Continue one prompt, or a batch of prompts of any lengths.

        prompt: a text, token ids, or a list of either. max_new_tokens: by default 256, or what the context leaves.
        stop: texts that end the generation and are not part of it. Other keywords: the fields of `Sampling` (greedy by
        default); with a seed, each row draws as it would alone.
        """
        if _is_batch(prompt):
            rows, decoder = self._prepare(prompt, max_new_tokens, stop, Sampling(**sampling))
            for _ in run_rows(decoder, rows):
                pass
            return [row.result() for row in rows]
        return self.stream(prompt, max_new_tokens=max_new_tokens, stop=stop, **sampling).finish()

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        **sampling: Any,
    ) -> "GenerationStream":
        """Continue one prompt; iterate over the result for pieces of text as they come. Options as for `generate`."""
        rows, decoder = self._prepare([prompt], max_new_tokens, stop, Sampling(**sampling))
        return GenerationStream(rows[0], decoder)

    def chat(self, messages: Sequence[Message], **options: Any) -> "GenerationStream":
        """Answer a conversation: dicts with `role` and `content`. Options as for `generate`."""
        return self.stream(self._require_tokenizer().encode_chat(messages), **options)

    def _prepare(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int | None,
        stop: str | Sequence[str],
        sampling: Sampling,
    ) -> tuple[list[Row], StaticDecoder]:
        stop = [stop] if isinstance(stop, str) else list(stop)
        if stop:
            self._require_tokenizer()
        if max_new_tokens is not None and max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
        eos = frozenset(self.manifest.tokens.eos)
        rows = []
        for prompt in prompts:
            tokens = self._encode(prompt)
            room = self.manifest.context_length - len(tokens)
            new = min(DEFAULT_NEW_TOKENS, room) if max_new_tokens is None else max_new_tokens
            if new > room or new < 1:
                raise RequestError(
                    f"the prompt has {len(tokens)} tokens and {max(new, 1)} more are to come, but the model's context "
                    f"is {self.manifest.context_length} tokens. Shorten the prompt or lower max_new_tokens."
                )
            stream = TextStream(self.tokenizer, stop) if self.tokenizer else None
            rows.append(Row(tokens, new, eos, sampling, stream))
        if not rows:
            raise RequestError("there is no prompt in the batch; give at least one.")
        capacity = max(len(row.prompt) + row.max_new_tokens for row in rows)
        return rows, self.new_decoder(len(rows), capacity)

    def _encode(self, prompt: Prompt) -> list[int]:
        tokens = self._require_tokenizer().encode(prompt) if isinstance(prompt, str) else [int(id) for id in prompt]
        vocab_size = self.manifest.vocab_size
        if not tokens:
            raise RequestError("the prompt is empty; give at least one token.")
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            raise RequestError(f"the prompt has token ids outside 0 to {vocab_size - 1}, the model's vocabulary.")
        return tokens

    def _require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"{self.folder} has no tokenizer.json, so it takes token ids, not text. To use text, put the model's "
                "tokenizer.json beside its config.json and export again."
            )
        return self.tokenizer


class GenerationStream(Iterator[str]):
    """Pieces of text as they are generated; `finish` runs to the end and returns the `Generation`."""

    def __init__(self, row: Row, decoder: StaticDecoder):
        self._row = row
        self._pieces = (piece for _, piece in run_rows(decoder, [row]) if piece)

    def __next__(self) -> str:
        return next(self._pieces)

    def finish(self) -> Generation:
        """Generate what is left; return the whole."""
        for _ in self._pieces:
            pass
        return self._row.result()


def _is_batch(prompt: Any) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], int | np.integer)
