r"""Divide an answer, piece by piece, into what the model thinks and what it says.

    <think>345 + 278 …</think>\n\nIt is 623.      →      "345 + 278 …" and "It is 623."

Marks within the answer, as of a model that explains how it thinks, stay text: only what stands before the answer is
taken for thinking. In channels (`gpt-oss`) each message says what it is.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from edgeformer.runtime.text.streaming import TextStream
from edgeformer.runtime.text.thinking.formats import CALL, CHANNEL, END, MESSAGE, RETURN, START, ThinkingFormat
from edgeformer.runtime.text.tokenizer import Tokenizer

GAP = "\n\n"
"""Text between thoughts that have marks of their own."""


class Divided(NamedTuple):
    """New text: what the model thinks, and what it says."""

    reasoning: str = ""
    text: str = ""


class ThinkingReader:
    """Divides the text of an answer.

    Attributes:
        thinking: whether what comes next is thought.

    Args:
        is_open: whether the prompt ends where the model thinks.
    """

    def __init__(self, format: ThinkingFormat, *, is_open: bool = False):
        self._format = format
        self.thinking = is_open
        self._before_answer = True
        self._thought = is_open  # whether there were marks of thinking
        self._has_thought = False  # whether there was text between them
        self._held = ""  # text that may be a part of a mark, or white space that may be left out
        self._first = True  # of what is thought, white space is left out at the beginning
        self._gap = ""  # between thoughts that have marks of their own
        self._closing = ""  # the mark that ends the answer

    def push(self, piece: str) -> Divided:
        """Add text; return what is certain now."""
        return self._divide(piece, ended=False)

    def finish(self) -> Divided:
        """Return the rest."""
        return self._divide("", ended=True)

    def _divide(self, piece: str, *, ended: bool) -> Divided:
        reasoning, text = [], []
        rest, self._held = self._held + piece, ""
        while rest:
            if self.thinking:
                thought, rest = self._read_thought(rest, ended)
                reasoning.append(thought)
            elif self._before_answer:
                said, rest = self._read_start(rest, ended)
                text.append(said)
            else:
                said, rest = self._read_answer(rest, ended)
                text.append(said)
        return Divided("".join(reasoning), "".join(text))

    def _read_thought(self, text: str, ended: bool) -> tuple[str, str]:
        """Return what is thought, and the text behind it."""
        thought, closing, rest = text.partition(self._format.closing)
        if closing:
            self.thinking, self._thought = False, True
            thought = thought.rstrip()
            self._has_thought |= not self._first or bool(thought)
        else:
            end = len(thought) if ended else possible_mark(thought, (self._format.closing,))
            end = len(thought[:end].rstrip())  # a closing mark may follow white space
            thought, self._held = thought[:end], "" if ended else thought[end:]
        if self._first:
            thought = thought.lstrip()
            if thought:
                thought, self._first = self._gap + thought, False
        return thought, rest

    def _read_start(self, text: str, ended: bool) -> tuple[str, str]:
        """Return nothing, or white space before an answer, and the text from a mark or the answer on."""
        start = text.lstrip()
        marks = [self._format.opening, self._format.closing]
        if self._format.answer is not None:
            marks.append(self._format.answer[0])
        if not ended and any(mark.startswith(start) and mark != start for mark in marks):
            self._held = text
            return "", ""
        found = next((mark for mark in marks if start.startswith(mark)), "")
        if found == self._format.opening:
            self.thinking, self._first, self._gap = True, True, GAP if self._has_thought else ""
            return "", start[len(found) :]
        if found == self._format.closing:  # of thinking that the prompt closed already
            self._thought = True
            return "", start[len(found) :]
        self._before_answer = False
        if found and self._format.answer is not None:
            self._closing = self._format.answer[1]
            return "", start[len(found) :].lstrip()
        return "", start if self._thought else text

    def _read_answer(self, text: str, ended: bool) -> tuple[str, str]:
        """Return the answer's text without the mark that ends it."""
        if not self._closing:
            return text, ""
        place = text.find(self._closing)
        if place >= 0 and not text[place + len(self._closing) :].strip():
            end = len(text[:place].rstrip())
            self._held = "" if ended else text[end:]
            return text[:end], ""
        end = len(text) if ended else len(text[: possible_mark(text, (self._closing,))].rstrip())
        self._held = text[end:]
        return text[:end], ""


HEADER_MARKS = (START, CHANNEL)
ENDS = (END, RETURN, CALL, START, CHANNEL)
RECIPIENT = re.compile(r"\bto=")


