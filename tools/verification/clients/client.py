"""What a client is: it may be missing, has versions, and turns prompts into tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgeformer.manifest import Task

EXAMPLES = Path(__file__).parents[3] / "examples"

DECODERS: tuple[Task, ...] = ("causal-lm",)
DECODERS_AND_PAIRS: tuple[Task, ...] = ("causal-lm", "seq2seq-lm")
"""Pairs of encoder and decoder, whose source is a text."""

TIMEOUT = 180
"""Seconds that a client may take for a prompt."""

Prompts = Sequence[Sequence[int]]
Tokens = list[list[int]]


class ClientError(Exception):
    """A client did not do what was asked; says why in its own words."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things are that no package manager tells.

    node_modules: of an installed examples/node or examples/browser. onnxruntime: a release of it with include/ and
    perhaps lib/. chromium: a program. checkpoint: the Hugging Face folder that a bundle was made from. pythons:
    interpreters by the names of clients that do not run in this one.
    """

    node_modules: Path
    onnxruntime: Path | None = None
    chromium: str | None = None
    checkpoint: Path | None = None
    pythons: Mapping[str, Path] = field(default_factory=dict)


class Client(Protocol):
    """A program that can load bundles for some tasks."""

    tasks: tuple[Task, ...]

    def missing(self, places: Places) -> str | None:
        """What is not there and the line that installs it; None where everything is."""

    def versions(self, places: Places) -> dict[str, str]:
        """Of what it is made of."""

    def generate(self, bundle: Path, prompts: Prompts, new_tokens: int, places: Places) -> Tokens:
        """Continue each prompt greedily, or write what follows from it as source; the last token may be one that ends
        a text. Raises ClientError.
        """
