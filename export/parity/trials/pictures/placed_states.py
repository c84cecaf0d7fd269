"""The trial of the graph that puts the states of pictures between embeddings, against the graph of embeddings."""

from typing import Any

import numpy as np

from edgeformer.export.lower.placed_states import STATES
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.protocol import Setup

ROWS, TOKENS = 2, 12
COUNTS = (7, 4, 0)
"""States, of as many placeholders, of fewer, and of none."""


def judge_placed(setup: Setup, embed: Any, placed: Any) -> list[Check]:
    """Return the check that states stand in the places of placeholders, and tokens' own embeddings everywhere else."""
    placeholder = setup.manifest.placeholder
    assert placeholder is not None
    token, random = placeholder.token, np.random.default_rng(0)
    ids = random_tokens(ROWS * TOKENS, setup.manifest.vocab_size, salt=9).reshape(ROWS, TOKENS)
    ids[ids == token] = (token + 1) % setup.manifest.vocab_size
    ids[0, [0, 1, 2, 7]] = ids[1, [0, 5, TOKENS - 1]] = token
    worst = 0.0
    for count in COUNTS:
        expected = embed.run(["inputs_embeds"], {"input_ids": ids})[0].copy()
        states = random.standard_normal((count, expected.shape[2]), np.float32)
        seen = tuple(each[:count] for each in np.nonzero(ids == token))
        expected[seen] = states
        [found] = placed.run(["inputs_embeds"], {"input_ids": ids, STATES: states})
        worst = max(worst, float(np.abs(found - expected).max()))
    what = f"{', '.join(map(str, COUNTS))} states for {COUNTS[0]} placeholders"
    reason = "states and embeddings are copied"
    return [Check(name="largest difference", what=what, value=worst, limit=0.0, eager=None, reason=reason)]
