"""The view for prompts: held to the weights that its own integers mean, and to PyTorch that rounds activations as it
does.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.judge import Judge, Piece
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.export.reference.reference import references
from edgeformer.manifest import Manifest, Provider
from edgeformer.model_spec import ModelSpec
from edgeformer.runtime.decoder import PrefillSession
from edgeformer.runtime.session import open_session

ROWS, LENGTH = 3, 48
PROMPTS = (1, 2, 7, 16, 31, 33, LENGTH)
CHUNKS = (5, 16)


def judge_prefill(
    folder: Path,
    manifest: Manifest,
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    provider: Provider,
    orders: int = 1,
) -> list[Check]:
    """Run prompts, prompts in chunks, and steps of several rows over the view; check logits and caches."""
    assert manifest.prefill is not None
    stored = StoredWeights(folder, manifest, model_spec, [manifest.prefill.graph])
    session = open_session(folder / manifest.prefill.graph, provider)
    graph = Graph(session, manifest, provider, view=PrefillSession(session, 1))
    length = min(LENGTH, manifest.context_length)
    tokens = np.stack([random_tokens(length, manifest.vocab_size, salt=row) for row in range(ROWS)])
    exact, eager = (
        reference.run(torch.from_numpy(tokens))
        for reference in references(model_spec, stored, torch.float32, stored.formats, manifest.cache_scales, orders)
    )
    expected, rounded = exact[0].numpy(), eager[0].numpy()
    judge = Judge(manifest.arithmetic, eager_worst=worst_of(zip(rounded, expected, strict=True)))

    def piece(row: int, place: int, logits: np.ndarray) -> Piece:
        here = slice(place, place + 1)
        return Piece(logits[None], rounded[row, here], expected[row, here], place)

    whole = {}
    for count in (count for count in PROMPTS if count <= length):
        decoder = graph.decoder(1, count)
        whole[count] = decoder.prefill(0, tokens[0, :count], chunk=count).copy()
    judge.logits("prompts", "prompts of several lengths", (piece(0, n - 1, each) for n, each in whole.items()))
    caches = ([(key[0].numpy(), value[0].numpy()) for key, value in presents] for presents in (eager[1], exact[1]))
    judge.caches("prompts", [(key[0], value[0]) for key, value in graph.read(decoder, length)], *caches)
    chunked = [graph.decoder(1, length).prefill(0, tokens[0], chunk=chunk).copy() for chunk in CHUNKS]
    judge.logits("chunks", "a prompt in chunks", (piece(0, length - 1, each) for each in chunked))
    decoder = graph.decoder(ROWS, length)
    steps = [decoder.decode_one_token(tokens[:, place]).copy() for place in range(length)]
    pieces = (piece(row, place, each[row]) for place, each in enumerate(steps) for row in range(ROWS))
    judge.logits("steps", f"steps of {ROWS} rows together", pieces)
    again = graph.decoder(1, length, filling=0.0).prefill(0, tokens[0], chunk=length)
    judge.identical("unused cache", f"0 instead of {graph.fillings[0]:g} behind the valid tokens", whole[length], again)
    return [*judge_weights(weights, stored), *judge.checks]
