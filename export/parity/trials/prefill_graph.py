"""The trial of the prefill graph beside a quantized decoder: prompts, prompts in chunks, and steps of several rows.

It is held to the weights that its own integers mean, and to eager PyTorch that rounds activations as it does.
"""

from dataclasses import replace

import numpy as np

from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.judge import Piece
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.protocol import Setup, Trial
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.runtime.sessions.session import open_session
from edgeformer.runtime.steps.decode_graph import PrefillSession

ROWS, LENGTH = 3, 48
"""Rows of a batch, and tokens of each."""
PROMPTS = (1, 2, 7, 16, 31, 33)
"""Tokens of the prompts that are run alone, besides the longest."""
CHUNKS = (5, 16)
"""Tokens of the chunks in which the longest prompt is run."""


class PrefillGraphTrial(Trial):
    """The trial of a prefill graph, whose every run returns the logits of the last token alone."""

    def run(self) -> None:
        """Run prompts, chunks and steps; judge their logits and caches."""
        length = min(LENGTH, self.setup.manifest.context_length)
        tokens = np.stack([random_tokens(length, self.setup.manifest.vocab_size, salt=row) for row in range(ROWS)])
        rows, session = self.text_rows(tokens), self.graphs[0].session
        graph, main, judge = replace(self.graphs[0], prefill=PrefillSession(session, 1)), rows[0], self.judge
        judge.eager_worst = worst_of((row.eager.logits, row.expected.logits) for row in rows)
        whole = {}
        for count in (*(count for count in PROMPTS if count < length), length):
            decoder = graph.decoder(1, count)
            whole[count] = decoder.prefill(0, main.tokens[:count], chunk=count).copy()
        pieces: list[Piece] = [main.piece(logits[None], count - 1) for count, logits in whole.items()]
        judge.logits("prompts", "prompts of several lengths", pieces)
        caches = [tuple(tensor[0] for tensor in layer) for layer in graph.read(decoder, length)]
        judge.caches("prompts", self.setup.manifest.cache, caches, main.eager.caches, main.expected.caches)
        chunked = [graph.decoder(1, length).prefill(0, main.tokens, chunk=chunk).copy() for chunk in CHUNKS]
        pieces = [main.piece(logits[None], length - 1) for logits in chunked]
        judge.logits("chunks", "a prompt in chunks", pieces)
        decoder = graph.decoder(ROWS, length)
        steps = [decoder.decode_one_token(tokens[:, place]).copy() for place in range(length)]
        pieces = [
            row.piece(logits[index, None], place)
            for place, logits in enumerate(steps)
            for index, row in enumerate(rows)
        ]
        judge.logits("steps", f"steps of {ROWS} rows together", pieces)
        again = graph.decoder(1, length, filling=0.0).prefill(0, main.tokens, chunk=length)
        judge.identical(
            "unused cache", f"0 instead of {graph.fillings[0]:g} behind the valid tokens", whole[length], again
        )


def judge_prefill_graph(setup: Setup, *, weights: bool = True) -> list[Check]:
    """Judge the outputs of the prefill graph against its own weights.

    weights: whether to judge its weights against those of `setup`, too.
    """
    manifest = setup.manifest
    assert manifest.prefill is not None
    stored = StoredWeights(setup.folder, manifest, setup.model_spec, [manifest.prefill.file])
    session = open_session(setup.folder / manifest.prefill.file, setup.provider, kernels=setup.kernels)
    trial = PrefillGraphTrial(replace(setup, weights=stored, activations=stored.formats), [session])
    trial.run()
    return [*(judge_weights(setup.weights, stored) if weights else ()), *trial.judge.checks]
