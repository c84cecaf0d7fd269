"""The trial of the graphs with which an encoder reads pictures: the tower, embeddings, and the encoder behind them.

pixels ──→ vision_encoder ──→ states ──┐
tokens ──→ embed_tokens ──→ embeddings ┴→ embedding_encoder ──→ states, and outputs of the head
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from edgeformer.config import EncoderConfig
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.trials.pictures.picture_text import Picture, PictureTextTrial
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup
from edgeformer.export.reference.reference import Reference
from edgeformer.runtime.steps.picture_rows import placed_embeddings


class PictureEncoderTrial(PictureTextTrial):
    """The trial of the three graphs beside the graph of an encoder, which reads texts alone."""

    def _judge_text(self, pictures: list[Picture]) -> None:
        """Judge texts with pictures, each alone, then as one batch, which must agree with each alone."""
        pictures = self._fitting(pictures)
        parts = [pictures, *([pictures[:1]] if len(pictures) > 1 else [])]  # by which the batch has padding
        texts = [self._text([self._tokens_of(each) for each in part], part).ids for part in parts]
        rows = [self._encoded(ids, part) for ids, part in zip(texts, parts, strict=True)]
        states = [[self._states(each) for each in part] for part in parts]
        alone = [self._run([ids], [part])[0] for ids, part in zip(texts, states, strict=True)]
        batch = self._run(texts, states)
        what = f"{len(pictures)} of them, first, side by side and last, and a text with one"
        for run, found in ((f"text with {self._media}", alone), (f"batch of {len(texts)}", batch)):
            for output in found[0]:
                self._judge_output(f"{run}, {output}", what, output, [each[output] for each in found], rows)
        for output in alone[0]:
            pairs = [(one[output], solo[output]) for one, solo in zip(batch, alone, strict=True)]
            eager, expected = (
                np.concatenate([side.vectors[output] for side in sides])
                for sides in ([row.eager for row in rows], [row.expected for row in rows])
            )
            self.judge.agreement(f"batch against solo: {output}", pairs, eager, expected)
        again = self._run(texts, states, padding=1)
        for output in alone[0]:
            values = [np.concatenate([row[output].ravel() for row in run]) for run in (batch, again)]
            self.judge.identical(f"padding: {output}", "other tokens behind the texts", *values)

    def _judge_output(self, name: str, what: str, output: str, found: list[Array], rows: list[Row]) -> None:
        gives = {each.name: each.gives for each in self._encoder.head_outputs}
        worst = worst_of(row.eager_errors(output) for row in rows)
        pieces = (row.piece(each, output=output) for each, row in zip(found, rows, strict=True))
        if gives.get(output) == "words":
            self.judge.eager_worst = worst
            self.judge.logits(name, what, pieces)
        else:
            few, size = len(found[0]) == 1, self._encoder.hidden_size
            self.judge.vectors(name, what, pieces, few=few, worst=worst, norm_size=size)

    @property
    def _encoder(self) -> EncoderConfig:
        return cast(EncoderConfig, self._config)

    @property
    def _outputs(self) -> list[str]:
        return ["last_hidden_state", *(each.name for each in self._encoder.head_outputs)]

    def _run(
        self, texts: Sequence[Array], states: Sequence[Sequence[Array]], padding: int = 0
    ) -> list[dict[str, Array]]:
        """Run texts as one batch, padded with a token; return each row's outputs at its own tokens."""
        embeddings, mask = placed_embeddings(self._pictures, texts, states, padding)
        feeds = {"inputs_embeds": embeddings, "attention_mask": mask}
        arrays = dict(zip(self._outputs, self._pictures.reader.run(self._outputs, feeds), strict=True))
        return [self._own(arrays, row, len(ids)) for row, ids in enumerate(texts)]

    def _own(self, arrays: dict[str, Array], row: int, tokens: int) -> dict[str, Array]:
        """Return a row of the outputs, and of those of tokens the first ones."""
        per_token = {"last_hidden_state", *(each.name for each in self._encoder.head_outputs if each.per_token)}
        return {
            name: np.atleast_2d(array[row][:tokens] if name in per_token else array[row])
            for name, array in arrays.items()
        }

    def _encoded(self, ids: Array, pictures: list[Picture]) -> Row:
        """Run both references on a text with pictures."""
        tokens = torch.from_numpy(ids)[None]
        seen, mask = tokens == self._token, torch.ones_like(tokens)

        def run(reference: Reference) -> tuple[Tensor, ...]:
            found = [self._see(reference, each).flatten(0, 1) for each in pictures]
            with reference.loaded():
                module = reference.module
                x = module.embed_wide(tokens)
                if found:
                    x = module.with_pictures(x, seen, torch.cat(found))
                outputs: tuple[Tensor, ...] = module.read_embeddings(x, mask)
            return outputs

        def outputs(reference: Reference) -> list[Outputs]:
            found = dict(zip(self._outputs, reference.in_summation_orders(run), strict=True))
            return [Outputs(self._own({name: to_numpy(each) for name, each in found.items()}, 0, len(ids)))]

        [pair] = zip(
            *self.references.compute(outputs, ids, *(value for each in pictures for value in each.values())),
            strict=True,
        )
        return Row(ids, *pair)


def judge_pictures(setup: Setup, model: Any, reader: Any, vision: Any, embed: Any) -> list[Check]:
    """Judge the graphs with which a model reads pictures or sound, over open sessions.

    reader: the session of the graph that reads embeddings.
    """
    kind = PictureEncoderTrial if setup.manifest.form == "encoder" else PictureTextTrial
    trial = kind(setup, model, reader, vision, embed)
    trial.run()
    return trial.judge.checks
