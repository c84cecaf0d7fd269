"""Prompts that ask a model to fill in the middle of a text, with the special tokens that it was trained with."""

from collections.abc import Sequence
from dataclasses import dataclass

from edgeformer.errors import RequestError
from edgeformer.runtime.text import chat_text, long_texts
from edgeformer.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class FillInMarks:
    """The special tokens of a prompt: before the prefix, before the suffix, and before what fills the middle.

    suffix_first: whether the suffix stands before the prefix. file: the token before another file; None for none.
    """

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    file: str | None = None


KNOWN = (
    FillInMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", file="<|file_sep|>"),  # Qwen2.5-Coder
    FillInMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>", file="<file_sep>"),  # StarCoder 2, Granite
    FillInMarks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    FillInMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    FillInMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    FillInMarks("<PRE>", "<SUF>", "<MID>"),
    FillInMarks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    FillInMarks("[PREFIX]", "[SUFFIX]", None, suffix_first=True),  # Codestral
)
"""Marks of models that fill in, the most used first."""


def find_marks(tokenizer: Tokenizer) -> FillInMarks | None:
    """Return the marks that a tokenizer has, or None for a model that does not fill in."""

    def has(mark: str | None) -> bool:
        return mark is None or tokenizer.backend.token_to_id(mark) is not None

    return next((each for each in KNOWN if has(each.prefix) and has(each.suffix) and has(each.middle)), None)


def fill_in_prompt(
    tokenizer: Tokenizer,
    prefix: str,
    suffix: str,
    files: Sequence[tuple[str, str]] = (),
    most_tokens: int | None = None,
) -> list[int]:
    """Return the token ids of a prompt whose answer stands between a prefix and a suffix.

    files: names and texts of other files, for models that were trained with them. most_tokens: as of
    `Tokenizer.encode`. Special tokens that the texts spell stay text. Raises RequestError for a model that does not
    fill in.
    """
    marks = find_marks(tokenizer)
    if marks is None:
        raise RequestError("this model does not fill in the middle: its tokenizer has no tokens for it.")
    texts = [prefix, suffix, *(f"{name}\n{text}\n" for name, text in files)]
    hidden = chat_text.hide([{"texts": texts}], list(tokenizer.special_tokens.values()))
    prefix, suffix, *others = hidden.messages[0]["texts"]
    before, behind = marks.prefix + prefix, marks.suffix + suffix
    asked = (behind + before if marks.suffix_first else before + behind) + (marks.middle or "")
    has_files = marks.file is not None and tokenizer.backend.token_to_id(marks.file) is not None
    rendered = "".join(f"{marks.file}{text}" for text in others if has_files) + asked
    if not hidden.texts:
        return tokenizer.encode(rendered, most_tokens=most_tokens, what="prompt")
    if most_tokens is not None:
        long_texts.check_length(tokenizer.backend, hidden.shown(rendered), most_tokens, "prompt")
    return [*tokenizer.encode("")[:1], *tokenizer.marked.encode(rendered, hidden)]
