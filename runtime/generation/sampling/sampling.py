"""Choose the next token from logits: greedily, or by a draw after temperature and the filters.

The filters come in the order of transformers: top-h, top-k, top-p, min-p, typical-p, epsilon, eta; then XTC, which
transformers lacks. Penalties come before; they are in `logits_rules.Rules`.
"""

import numpy as np
from numpy.typing import NDArray

from edgeformer.options.generation import SamplingOptions
from edgeformer.runtime.generation.sampling.sampling_filters import cut_epsilon, cut_eta, filter_top_h, softmax

Logits = NDArray[np.float32]

TINY_TEMPERATURE = 1e-200
"""A number of float32 over a temperature of less may be beyond those of float64."""


class Sampling(SamplingOptions):
    """The options of sampling."""

    @property
    def candidate_count(self) -> int | None:
        """How many of the most likely tokens decide about the next one; None where all do."""
        if self.temperature == 0:
            return 1
        return self.top_k if self.top_k and not self.top_h else None


class Sampler:
    """Draws the tokens of one row: the same seed and logits give the same tokens, alone or in a batch."""

    def __init__(self, sampling: Sampling):
        self._sampling = sampling
        if sampling.temperature:  # a generator of random numbers takes as long as a token of a small model
            self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: Logits) -> int:
        """Return the next token's id from logits [V]."""
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        probabilities = distribution(logits, self._sampling)
        if self._sampling.xtc_probability and self._random.random() < self._sampling.xtc_probability:
            exclude_top_choices(probabilities, self._sampling.xtc_threshold)
        # Inverse of the cumulative distribution; the last token with any probability guards against rounding.
        cumulative = np.cumsum(probabilities)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(drawn) if drawn < len(cumulative) else int(np.flatnonzero(probabilities)[-1])


def distribution(logits: Logits, sampling: Sampling) -> NDArray[np.float64]:
    """Return probabilities [V] after temperature and the filters, in float64; tokens filtered out have 0."""
    scaled = logits.astype(np.float64)
    if sampling.temperature < TINY_TEMPERATURE:
        with np.errstate(over="ignore"):
            if np.isinf(scaled.max() / sampling.temperature):  # the largest becomes 0, and others −∞
                scaled -= scaled.max()
            scaled /= sampling.temperature
    else:
        scaled /= sampling.temperature
    if sampling.top_h:
        filter_top_h(scaled, sampling.top_h)
    if 0 < sampling.top_k < len(scaled):
        kth = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        scaled[scaled < kth] = -np.inf
    if sampling.top_p < 1:
        kept = _nucleus(softmax(scaled), sampling.top_p)
        scaled = np.where(kept, scaled, -np.inf)
    if sampling.min_p > 0:
        probabilities = softmax(scaled)
        scaled[probabilities < sampling.min_p * probabilities.max()] = -np.inf
    if sampling.typical_p < 1:
        scaled = np.where(_typical(softmax(scaled), sampling.typical_p), scaled, -np.inf)
    if sampling.epsilon_cutoff:
        cut_epsilon(scaled, sampling.epsilon_cutoff)
    if sampling.eta_cutoff:
        cut_eta(scaled, sampling.eta_cutoff)
    return softmax(scaled)


def exclude_top_choices(probabilities: NDArray[np.float64], threshold: float) -> None:
    """Set the probabilities [V] of all tokens that reach the threshold to 0 but the least likely of them, in place.

    This is XTC; `Sampler` does it in a fraction `xtc_probability` of its draws. Source: `llama_sampler_xtc` of
    llama.cpp.
    """
    top = np.flatnonzero(probabilities >= threshold)
    if threshold > 0.5 or len(top) < 2:
        return
    order = np.argsort(-probabilities[top], kind="stable")
    probabilities[top[order[:-1]]] = 0


def _nucleus(probabilities: NDArray[np.float64], top_p: float) -> NDArray[np.bool_]:
    """Mark the fewest tokens whose probabilities reach top_p, bool [V]; sort no more of the vocabulary than needed."""
    count = min(256, len(probabilities))
    while True:
        candidates = np.argpartition(-probabilities, count - 1)[:count]
        if count == len(probabilities) or probabilities[candidates].sum() >= top_p:
            break
        count = min(8 * count, len(probabilities))
    candidates.sort()  # so that of equal ones the first is kept, whatever is behind
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
    before = np.concatenate(([0.0], np.cumsum(probabilities[order])[:-1]))
    kept = np.zeros(len(probabilities), np.bool_)
    # A token stays while those before it have not reached p; the first always stays.
    kept[order[before < top_p]] = True
    return kept


def _typical(probabilities: NDArray[np.float64], mass: float) -> NDArray[np.bool_]:
    """Mark the tokens whose surprise is nearest to the entropy, up to this probability, bool [V].

    Source: arXiv 2202.00666, and `TypicalLogitsWarper` of transformers, whose treatment of ties this has.
    """
    possible = np.flatnonzero(probabilities)
    surprise = -np.log(probabilities[possible])
    distance = np.abs(surprise - (probabilities[possible] * surprise).sum())
    order = np.argsort(distance, kind="stable")
    reached = np.cumsum(probabilities[possible][order])
    last = min(int((reached < mass).sum()), len(order) - 1)
    kept = np.zeros(len(probabilities), np.bool_)
    kept[possible[distance <= distance[order[last]]]] = True
    return kept
