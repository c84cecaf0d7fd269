"""The trial of the graphs with which a decoder reads pictures: the tower, embeddings of tokens, and the decoder behind.

    pixels ──→ vision_encoder ──→ states ──┐
    tokens ──→ embed_tokens ──→ embeddings ┴→ embedding_decoder ──→ logits

The last graph is fed what the first two computed, as clients do, and is held to PyTorch over the pixels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgeformer.config import GridVisionConfig, PictureTextConfig
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.importers.library_comparison import picture_sizes
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup, Trial, row_of
from edgeformer.export.reference.reference import Reference
from edgeformer.runtime.media.pictures.positions import PictureSpan, picture_spans, positions_of, shift
from edgeformer.runtime.steps.picture_rows import PictureGraphs, PictureRows, PlacedTokens, picture_numbers
from edgeformer.runtime.steps.picture_tower import PromptPicture
from edgeformer.runtime.steps.runner import StepRunner

PICTURES = 3
"""Pictures of the text: two side by side in front of it, and one behind it."""
MORE_PICTURES = 5
"""Further pictures that the tower reads, since eager's error of a few vectors is a matter of chance."""
TOKENS = 24
"""Tokens of text between the pictures."""

Picture = dict[str, Array]
"""A picture as the tower reads it, by the names of its inputs."""


