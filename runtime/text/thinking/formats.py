"""How models mark what they think, and which marks a chat template or a tokenizer stands for."""

from collections.abc import Collection
from dataclasses import dataclass

CHANNEL, MESSAGE, END, START = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
RETURN, CALL = "<|return|>", "<|call|>"
"""Marks of harmony, in which gpt-oss writes messages in channels."""


@dataclass(frozen=True, kw_only=True)
class ThinkingFormat:
    """The marks of what a model thinks.

    Attributes:
        name: of the format, for the reference.
        models: models that write it, for the reference.
        opening, closing: marks before and behind what the model thinks.
        answer: marks around the answer, which are left out of it, where a model writes them.
        channels: whether every message of an answer has a channel, as in harmony.
    """

    name: str
    models: str
    opening: str
    closing: str
    answer: tuple[str, str] | None = None
    channels: bool = False

    @property
    def marks(self) -> frozenset[str]:
        """All marks, of which some may be special tokens, or begin with one."""
        own = (CHANNEL, MESSAGE, END, START, RETURN) if self.channels else ()
        return frozenset((self.opening, self.closing, *(self.answer or ()), *own))

    @property
    def forced_closing(self) -> str:
        """Text that ends thinking, where a budget is spent."""
        return f"{END}{START}assistant{CHANNEL}final{MESSAGE}" if self.channels else f"\n{self.closing}"

    def is_open_behind(self, text: str) -> bool:
        """Return whether a text ends where the model thinks."""
        return text.rstrip().endswith(self.opening.rstrip())


FORMATS = (
    ThinkingFormat(
        name="channels", models="gpt-oss", opening=f"{CHANNEL}analysis{MESSAGE}", closing=END, channels=True
    ),
    ThinkingFormat(name="gemma4", models="Gemma 4", opening="<|channel>thought\n", closing="<channel|>"),
    ThinkingFormat(
        name="command-a", models="Command A, Command-R7B", opening="<|START_THINKING|>", closing="<|END_THINKING|>",
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    ThinkingFormat(name="seed", models="Seed-OSS", opening="<seed:think>", closing="</seed:think>"),
    ThinkingFormat(name="apertus", models="Apertus", opening="<|inner_prefix|>", closing="<|inner_suffix|>"),
    ThinkingFormat(name="mistral", models="Magistral, Ministral 3", opening="[THINK]", closing="[/THINK]"),
    ThinkingFormat(
        name="granite-3.2", models="Granite 3.2", opening="Here is my thought process:",
        closing="Here is my response:",
    ),
    ThinkingFormat(name="exaone-deep", models="EXAONE Deep", opening="<thought>", closing="</thought>"),
    ThinkingFormat(name="kimi", models="Kimi VL Thinking", opening="◁think▷", closing="◁/think▷"),
    ThinkingFormat(
        name="granite", models="Granite 3.3", opening="<think>", closing="</think>",
        answer=("<response>", "</response>"),
    ),
    ThinkingFormat(
        name="hunyuan", models="Hunyuan", opening="<think>", closing="</think>", answer=("<answer>", "</answer>")
    ),
    ThinkingFormat(
        name="think", models="Qwen 3, DeepSeek R1, GLM-4.5, SmolLM3, Granite 4, Nemotron Nano, EXAONE 4, OLMo 3",
        opening="<think>", closing="</think>",
    ),
)  # fmt: skip
"""All formats. The first one whose marks a template or a tokenizer has is taken."""


def recognise(template: str, added_tokens: Collection[str]) -> ThinkingFormat | None:
    """Return the format of what a model thinks, by its chat template or its added tokens; None for a model without.

    Marks around the answer have to be in the template.
    """
    return next((each for each in FORMATS if _is_asked_for(each, template, added_tokens)), None)


def _is_asked_for(format: ThinkingFormat, template: str, added_tokens: Collection[str]) -> bool:
    if format.channels:
        return CHANNEL in template and MESSAGE in template
    if format.answer is not None and format.answer[0] not in template:
        return False
    marks = (format.opening, format.closing)
    return any(mark in template for mark in marks) or set(marks) <= set(added_tokens)
