"""The trial of the graphs with which a decoder reads pictures: the tower, embeddings of tokens, and the decoder behind.

    pixels ──→ vision_encoder ──→ states ──┐
    tokens ──→ embed_tokens ──→ embeddings ┴→ embedding_decoder ──→ logits

The last graph is fed what the first two computed, as clients do, and is held to PyTorch over the pixels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgeformer.config import PictureTextConfig
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup, Trial, row_of
from edgeformer.export.reference.reference import Reference
from edgeformer.runtime.steps.picture_rows import PictureGraphs, PictureRows
from edgeformer.runtime.steps.picture_tower import PromptPicture
from edgeformer.runtime.steps.runner import StepRunner

PICTURES = 3
"""Pictures of the text: two side by side in front of it, and one behind it."""
MORE_PICTURES = 5
"""Further pictures that the tower reads, since eager's error of a few vectors is a matter of chance."""
TOKENS = 24
"""Tokens of text between the pictures."""
ANSWER = 8
"""Tokens of an answer behind a prompt that attends both ways."""
LONGEST_WINDOW = 2048
"""Tokens of a window that a text of pictures goes beyond; to go beyond longer ones would take minutes."""


@dataclass(frozen=True)
class _Text:
    """A text with pictures.

    Attributes:
        ids: of its tokens, with the placeholder for each state.
        prompt: how many of them are the prompt; an answer follows where this attends both ways as a whole.
        blocks: the number of the block that each is in, of tokens that attend both ways; −1 for none.
    """

    ids: Array
    prompt: int
    blocks: Array