class PictureTextTrial(Trial):
    """The trial of the three graphs beside the decode graph, which reads the chunks of a text that have no picture."""

    def __init__(self, setup: Setup, model: Any, decoder: Any, vision: Any, embed: Any):
        """decoder, vision, embed: sessions of the graph that reads embeddings, of the tower, of embeddings."""
        super().__init__(setup, [model])
        config, placeholder = setup.manifest.model, setup.manifest.placeholder
        assert isinstance(config, PictureTextConfig) and placeholder is not None
        self._config, self._token = config, placeholder.token
        self._vision = vision
        self._pictures = PictureGraphs(embed, decoder, placeholder.token, config.vocab_size)

    def run(self) -> None:
        """Run every check."""
        pictures = [self._picture(index) for index in range(PICTURES + MORE_PICTURES)]
        seen = [self._seen(each) for each in pictures]
        self._judge_vectors("tower", "pictures of noise, each alone", [self._states(each) for each in pictures], seen)
        self._judge_embeddings()
        self._judge_text(pictures[:PICTURES])

    def _judge_vectors(self, run: str, what: str, found: list[Array], rows: list[Row], output: str = "states") -> None:
        worst = worst_of((row.eager.vectors[output], row.expected.vectors[output]) for row in rows)
        pieces = (row.piece(each, output=output) for each, row in zip(found, rows, strict=True))
        self.judge.vectors(run, what, pieces, few=len(found[0]) == 1, worst=worst)

    def _judge_embeddings(self) -> None:
        """Judge embeddings of tokens, which are read and scaled, and nothing more."""
        tokens = random_tokens(TOKENS, self._config.vocab_size, salt=5)

        def outputs(reference: Reference) -> list[Outputs]:
            with reference.loaded():
                found = reference.module.embed_wide(torch.from_numpy(tokens)[None])
            return [Outputs({"embeddings": to_numpy(found[0])})]

        [pair] = self.compute(outputs)
        found = self._pictures.embed.run(["inputs_embeds"], {"input_ids": tokens[None]})[0][0]
        self._judge_vectors("embeddings", f"{TOKENS} tokens", [found], [Row(tokens, *pair)], "embeddings")

    def _judge_text(self, pictures: list[Picture]) -> None:
        """Judge a text with pictures: in one run, and in chunks that cut pictures."""
        pictures, parts = self._parts(pictures)
        shown, numbers = np.concatenate([ids for ids, _ in parts]), np.concatenate([given for _, given in parts])
        seen, states = numbers >= self._config.vocab_size, [self._states(each) for each in pictures]
        features = np.concatenate([np.empty((0, self._config.wide_size), np.float32), *states])
        picture, placed, spans = PromptPicture(numbers[seen], features), None, list[PictureSpan]()
        if self._config.axes is not None and pictures:
            spans = picture_spans(shown, self._token, [self._squares(each) for each in pictures])
            placed = PlacedTokens.of(numbers, spans, self._config.vocab_size)
            numbers[: len(placed.numbers)] = placed.prompt
        row, graph = self._row(numbers, shown, seen, pictures, spans), self.graphs[0]
        self.judge.eager_worst = worst_of([(row.eager.logits, row.expected.logits)])
        rows = PictureRows(self._pictures, [picture], placed)

        def read(decoder: StepRunner) -> StepRunner:
            decoder.graph.pictures = rows
            return decoder

        decoder = read(graph.decoder(1, len(numbers)))
        whole = decoder.prefill_all(0, numbers, chunk=len(numbers))
        what = f"{len(pictures)} pictures, first, side by side and last"
        self.judge.logits("text with pictures", what, [row.piece(whole)])
        caches = [tuple(tensor[0] for tensor in layer) for layer in graph.read(decoder, len(numbers))]
        geometry = self.setup.manifest.cache
        self.judge.caches("text with pictures", geometry, caches, row.eager.caches, row.expected.caches)
        pieces, start = [], 0
        decoder = read(graph.decoder(1, len(numbers)))
        for size in self._chunks(len(numbers), 0 if placed is None else len(placed.numbers)):
            pieces.append(decoder.prefill_all(0, numbers[start : start + size], chunk=size))
            start += size
        pairs = [(np.concatenate(pieces), whole)]
        self.judge.agreement("chunks against one run", pairs, row.eager.logits, row.expected.logits)

    def _parts(self, pictures: list[Picture]) -> tuple[list[Picture], list[tuple[Array, Array]]]:
        """Return the pictures that the context has room for, and the parts of a text with them: ids, and numbers.

        Where positions have axes, pictures have a token between them, and text behind the last one, which the graph of
        text reads.
        """
        context, grids = self.setup.manifest.context_length, self._config.axes is not None
        counts, fits = np.cumsum([self._tokens_of(each) for each in pictures]), 0
        while fits < len(pictures) and counts[fits] < context - 2 * grids * len(pictures):
            fits += 1
        used = int(counts[fits - 1]) if fits else 0
        text = random_tokens(min(TOKENS, context - used), self._config.vocab_size, salt=6)
        text = np.where(text == self._token, (self._token + 1) % self._config.vocab_size, text)
        seen = []
        for index, each in enumerate(pictures[:fits]):
            count = self._tokens_of(each)
            numbers = picture_numbers(bytes([index]), count, self._config.vocab_size)
            seen.append((np.full(count, self._token), numbers))
        if not grids:
            return pictures[:fits], [*seen[:-1], (text, text), *seen[-1:]]
        cuts = np.split(text, [1, 2, len(text) - len(text) // 3])
        pieces = [(each, each) for each in (cuts[0], cuts[1], cuts[2])]
        mixed = [part for pair in zip(seen, pieces, strict=False) for part in pair]
        return pictures[:fits], [*mixed, *((each, each) for each in (*cuts[len(seen) : -1], cuts[-1]))]

    def _chunks(self, length: int, placed: int) -> list[int]:
        """Return the sizes of chunks of a text; the tokens behind the placed ones begin one."""
        found: list[int] = []
        for end in (placed, length):
            for size in (1, 2, 3, 5, 8, length):
                rest = end - sum(found)
                found += [min(size, rest)] if rest > 0 else []
        return found

    def _picture(self, salt: int) -> Picture:
        """Return a picture of noise, as large as normalized pixels are, as the tower reads it."""
        random, vision = np.random.default_rng(salt), self._config.vision
        if isinstance(vision, GridVisionConfig):
            sizes = picture_sizes(vision)
            rows, columns = (side * vision.square for side in sizes[salt % len(sizes)])
            values = random.standard_normal((rows * columns, vision.patches.inputs), np.float32)
            return {"pixel_values": values, vision.grid_input: np.array([[1, rows, columns]])}
        patches = vision.patches
        pixels = random.standard_normal((1, patches.channels, patches.height, patches.width), np.float32)
        return {"pixel_values": pixels[None] if self._config.tiled else pixels}

    def _squares(self, picture: Picture) -> tuple[int, int]:
        """Return the rows and columns of the states of a picture of any size."""
        vision = self._config.vision
        assert isinstance(vision, GridVisionConfig)
        _, rows, columns = picture[vision.grid_input][0]
        return int(rows) // vision.square, int(columns) // vision.square

    def _tokens_of(self, picture: Picture) -> int:
        """Return the number of states of a picture."""
        count = self._config.picture_tokens
        if count is None:
            rows, columns = self._squares(picture)
            return rows * columns
        return count

    def _states(self, picture: Picture) -> Array:
        """Return what the graph computes of a picture, [tokens, E]."""
        found: Array = self._vision.run(["image_features"], picture)[0][0]
        return found

    def _see(self, reference: Reference, picture: Picture) -> Tensor:
        with reference.loaded():
            states: Tensor = reference.module.see(*map(torch.from_numpy, picture.values()))
        return states

    def _seen(self, picture: Picture) -> Row:
        """Run both references on a picture."""

        def outputs(reference: Reference) -> list[Outputs]:
            states = reference.in_summation_orders(lambda: self._see(reference, picture))
            return [Outputs({"states": to_numpy(states[0])})]

        [pair] = self.compute(outputs, *picture.values())
        return Row(np.empty(0, np.int64), *pair)

    def _row(
        self, numbers: Array, shown: Array, seen: Array, pictures: list[Picture], spans: Sequence[PictureSpan]
    ) -> Row:
        """Run both references on a text with pictures.

        Where positions have axes, logits are those at the positions that the model was trained with, and caches those
        at the positions of the runtime, which are shifted.
        """
        ids, where = torch.from_numpy(shown)[None], torch.from_numpy(seen)[None]
        positions = torch.from_numpy(positions_of(len(shown), spans))[:, None]
        given = [[]] if self._config.axes is None else [[positions], [positions + shift(spans)]]

        def run(reference: Reference) -> tuple[Tensor, Any]:
            found = [self._see(reference, each).flatten(0, 1) for each in pictures]
            with reference.loaded():
                module = reference.module
                x = module.embed_wide(ids)
                if found:
                    x = x.masked_scatter(where.unsqueeze(-1), torch.cat(found).to(x.dtype))
                runs = [
                    module.read_embeddings(x, torch.ones_like(ids), reference.empty_caches(1), *each) for each in given
                ]
            return runs[0][0], tuple(runs[-1][1])

        def outputs(reference: Reference) -> list[Outputs]:
            logits, presents = reference.in_summation_orders(lambda: run(reference))
            return [Outputs({"logits": to_numpy(logits[0])}, row_of(presents))]

        [pair] = self.compute(outputs)
        return Row(numbers, *pair)


def judge_pictures(setup: Setup, model: Any, decoder: Any, vision: Any, embed: Any) -> list[Check]:
    """Judge the graphs with which a decoder reads pictures, over open sessions; see `PictureTextTrial`."""
    trial = PictureTextTrial(setup, model, decoder, vision, embed)
    trial.run()
    return trial.judge.checks
