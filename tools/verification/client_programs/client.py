"""Define a client: it may be missing, reports its versions, and generates tokens for prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgeformer.config import Task

EXAMPLES = Path(__file__).parents[3] / "examples"

DECODERS: tuple[Task, ...] = ("causal-lm",)
DECODERS_AND_SEQ2SEQ: tuple[Task, ...] = ("causal-lm", "seq2seq-lm")
"""Decoders, and encoder-decoders whose source is a text."""

TIMEOUT = 180
"""Seconds that a client may take for one prompt."""

Prompts = Sequence[Sequence[int]]
Tokens = list[list[int]]


class ClientError(Exception):
    """A client failed; the message is its own."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Locations of what no package manager can find.

    Attributes:
        node_modules: of an installed examples/node or examples/browser.
        onnxruntime: a release with include/ and optionally lib/.
        chromium: a program.
        checkpoint: the Hugging Face folder that the bundle was exported from.
        pythons: interpreters of clients that do not run in this one, by client name.
    """

    node_modules: Path
    onnxruntime: Path | None = None
    chromium: str | None = None
    checkpoint: Path | None = None
    pythons: Mapping[str, Path] = field(default_factory=dict)


class Client(Protocol):
    """A program that can load bundles of some tasks."""

    tasks: tuple[Task, ...]

    def missing(self, places: Places) -> str | None:
        """Return what is missing and the line that installs it; None if nothing is."""

    def versions(self, places: Places) -> dict[str, str]:
        """Return the versions of the client's packages."""

    def generate(self, bundle: Path, prompts: Prompts, new_tokens: int, places: Places) -> Tokens:
        """Continue each prompt greedily (an encoder-decoder reads it as its source).

        The last token may be an end-of-text token. Raises ClientError.
        """