class ChannelReader(ThinkingReader):
    """Divides messages in channels. Headers are left out; messages to a tool stay whole, for a reader of calls."""

    def __init__(self, format: ThinkingFormat, *, is_open: bool = False):
        super().__init__(format, is_open=is_open)
        self._for_tool = False
        self._behind_header = is_open

    def _divide(self, piece: str, *, ended: bool) -> Divided:
        reasoning: list[str] = []
        text: list[str] = []
        rest, self._held = self._held + piece, ""
        while rest:
            if not self._behind_header:
                said, rest = self._read_header(rest, ended)
                text.append(said)
                continue
            body, mark, rest = self._read_body(rest, ended)
            if self._for_tool:
                text.append(body + mark)
            else:
                (reasoning if self.thinking else text).append(body)
            if mark:
                rest = mark + rest if mark in HEADER_MARKS else rest
                self.thinking = self._behind_header = self._for_tool = False
        return Divided("".join(reasoning), "".join(text))

    def _read_header(self, text: str, ended: bool) -> tuple[str, str]:
        """Return what of a header is passed on, and the text behind it."""
        header, mark, rest = text.partition(MESSAGE)
        begins = header.lstrip()
        if not mark and not ended and (not begins or self._may_be_header(begins)):
            self._held = text
            return "", ""
        self._behind_header = True
        if not mark or not self._may_be_header(begins):  # an answer without a channel
            return "", text
        if RECIPIENT.search(header):
            self._for_tool = True
            return header + mark, rest
        self.thinking = f"{CHANNEL}analysis" in header
        return "", rest

    @staticmethod
    def _may_be_header(text: str) -> bool:
        return any(text.startswith(mark) or mark.startswith(text) for mark in (*HEADER_MARKS, "to="))

    def _read_body(self, text: str, ended: bool) -> tuple[str, str, str]:
        """Return the text of a message, the mark behind it, and the text behind the mark."""
        ends = ENDS[:3] if self._for_tool else ENDS
        places = {place: mark for mark in ends if (place := text.find(mark)) >= 0}
        if places:
            place = min(places)
            return text[:place], places[place], text[place + len(places[place]) :]
        end = len(text) if ended else possible_mark(text, ends)
        self._held = text[end:]
        return text[:end], "", ""


def possible_mark(text: str, marks: Iterable[str]) -> int:
    """Return the place from which a text may be the beginning of a mark, or its end."""
    marks = tuple(marks)
    for place in range(max(0, len(text) + 1 - max(map(len, marks))), len(text)):
        if any(mark.startswith(text[place:]) for mark in marks):
            return place
    return len(text)


class ThinkingStream:
    """Divides the tokens of an answer into what the model thinks and what it says.

    Attributes:
        reasoning_tokens: tokens of what was thought so far, its marks included.

    Args:
        format: None for a model that does not think: all is the answer.
        stop: strings that end the answer.
        spelled: texts of further special tokens that are shown, by their ids.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        format: ThinkingFormat | None,
        *,
        is_open: bool = False,
        stop: Iterable[str] = (),
        spelled: Mapping[int, str] | None = None,
    ):
        self._reader = None
        marks = dict(spelled or {})
        if format is not None:
            kind = ChannelReader if format.channels else ThinkingReader
            self._reader = kind(format, is_open=is_open)
            marks |= {id: text for id, text in tokenizer.special_tokens.items() if any(text in m for m in format.marks)}
        self._text = TextStream(tokenizer, tuple(stop), marks)
        self.reasoning_tokens = 0

    @property
    def thinking(self) -> bool:
        """Whether what comes next is thought."""
        return self._reader is not None and self._reader.thinking

    @property
    def is_incomplete(self) -> bool:
        """Whether the last token ended within a character."""
        return self._text.is_incomplete

    def push(self, token: int) -> Divided:
        """Add the next token; return new text."""
        return self._divided(self._text.push(token))

    def finish(self) -> Divided:
        """Return the rest."""
        last = self._divided(self._text.flush(), counted=False)
        if self._reader is None:
            return last
        rest = self._reader.finish()
        return Divided(last.reasoning + rest.reasoning, last.text + rest.text)

    def _divided(self, text: str, counted: bool = True) -> Divided:
        if self._reader is None:
            return Divided("", text)
        before = self._reader.thinking
        divided = self._reader.push(text)
        self.reasoning_tokens += counted and (before or self._reader.thinking)
        return divided


def new_thinking(
    tokenizer: Tokenizer, prompt: Sequence[int], stop: Iterable[str] = (), spelled: Mapping[int, str] | None = None
) -> ThinkingStream:
    """Return what divides the tokens of the answer to a prompt; the arguments are those of `ThinkingStream`."""
    is_open = tokenizer.opens_thinking(prompt)
    return ThinkingStream(tokenizer, tokenizer.thinking_format, is_open=is_open, stop=stop, spelled=spelled)
