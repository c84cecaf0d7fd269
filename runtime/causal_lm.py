"""Generate with a decoder-only language model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest import Manifest
from edgeformer.runtime.decoder import Decoder, PrefillSession, new_decoder
from edgeformer.runtime.generate import DEFAULT_NEW_TOKENS, Generation, GenerationStream, Row, run_rows
from edgeformer.runtime.model import Model, Text, is_batch
from edgeformer.runtime.prepacked import open_graph
from edgeformer.runtime.sampling import Sampling
from edgeformer.runtime.session import ProviderChoice
from edgeformer.runtime.streaming import TextStream
from edgeformer.runtime.tokenizer import Message


class CausalLM(Model):
    """A decoder-only language model.

    Prompts, and steps of many rows, are run over the bundle's view for prompts where it has one.
    """

    def __init__(self, folder: Path, manifest: Manifest, provider: ProviderChoice, threads: int | None):
        super().__init__(folder, manifest, provider, threads)
        self._view: PrefillSession | None = None
        if manifest.prefill is not None and self.provider == "cpu":
            session = open_graph(folder, manifest, manifest.prefill.graph, self.provider, threads)
            self._view = PrefillSession(session, manifest.prefill.from_tokens)

    def new_decoder(self, batch_size: int, capacity: int) -> Decoder:
        """Make an empty cache for `batch_size` rows of up to `capacity` tokens, to feed by hand."""
        return new_decoder(self.session, self.manifest, batch_size, capacity, self.provider, view=self._view)

    def forward(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after every token of one text: float32 [S, V]."""
        tokens = self.encode(token_ids)
        return self.new_decoder(1, len(tokens)).prefill_all(0, tokens)

    @overload
    def generate(self, prompt: Text, **options: Any) -> Generation: ...

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
        if is_batch(prompt):
            rows, decoder = self._prepare(prompt, max_new_tokens, stop, Sampling(**sampling))
            for _ in run_rows(decoder, rows):
                pass
            return [row.result() for row in rows]
        return self.stream(prompt, max_new_tokens=max_new_tokens, stop=stop, **sampling).finish()

    def stream(
        self,
        prompt: Text,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        **sampling: Any,
    ) -> GenerationStream:
        """Continue one prompt; iterate over the result for pieces of text as they come. Options as for `generate`."""
        rows, decoder = self._prepare([prompt], max_new_tokens, stop, Sampling(**sampling))
        return GenerationStream(rows[0], decoder)

    def chat(self, messages: Sequence[Message], **options: Any) -> GenerationStream:
        """Answer a conversation: dicts with `role` and `content`. Options as for `generate`."""
        return self.stream(self.require_tokenizer().encode_chat(messages), **options)

    def _prepare(
        self,
        prompts: Sequence[Text],
        max_new_tokens: int | None,
        stop: str | Sequence[str],
        sampling: Sampling,
    ) -> tuple[list[Row], Decoder]:
        stop = [stop] if isinstance(stop, str) else list(stop)
        if stop:
            self.require_tokenizer()
        if max_new_tokens is not None and max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
        eos = frozenset(self.manifest.tokens.eos)
        rows = []
        for prompt in prompts:
            tokens = self.encode(prompt)
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
