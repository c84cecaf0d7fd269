"""Encode texts and pairs for an encoder, and run them in batches."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import EncoderConfig, PoolingHead
from edgeformer.config.heads import Gives, Head
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.caches.encoder_outputs import check_length, pad_right
from edgeformer.runtime.request_values import count, flag, naming_entry, text_or_ids
from edgeformer.runtime.sessions.session import SessionSettings, check_tensors
from edgeformer.runtime.tasks.model import Model, Text, is_batch, output_names
from edgeformer.runtime.text.text_prompts import choose_prompt

Pair = tuple[str, str]
"""Two texts that are encoded together: a question and its paragraph, a premise and a hypothesis."""

Encoded = tuple[list[int], list[int]]
"""Token ids and token types (0 or 1) of a text or a pair."""

BATCH = 32
"""Texts per run, unless the call says otherwise."""

BATCH_TOKENS = 16_384
"""Tokens per run, padding included: 32 texts of 512. Memory grows with them, and beyond 1,024 speed no longer does
(tiny-embed, one core of an AMD Zen 4). A longer text runs alone.
"""


class PromptedText(str):
    """A text with a prompt before it. skipped: tokens of the prompt that are read and not pooled."""

    skipped: int

    def __new__(cls, text: str, skipped: int) -> "PromptedText":
        """Return the text."""
        prompted = super().__new__(cls, text)
        prompted.skipped = skipped
        return prompted


class TextEncoder(Model):
    """The base class of encoders of texts: it encodes texts, and runs them in batches of similar lengths."""

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        super().__init__(folder, manifest, settings)
        outputs = ["last_hidden_state", *(output.name for output in self.config.head_outputs)]
        check_tensors(self.session, manifest.step_graphs[-1], ["input_ids", "attention_mask"], outputs)

    @property
    def gives(self) -> list[Gives]:
        """All that the model says of a text, beside the states of its tokens."""
        return list(dict.fromkeys(output.gives for output in self.config.head_outputs))

    @property
    def config(self) -> EncoderConfig:
        """The config of the model."""
        config = self.manifest.model
        assert isinstance(config, EncoderConfig)
        return config

    def run(self, texts: Sequence[Text | Pair], outputs: Sequence[str] | None = None) -> dict[str, NDArray[np.float32]]:
        """Run texts as one batch, padded on the right; return the graph's outputs by name.

        texts: texts, token ids, or pairs of texts. outputs: names of the outputs to return, None for all.
        last_hidden_state is float32 [B, longest, E]; its values at padding mean nothing. Raises RequestError for an
        unknown output and for texts beyond the model's context.
        """
        if not self.is_list(texts):
            raise RequestError("run takes a list of texts. Give it one, of at least one text.")
        return self.run_encoded([self.encode_text(text) for text in texts], outputs)

    def run_encoded(
        self, encoded: Sequence[Encoded], outputs: Sequence[str] | None, attended: Sequence[int] | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Run texts as one batch. attended: the tokens of each that attention sees, None for all."""
        names = output_names(self.session, outputs)
        ids, mask = pad_right([ids for ids, _ in encoded], self.manifest.tokens.pad or 0)
        for row, length in enumerate(attended or ()):
            mask[row, length:] = 0
        feeds = {"input_ids": ids, "attention_mask": mask}
        if self.config.token_types > 1:
            feeds["token_type_ids"] = pad_right([types for _, types in encoded], 0)[0]
        return dict(zip(names, self.session.run(names, feeds), strict=True))

    def with_prompt(self, texts: Any, prompt: str | None = None, prompt_name: str | None = None) -> Any:
        """Return texts with a prompt before each of them, as sentence-transformers embeds them.

        prompt: that text. prompt_name: the name of one of the model's own prompts. Neither: the model's default prompt,
        if it has one; pairs and token ids stay as they are then. Raises RequestError for an unknown name, for both at
        once, and for a prompt before anything but a text.
        """
        chosen = choose_prompt(self.manifest.prompts, prompt, prompt_name)
        if not chosen:
            return texts
        given = list(texts) if self.is_list(texts) else [texts]
        requested = prompt is not None or prompt_name is not None
        if requested and not all(isinstance(text, str) for text in given):
            raise RequestError("a prompt goes before texts, and not before pairs or token ids.")
        skipped = self._skipped(chosen)
        prompted = [PromptedText(f"{chosen}{text}", skipped) if isinstance(text, str) else text for text in given]
        return prompted if self.is_list(texts) else prompted[0]

    def _skipped(self, prompt: str) -> int:
        """Return how many tokens of a prompt the model reads and does not pool.

        They are those that the prompt has by itself, without a special token at its end, as in sentence-transformers.
        """
        head = self.config.head
        if not isinstance(head, PoolingHead) or not head.skips_prompt:
            return 0
        tokenizer = self.require_tokenizer()
        ids = tokenizer.encode(prompt)
        return len(ids) - (ids[-1:] != [] and ids[-1] in tokenizer.special_tokens)

    def part(self, gives: Gives) -> Head | None:
        """Return the head that gives something; None without one."""
        parts = () if self.config.head is None else self.config.head.parts
        return next((part for part in parts if any(output.gives == gives for output in part.outputs)), None)

    def encode_text(self, text: Text | Pair, truncate: bool = False, max_length: int | None = None) -> Encoded:
        """Return the token ids and types of a text or a pair, as `embed` runs it. Raises RequestError as it does.

        max_length: tokens to cut to, by default all that the model has positions for.
        """
        if is_pair(text):
            for part in text:
                text_or_ids("text", part)
        if truncate and (isinstance(text, str) or is_pair(text)):
            parts = [text_or_ids("text", text)] if isinstance(text, str) else text
            ids, types = self.require_tokenizer().encode_truncated(parts, max_length or self.config.context_length)
            self.encode(ids, "text")
        elif is_pair(text):
            ids, types = self.require_tokenizer().encode_pair(*text)
        else:
            ids = self.encode(text, "text")  # type: ignore[arg-type]
            types = [0] * len(ids)
        check_length(len(ids), self.config.context_length, "the text")
        if isinstance(text, PromptedText):
            ids = [-1 - id for id in ids[: text.skipped]] + ids[text.skipped :]
        return ids, types

    @staticmethod
    def is_list(texts: Text | Pair | Sequence[Text | Pair]) -> TypeGuard[Sequence[Text | Pair]]:
        """Return whether the argument is several texts, and not one text or a pair."""
        return is_batch(texts) and not is_pair(texts)

    def by_length(
        self,
        texts: Any,
        batch_size: int,
        run: Callable[[list[Encoded]], Any],
        truncate: bool = False,
        max_length: int | None = None,
    ) -> Any:
        """Run texts in batches of similar lengths, so that little is padded; return results in the order of texts."""
        count("batch_size", batch_size)
        flag("truncate", truncate)
        if not self.is_list(texts):
            return run([self.encode_text(texts, truncate, max_length)])[0]
        encoded = []
        for row, text in enumerate(texts):
            with naming_entry("text", row, text, of=len(texts)):
                encoded.append(self.encode_text(text, truncate, max_length))
        order = sorted(range(len(encoded)), key=lambda index: len(encoded[index][0]))
        results: list[Any] = [None] * len(encoded)
        for places in batches([len(encoded[index][0]) for index in order], batch_size):
            batch = [order[place] for place in places]
            for index, result in zip(batch, run([encoded[index] for index in batch]), strict=True):
                results[index] = result
        return np.stack(results) if len({np.shape(result) for result in results}) == 1 else results


def is_pair(text: Any) -> bool:
    """Return whether an argument is two texts that are encoded together."""
    return isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)


def batches(lengths: Sequence[int], most_rows: int) -> Iterator[range]:
    """Yield the places of adjacent texts that run together, of BATCH_TOKENS with their padding at most."""
    start = longest = 0
    for place, length in enumerate(lengths):
        longest = max(longest, length)
        if place > start and (place - start == most_rows or (place + 1 - start) * longest > BATCH_TOKENS):
            yield range(start, place)
            start, longest = place, length
    if start < len(lengths):
        yield range(start, len(lengths))
