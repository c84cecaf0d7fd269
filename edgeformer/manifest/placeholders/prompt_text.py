"""How prompts with pictures are written before they are encoded, where a processor writes them in another way."""

from dataclasses import dataclass

from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class PromptText:
    """How the text of a prompt with pictures is written before it is encoded, as transformers' processor writes it.

    Tokens at its seams follow from the text around: a line break before a picture of Gemma 3 becomes one token with
    those that its processor writes there.

    Attributes:
        spelled: stands for a picture in a prompt.
        written: what takes its place, with the placeholder in it.
        after_last: written behind the last picture.
        end: written behind the prompt.
        adds_special_tokens: whether the tokenizer then adds its special tokens, where it adds any.
    """

    spelled: str
    written: str
    after_last: str = ""
    end: str = ""
    adds_special_tokens: bool = True

    def __post_init__(self) -> None:
        check(self.spelled != "", self, "spelled", "a text that stands for a picture")

    def of(self, prompt: str) -> str:
        """Return the text to encode of a prompt; one without pictures stays as it is."""
        before, spelled, behind = prompt.rpartition(self.spelled)
        if not spelled:
            return prompt
        return f"{before.replace(self.spelled, self.written)}{self.written}{self.after_last}{behind}{self.end}"