class PictureTextTrial(Trial):
    """The trial of the three graphs beside the decode graph, which reads the chunks of a text that have no picture."""

    def __init__(self, setup: Setup, model: Any, decoder: Any, vision: Any, embed: Any):
        """decoder, vision, embed: sessions of the graph that reads embeddings, of the tower, of embeddings."""
        super().__init__(setup, [model])
        config, placeholder = setup.manifest.model, setup.manifest.placeholder
        assert isinstance(config, PictureTextConfig) and placeholder is not None
        self._config, self._token, self._whole = config, placeholder.token, config.bidirectional == "prompt"
        self._vision = vision
        self._pictures = PictureGraphs(embed, decoder, placeholder.token, config.vocab_size)

    def run(self) -> None:
        """Run every check."""
        pixels = [self._pixels(index) for index in range(PICTURES + MORE_PICTURES)]
        seen = [self._seen(each) for each in pixels]
        self._judge_vectors("tower", "pictures of noise, each alone", [self._states(each) for each in pixels], seen)
        self._judge_embeddings()
        self._judge_text(pixels[:PICTURES])

    def _judge_vectors(self, run: str, what: str, found: list[Array], rows: list[Row], output: str = "states") -> None:
        worst = worst_of((row.eager.vectors[output], row.expected.vectors[output]) for row in rows)
        pieces = (row.piece(each, output=output) for each, row in zip(found, rows, strict=True))
        self.judge.vectors(run, what, pieces, few=len(found[0]) == 1, worst=worst)

    def _judge_embeddings(self) -> None:
        """Judge embeddings of tokens, which are read and scaled, and nothing more."""
        tokens = random_tokens(TOKENS, self._config.vocab_size, salt=5)

        def outputs(reference: Reference) -> list[Outputs]:
            with reference.loaded():
                found = reference.module.embed_tokens(torch.from_numpy(tokens)[None])
            return [Outputs({"embeddings": to_numpy(found[0])})]

        [pair] = self.compute(outputs)
        found = self._pictures.embed.run(["inputs_embeds"], {"input_ids": tokens[None]})[0][0]
        self._judge_vectors("embeddings", f"{TOKENS} tokens", [found], [Row(tokens, *pair)], "embeddings")

    def _judge_text(self, pixels: list[Array]) -> None:
        """Judge a text with pictures: in one run, and in chunks that cut pictures, unless these attend both ways."""
        fits = min(PICTURES, (self.setup.manifest.context_length - 1) // self._config.picture_tokens)
        pixels, text = pixels[:fits], self._text(fits)
        pictures = [PromptPicture(bytes([index]), self._states(each)) for index, each in enumerate(pixels)]
        rows = PictureRows(self._pictures, text.ids[: text.prompt], pictures, self._whole)
        tokens = np.concatenate([rows.tokens, text.ids[text.prompt :]])
        row, graph = self._row(text, tokens, pixels), self.graphs[0]
        self.judge.eager_worst = worst_of([(row.eager.logits, row.expected.logits)])

        def read(decoder: StepRunner) -> StepRunner:
            decoder.graph.pictures = rows
            return decoder

        decoder = read(graph.decoder(1, len(tokens)))
        whole = decoder.prefill_all(0, tokens, chunk=len(tokens))
        self.judge.logits("text with pictures", f"{fits} pictures, first, side by side and last", [row.piece(whole)])
        caches = [tuple(tensor[0] for tensor in layer) for layer in graph.read(decoder, len(tokens))]
        geometry = self.setup.manifest.cache
        self.judge.caches("text with pictures", geometry, caches, row.eager.caches, row.expected.caches)
        pieces, start = [], 0
        decoder = read(graph.decoder(1, len(tokens)))
        for size in (1, 2, 3, 5, 8, len(tokens)):
            if start < len(tokens):
                whole_blocks = decoder.graph.prefix_end(tokens, min(start + size, len(tokens)))
                stop = max(whole_blocks, decoder.graph.piece_end(tokens, start, 1))
                pieces.append(decoder.prefill_all(0, tokens[start:stop], chunk=size))
                start = stop
        pairs = [(np.concatenate(pieces), whole)]
        self.judge.agreement("chunks against one run", pairs, row.eager.logits, row.expected.logits)

    def _text(self, pictures: int) -> _Text:
        """Return a text with pictures: first and side by side, and the last one at its end, or in front of a prompt."""
        config, token = self._config, self._token
        count, vocab_size = config.picture_tokens, config.vocab_size
        window = min((each for each in config.windows if each is not None), default=0)
        wanted = max(TOKENS, (window if window <= LONGEST_WINDOW else 0) + TOKENS - count * pictures)
        text = random_tokens(min(wanted, self.setup.manifest.context_length - count * pictures), vocab_size, salt=6)
        text = np.where(text == token, (token + 1) % vocab_size, text)
        parts = [np.full(count, token)] * pictures
        ids = np.concatenate([*parts, text] if self._whole else [*parts[:-1], text, *parts[-1:]])
        if self._whole:
            prompt = max(len(ids) - ANSWER, 1)
            return _Text(ids, prompt, np.where(np.arange(len(ids)) < prompt, 0, -1))
        seen = ids == token
        return _Text(ids, len(ids), np.where(seen, np.cumsum(seen) - 1, -count) // count)

    def _pixels(self, salt: int) -> Array:
        """Return a picture of noise, as large as normalized pixels are."""
        patches = self._config.vision.patches
        shape = patches.channels, patches.height, patches.width
        return np.random.default_rng(salt).standard_normal(shape, np.float32)

    def _batch(self, pixels: list[Array]) -> Array:
        """Return pictures as the tower reads them."""
        batch = np.stack(pixels)
        return batch[None] if self._config.tiled else batch

    def _states(self, pixels: Array) -> Array:
        """Return what the graph computes of a picture, [tokens, E]."""
        found: Array = self._vision.run(["image_features"], {"pixel_values": self._batch([pixels])})[0][0]
        return found

    def _seen(self, pixels: Array) -> Row:
        """Run both references on a picture."""

        def see(reference: Reference) -> Tensor:
            with reference.loaded():
                states: Tensor = reference.module.see(torch.from_numpy(self._batch([pixels])))
            return states

        def outputs(reference: Reference) -> list[Outputs]:
            states = reference.in_summation_orders(lambda: see(reference))
            return [Outputs({"states": to_numpy(states[0])})]

        [pair] = self.compute(outputs, pixels)
        return Row(np.empty(0, np.int64), *pair)

    def _row(self, text: _Text, tokens: Array, pixels: list[Array]) -> Row:
        """Run both references on a text with pictures; tokens: with numbers, as the runtime has it."""
        ids = torch.from_numpy(text.ids)[None]
        seen = ids == self._token

        def run(reference: Reference) -> tuple[Tensor, Any]:
            with reference.loaded():
                module = reference.module
                x = module.embed_tokens(ids)
                if pixels:
                    states = module.see(torch.from_numpy(self._batch(pixels)))
                    x = x.masked_scatter(seen.unsqueeze(-1), states.to(x.dtype))
                caches = reference.empty_caches(1)
                if self._config.bidirectional is None:
                    logits, presents = module.read_embeddings(x, torch.ones_like(ids), caches)
                else:
                    logits, presents = module.read_blocks(x, text.blocks.tolist(), caches)
            return logits, tuple(presents)

        def outputs(reference: Reference) -> list[Outputs]:
            logits, presents = reference.in_summation_orders(lambda: run(reference))
            return [Outputs({"logits": to_numpy(logits[0])}, row_of(presents))]

        [pair] = self.compute(outputs)
        return Row(tokens, *pair)


def judge_pictures(setup: Setup, model: Any, decoder: Any, vision: Any, embed: Any) -> list[Check]:
    """Judge the graphs with which a decoder reads pictures, over open sessions; see `PictureTextTrial`."""
    trial = PictureTextTrial(setup, model, decoder, vision, embed)
    trial.run()
    return trial.judge.checks
