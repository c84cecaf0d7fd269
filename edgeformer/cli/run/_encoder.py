"""Opens encoders and reads texts, as the commands over an encoder need it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeformer.cli._output import note
from edgeformer.errors import RequestError

if TYPE_CHECKING:
    from edgeformer.runtime import DualEncoder, Encoder, VisionEncoder

RANKING = "docs/reference/bundle.md (Causal models that rank)"
"""Where it says how a causal model ranks."""


def open_encoder(bundle: Path, provider: Any, threads: int | None, results: str) -> "Encoder":
    """Load the encoder in a bundle, and say on stderr if its results (`vectors`) mean nothing.

    Raises RequestError for a bundle that generates text or reads pictures.
    """
    return _of_texts(_open(bundle, provider, threads, results), bundle)


def open_embedder(bundle: Path, provider: Any, threads: int | None) -> "Encoder | VisionEncoder | DualEncoder":
    """Load the model in a bundle that makes vectors of texts or of pictures, as `open_encoder`."""
    return _open(bundle, provider, threads, "vectors")


def _open(bundle: Path, provider: Any, threads: int | None, results: str) -> "Encoder | VisionEncoder | DualEncoder":
    from edgeformer.runtime import CausalLM, DualEncoder, Encoder, VisionEncoder, load

    model = load(bundle, provider, threads)
    if not isinstance(model, Encoder | VisionEncoder | DualEncoder):
        ranks = results == "scores" and isinstance(model, CausalLM)
        advice = f". One that ranks is exported as {RANKING} says" if ranks else ""
        raise RequestError(f"{bundle} is no encoder; it generates text: edgeformer run {bundle}{advice}")
    if model.manifest.provenance.random_weights is not None:
        note(f"note: this model's weights are random, not trained. Its {results} mean nothing.")
    return model


def open_ranker(bundle: Path, provider: Any, threads: int | None) -> "Encoder | DualEncoder":
    """Load the model in a bundle that ranks texts, or pictures by a text, as `open_encoder`."""
    from edgeformer.runtime import DualEncoder

    model = _open(bundle, provider, threads, "scores")
    return model if isinstance(model, DualEncoder) else _of_texts(model, bundle)


def _of_texts(model: Any, bundle: Path) -> "Encoder":
    """Return an encoder of texts. Raises RequestError for a model of pictures."""
    from edgeformer.runtime import Encoder

    if not isinstance(model, Encoder):
        raise RequestError(f"{bundle} reads pictures, and no texts: edgeformer run {bundle} --image PATH")
    return model


def read_texts(given: Sequence[str], name: str) -> list[str]:
    """Return the given texts, or else the lines of standard input. name: of one, for the error where there is none."""
    texts = list(given) or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not texts:
        raise RequestError(f"there is no {name}; give at least one.")
    return texts
