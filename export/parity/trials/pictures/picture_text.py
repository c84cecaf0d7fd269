"""The trial of the graphs with which a decoder reads pictures: the tower, embeddings of tokens, and the decoder behind.

    pixels ──→ vision_encoder ──→ states ──┐
    tokens ──→ embed_tokens ──→ embeddings ┴→ embedding_decoder ──→ logits

The last graph is fed what the first two computed, as clients do, and is held to PyTorch over the pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgeformer.config import Grid, SoundTextConfig, SoundTowerConfig, TowerTextConfig
from edgeformer.contract.tensors import AUDIO_VALUES, FEATURE_MASK
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.parity import feeding
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.tolerances import longest_sum
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup, Trial, row_of
from edgeformer.export.reference.reference import Reference
from edgeformer.runtime.media.pictures.positions import PictureSpan, picture_spans, positions_of, shift
from edgeformer.runtime.steps.picture_rows import PictureGraphs, PictureRows
from edgeformer.runtime.steps.picture_tower import PromptPicture

PICTURES = 3
"""Pictures of the text: two side by side in front of it, and one behind it."""
MORE_PICTURES = 5
"""Further pictures that the tower reads, since eager's error of a few vectors is a matter of chance."""
LARGE = 256
"""Patches of a picture beyond which our kernels round the products of attention, too."""
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
        spans: where the pictures stand, where positions have axes.
    """

    ids: Array
    prompt: int
    blocks: Array
    spans: Sequence[PictureSpan] = ()


Picture = dict[str, Array]
"""A picture as the tower reads it, by the names of its inputs."""


class PictureTextTrial(Trial):
    """The trial of the three graphs beside the decode graph, which reads the chunks of a text that have no picture."""

    def __init__(self, setup: Setup, model: Any, decoder: Any, vision: Any, embed: Any):
        """decoder, vision, embed: sessions of the graph that reads embeddings, of the tower, of embeddings."""
        super().__init__(setup, [model])
        config, placeholder = setup.manifest.model, setup.manifest.placeholder
        assert isinstance(config, TowerTextConfig) and placeholder is not None
        self._config, self._token, self._whole = config, placeholder.token, config.bidirectional == "prompt"
        self._vision, self._media = vision, f"{placeholder.medium}s"
        self._pictures = PictureGraphs(embed, decoder, placeholder.token, config.vocab_size)

    def run(self) -> None:
        """Run every check."""
        pictures = [self._picture(index) for index in range(PICTURES + MORE_PICTURES)]
        seen = [self._seen(each) for each in pictures]
        self._judge_vectors(
            "tower", f"{self._media} of noise, each alone", [self._states(each) for each in pictures], seen
        )
        if self.setup.activations is not None and self._config.tower.grid_input is not None:
            large = self._large_picture()
            what = f"{len(large['pixel_values'])} patches of noise"
            self._judge_vectors("large picture", what, [self._states(large)], [self._seen(large)])
        self._judge_embeddings()
        self._judge_text(pictures[:PICTURES])

    def _judge_vectors(self, run: str, what: str, found: list[Array], rows: list[Row], output: str = "states") -> None:
        worst = worst_of(row.eager_errors(output) for row in rows)
        pieces = (row.piece(each, output=output) for each, row in zip(found, rows, strict=True))
        summed = longest_sum(self.float64.module.tower, self.float64.module.projector) if run == "tower" else 0
        self.judge.vectors(run, what, pieces, few=len(found[0]) == 1, worst=worst, longest_sum=summed)

    def _judge_embeddings(self) -> None:
        """Judge embeddings of tokens, which are read and scaled, and nothing more."""
        tokens = random_tokens(TOKENS, self._config.vocab_size, salt=5)

        def outputs(reference: Reference) -> list[Outputs]:
            with reference.loaded():
                found = reference.module.embed_wide(torch.from_numpy(tokens)[None])
            return [Outputs({"embeddings": to_numpy(found[0])})]

        [pair] = zip(*self.references.compute(outputs), strict=True)
        found = self._pictures.embed.run(["inputs_embeds"], {"input_ids": tokens[None]})[0][0]
        self._judge_vectors("embeddings", f"{TOKENS} tokens", [found], [Row(tokens, *pair)], "embeddings")

    def _judge_text(self, pictures: list[Picture]) -> None:
        """Judge a text with pictures: in one run, and in chunks that cut pictures, unless these attend both ways."""
        pictures = self._fitting(pictures)
        text, graph, tokens = self._read(pictures)
        row = self._row(text, tokens, pictures)
        self.judge.eager_worst = worst_of([row.eager_errors()])
        whole, decoder = feeding.prefill(graph, tokens)
        self.judge.logits(
            f"text with {self._media}", f"{len(pictures)} of them, first, side by side and last", [row.piece(whole)]
        )
        caches = [tuple(tensor[0] for tensor in layer) for layer in graph.read(decoder, len(tokens))]
        geometry = self.setup.manifest.cache
        self.judge.caches(f"text with {self._media}", geometry, caches, row.eager.caches, row.expected.caches)
        pieces, start = [], 0
        decoder = graph.decoder(1, len(tokens))
        placed = text.spans[-1].end if text.spans else 0  # behind it, the graph of text reads
        for size in (1, 2, 3, 5, 8, len(tokens), len(tokens)):
            if start < len(tokens):
                whole_blocks = decoder.graph.prefix_end(tokens, min(start + size, len(tokens)))
                stop = max(whole_blocks, decoder.graph.piece_end(tokens, start, 1))
                stop = placed if start < placed < stop else stop
                pieces.append(decoder.prefill_all(0, tokens[start:stop], chunk=size))
                start = stop
        pairs = [(np.concatenate(pieces), whole)]
        self.judge.agreement("chunks against one run", pairs, row.eager.logits, row.expected.logits)

    def _read(self, pictures: list[Picture]) -> tuple[_Text, Graph, Array]:
        """Return a text with pictures, the graph that reads them, and the text's tokens with numbers in their place."""
        text = self._text([self._tokens_of(each) for each in pictures], pictures)
        seen = [PromptPicture(bytes([index]), self._states(each)) for index, each in enumerate(pictures)]
        rows = PictureRows(self._pictures, text.ids[: text.prompt], seen, whole=self._whole, spans=text.spans)
        return text, replace(self.graphs[0], pictures=rows), np.concatenate([rows.tokens, text.ids[text.prompt :]])

    def with_pictures(self) -> tuple[Graph, Array, list[int]]:
        """Return the graph that reads a text with pictures, the text, and the ends of its halves, or of its blocks."""
        _, graph, tokens = self._read(self._fitting([self._picture(index) for index in range(PICTURES)]))
        rules, ends = graph.decoder(1, len(tokens)).graph, [0]
        while ends[-1] < len(tokens):
            ends.append(rules.piece_end(tokens, ends[-1], (len(tokens) + 1) // 2))
        return graph, tokens, ends[1:]

    def _fitting(self, pictures: list[Picture]) -> list[Picture]:
        """Return the pictures that the context has room for, with a token beside each."""
        counts = np.cumsum([self._tokens_of(each) for each in pictures])
        room = self.setup.manifest.context_length - (1 if self._config.axes is None else 2 * PICTURES)
        return pictures[: int((counts <= room).sum())]

    def _text(self, counts: Sequence[int], pictures: Sequence[Picture]) -> _Text:
        """Return a text with pictures: first and side by side, and the last one at its end, or in front of a prompt.

        Where positions have axes, a token is between the first ones, and text behind the last one.
        """
        config, token, total = self._config, self._token, sum(counts)
        window = min((each for each in config.windows if each is not None), default=0)
        wanted = max(TOKENS, (window if window <= LONGEST_WINDOW else 0) + TOKENS - total)
        length = min(wanted, self.setup.manifest.context_length - total)
        text = random_tokens(length, config.vocab_size, salt=6)
        text = np.where(text == token, (token + 1) % config.vocab_size, text)
        parts = [np.full(count, token) for count in counts]
        if config.axes is not None:
            between = np.split(text, [1, len(text) - len(text) // 3])
            ids = np.concatenate([each for pair in zip(parts, between, strict=False) for each in pair])
            ids = np.concatenate([ids, *between[len(parts) :]])
            spans = picture_spans(ids, token, [self._squares(each) for each in pictures])
            return _Text(ids, len(ids), np.full(len(ids), -1), spans)
        ids = np.concatenate([*parts, text] if self._whole else [*parts[:-1], text, *parts[-1:]])
        if self._whole:
            prompt = max(len(ids) - ANSWER, 1)
            return _Text(ids, prompt, np.where(np.arange(len(ids)) < prompt, 0, -1))
        numbers = [np.full(count, index) for index, count in enumerate(counts)]
        return _Text(ids, len(ids), np.concatenate([*numbers[:-1], np.full(len(text), -1), *numbers[-1:]]))

    def _picture(self, salt: int) -> Picture:
        """Return a picture of noise, as large as normalized pixels are, as the tower reads it."""
        random, vision = np.random.default_rng(salt), self._config.tower
        if isinstance(vision, SoundTowerConfig):
            return _window(random, vision, salt)
        return self._of_grid(vision.sample_grids[salt % len(vision.sample_grids)], random)

    def _large_picture(self) -> Picture:
        """Return a picture of noise, of any size, with more than LARGE patches."""
        square = self._config.projector.side
        side = min(isqrt(LARGE // square**2) + 1, self._config.tower.context_length // square)
        return self._of_grid(Grid(rows=side, columns=side), np.random.default_rng(LARGE))

    def _of_grid(self, grid: Grid, random: np.random.Generator) -> Picture:
        """Return a picture of so many squares of patches."""
        vision: Any = self._config.tower
        values = random.standard_normal(vision.values_shape(grid), np.float32)
        if vision.grid_input is None:
            return {"pixel_values": values[None, None] if self._config.tiled else values[None]}
        side = self._config.projector.side  # of a square, in patches
        return {"pixel_values": values, vision.grid_input: np.array([[1, grid.rows * side, grid.columns * side]])}

    def _squares(self, picture: Picture) -> tuple[int, int]:
        """Return the rows and columns of the states of a picture of any size."""
        name, side = self._config.tower.grid_input, self._config.projector.side
        assert name is not None
        _, rows, columns = picture[name][0]
        return int(rows) // side, int(columns) // side

    def _tokens_of(self, picture: Picture) -> int:
        """Return the number of states of a picture."""
        count = self._config.picture_tokens
        if isinstance(self._config, SoundTextConfig) and FEATURE_MASK in picture:
            states = self._config.tower.states_of(int(picture[FEATURE_MASK].sum()))
            return states // self._config.projector.joined
        if count is None:
            rows, columns = self._squares(picture)
            return rows * columns
        return count

    def _states(self, picture: Picture) -> Array:
        """Return what the graph computes of a picture, [tokens, E]."""
        found: Array = self._vision.run([self._config.features], picture)[0]
        return found.reshape(-1, found.shape[-1])[: self._tokens_of(picture)]

    def _see(self, reference: Reference, picture: Picture) -> Tensor:
        with reference.loaded():
            states: Tensor = reference.module.see(*map(torch.from_numpy, picture.values()))
        return states[:, : self._tokens_of(picture)]

    def _seen(self, picture: Picture) -> Row:
        """Run both references on a picture."""

        def outputs(reference: Reference) -> list[Outputs]:
            states = reference.in_summation_orders(lambda each: self._see(each, picture))
            return [Outputs({"states": to_numpy(states[0])})]

        [pair] = zip(*self.references.compute(outputs, *picture.values()), strict=True)
        return Row(np.empty(0, np.int64), *pair)

    def _row(self, text: _Text, tokens: Array, pictures: list[Picture]) -> Row:
        """Run both references on a text with pictures; tokens: with numbers, as the runtime has it.

        Where positions have axes, logits are those at the positions that the model was trained with, and caches those
        at the positions of the runtime, which are shifted.
        """
        ids = torch.from_numpy(text.ids)[None]
        seen, mask = ids == self._token, torch.ones_like(ids)
        positions = torch.from_numpy(positions_of(len(text.ids), text.spans))[:, None]
        given = [[]] if self._config.axes is None else [[positions], [positions + shift(text.spans)]]

        def run(reference: Reference) -> tuple[Tensor, Any]:
            found = [self._see(reference, each).flatten(0, 1) for each in pictures]
            with reference.loaded():
                module, caches = reference.module, reference.empty_caches(1)
                x = module.embed_wide(ids)
                if found:
                    x = module.with_pictures(x, seen, torch.cat(found))
            runs = []
            for each in given:
                with reference.caching():
                    if self._config.bidirectional is None:
                        runs.append(module.read_embeddings(x, mask, caches, *each))
                    else:
                        runs.append(module.read_blocks(x, text.blocks.tolist(), caches))
            return runs[0][0], tuple(runs[-1][1])

        def outputs(reference: Reference) -> list[Outputs]:
            logits, presents = reference.in_summation_orders(run)
            return [Outputs({"logits": to_numpy(logits[0])}, row_of(presents))]

        [pair] = zip(*self.references.compute(outputs), strict=True)
        return Row(tokens, *pair)


def _window(random: np.random.Generator, tower: SoundTowerConfig, salt: int) -> Picture:
    """Return a window of noise as a tower of sound reads it: whole, or of fewer frames, where these are masked."""
    window: Picture = {AUDIO_VALUES: random.standard_normal((1, tower.mel_bins, tower.frames), np.float32)}
    if tower.masked:
        frames = (tower.frames, tower.frames // 2 + 1, 2 * (tower.pool or 1) + 1)[salt % 3]
        window[FEATURE_MASK] = (np.arange(tower.frames) < frames).astype(np.int64)[None]
    return window
