"""The head that finds the answer to a question in a text."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.heads.head import Head, HeadOutput, Sizes


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringHead(Head):
    """Logits [B, S] of the tokens of a question and its context as the first of the answer, and as its last one."""

    words: ClassVar[str] = "question-answering head"
    kind: Literal["question_answering"] = "question_answering"

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the logits of the answer's start and of its end."""
        names = ("start_logits", "end_logits")
        return tuple(HeadOutput(name=name, gives="answers", axes=("tokens",)) for name in names)

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of the projection to two numbers."""
        return 2 * (sizes.hidden + 1)

    def products(self, sizes: Sizes) -> int:
        """Return the weights of the projection."""
        return 2 * sizes.hidden
