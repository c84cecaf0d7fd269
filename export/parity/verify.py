"""Compare a bundle's graph with the float64 reference, in all the ways that clients feed it.

Every check starts from a cache full of NaN, so that reading one element too many shows.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.errors import BundleError, ConfigError
from edgeformer.export.bundle import Progress, sha256
from edgeformer.export.parity.reference import Reference
from edgeformer.export.parity.report import Check, Report
from edgeformer.export.parity.stored import StoredWeights
from edgeformer.export.parity.tolerances import RELATIVE_ERROR
from edgeformer.export.tensors import TORCH_PRECISIONS
from edgeformer.manifest import Manifest
from edgeformer.runtime.decoder import StaticDecoder
from edgeformer.runtime.session import choose_provider, onnxruntime_errors, open_session
from edgeformer.source import open_source

ROWS, PROMPT, STEPS = 3, 33, 8
SPARE = 7  # slots of the cache that no token ever takes
SEED = 0


def verify(
    bundle: str | Path, against: str | Path | None = None, *, progress: Progress = lambda what, part: None
) -> Report:
    """Verify a bundle: file hashes first, then the graph against PyTorch.

    against: the model it was exported from (preset, folder or hub id); by default the weights stored in the bundle
    itself. Raises BundleError for files that are not what the manifest says; a graph that computes something else is a
    report that has not passed.
    """
    folder = Path(bundle)
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    for index, (name, entry) in enumerate(manifest.files.items()):
        progress(f"hashing {name}", index / len(manifest.files))
        if sha256(folder / name) != entry.sha256:
            raise BundleError(f"{folder / name} was changed after the export: its SHA-256 is not the manifest's.")
    if against is None:
        return verify_graph(folder, manifest, StoredWeights(folder, manifest), progress, "the bundle's own weights")
    source = open_source(against, manifest.model.context_length)
    if source.config != manifest.model:
        raise ConfigError(f"{against} is another model than the one that {folder} was exported from: configs differ.")
    return verify_graph(folder, manifest, source.weights(), progress, source.origin)


def verify_graph(
    folder: Path,
    manifest: Manifest,
    weights: Mapping[str, Tensor],
    progress: Progress = lambda what, part: None,
    reference: str = "the checkpoint",
) -> Report:
    """Compare the graph in a folder with `weights`, rounded as they are stored, in float64."""
    prompt, steps = _sizes(manifest.model.context_length)
    generator = np.random.default_rng(SEED)
    tokens = generator.integers(0, manifest.model.vocab_size, (ROWS, prompt + steps))
    lengths = np.array([prompt, max(prompt // 3, 1), 1])

    progress("computing the float64 reference", 0)
    rounded = _Rounded(weights, TORCH_PRECISIONS[manifest.precision])
    expected = Reference(manifest.model, rounded).logits(torch.from_numpy(tokens)).numpy()

    progress("running the graph", 0.5)
    provider = choose_provider("cuda" if manifest.provider == "cuda" else "cpu", manifest)
    # Prepacking would copy every weight, for a few tokens.
    session = open_session(folder / manifest.graph, provider, prepack=False)

    def decoder(rows: int) -> StaticDecoder:
        decoder = StaticDecoder(session, manifest, rows, prompt + steps + SPARE, provider)
        decoder.cache.fill(float("nan"))
        return decoder

    checks = {
        "prefill": (f"a prompt of {prompt} tokens in one run", lambda: _prefill(decoder(1), tokens, expected, prompt)),
        "decode": (
            f"{steps} single steps after a prompt of {prompt}",
            lambda: _decode(decoder(1), tokens, expected, prompt, steps),
        ),
        "chunks": ("the text in chunks of 1, 2, 3, 5, 8… tokens", lambda: _chunks(decoder(1), tokens, expected)),
        "batch": (
            f"{ROWS} right-padded prompts of {', '.join(map(str, lengths))} tokens, then {steps} steps",
            lambda: _batch(decoder(ROWS), tokens, expected, lengths, steps),
        ),
    }  # fmt: skip
    limit = RELATIVE_ERROR[manifest.precision]
    done = []
    for name, (what, run) in checks.items():
        try:
            error = _error(run())
        except onnxruntime_errors() as stopped:  # a kernel that refuses its inputs
            what, error = f"{what}: {stopped}", float("nan")
        done.append(Check(name=name, what=what, error=error, limit=limit))
    return Report(reference=f"float64 PyTorch, {reference}", checks=tuple(done))


Pairs = list[tuple[NDArray[np.float32], NDArray[np.float64]]]
"""Logits of the graph beside those of the reference."""


def _prefill(decoder: StaticDecoder, tokens: NDArray[np.int64], expected: NDArray[np.float64], prompt: int) -> Pairs:
    return [(decoder.prefill_all(0, tokens[0, :prompt], chunk=prompt), expected[0, :prompt])]


def _decode(
    decoder: StaticDecoder, tokens: NDArray[np.int64], expected: NDArray[np.float64], prompt: int, steps: int
) -> Pairs:
    decoder.prefill(0, tokens[0, :prompt])
    return [
        (decoder.decode_one_token(tokens[:1, place]).copy(), expected[:1, place])
        for place in range(prompt, prompt + steps)
    ]


def _chunks(decoder: StaticDecoder, tokens: NDArray[np.int64], expected: NDArray[np.float64]) -> Pairs:
    pairs, start, sizes = [], 0, (1, 2)
    while start < tokens.shape[1]:
        end = min(start + sizes[0], tokens.shape[1])
        pairs.append((decoder.prefill_all(0, tokens[0, start:end]), expected[0, start:end]))
        start, sizes = end, (sizes[1], sum(sizes))
    return pairs


def _batch(
    decoder: StaticDecoder,
    tokens: NDArray[np.int64],
    expected: NDArray[np.float64],
    lengths: NDArray[np.int64],
    steps: int,
) -> Pairs:
    logits = decoder.prefill_batch(tokens[:, : lengths.max()], lengths)
    pairs = [(logits[row, :length], expected[row, :length]) for row, length in enumerate(lengths)]
    rows = np.arange(len(lengths))
    for step in range(steps):
        place = lengths + step
        pairs.append((decoder.decode_one_token(tokens[rows, place]).copy(), expected[rows, place]))
    return pairs


def _error(pairs: Pairs) -> float:
    """max |Δlogit| / max |logit| over all pairs; NaN if the graph gave any."""
    difference = max(float(np.abs(actual - expected).max()) for actual, expected in pairs)
    if any(not np.isfinite(actual).all() for actual, _ in pairs):
        return float("nan")
    return difference / max(float(np.abs(expected).max()) for _, expected in pairs)


def _sizes(context_length: int) -> tuple[int, int]:
    """Tokens of the longest prompt and single steps after it, within the model's context."""
    steps = min(STEPS, max(context_length // 4, 1))
    return min(PROMPT, context_length - steps), steps


class _Rounded(Mapping[str, Tensor]):
    """Weights as the graph stores them: rounding is the user's choice of precision, not an error of the graph."""

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype):
        self._weights = weights
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name].to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
