"""The text of an answer as readers of calls see it: it comes in pieces, and a reader waits where it needs more.

A reader is a generator. It yields where the text that has come does not decide how to go on, and is resumed when more
has come, so that every division of an answer into pieces is read alike, and no character twice.
"""

import json
import math
import re
from collections.abc import Generator, Sequence
from typing import Any, NoReturn, TypeVar

_Result = TypeVar("_Result")

Reading = Generator[None, None, _Result]
"""A reader of calls under way. It raises NotACall for text that is no call."""

MAX_DEPTH = 64
"""Objects and lists inside each other in arguments, at most."""

SPACE = re.compile(r"\s*")
NAME = re.compile(r"[\w.:/-]*")
BRACKETS = re.compile(r'["{}\[\]]')
STRING_END = re.compile(r'["\\]')


class NotACall(Exception):
    """The text is not a call in the format."""


class Source:
    """The text of an answer so far. at: where the reader is. ended: whether no more text comes."""

    def __init__(self, text: str = "", *, ended: bool = False):
        self.text = text
        self.at = 0
        self.ended = ended

    def peek(self, length: int = 1) -> Reading[str]:
        """Return the next characters; fewer, where the text ends."""
        while len(self.text) - self.at < length and not self.ended:
            yield
        return self.text[self.at : self.at + length]

    def skip_space(self) -> Reading[None]:
        """Go on behind white space."""
        yield from self.take_all(SPACE)

    def take_all(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Go on behind the longest match of a pattern of repeated characters, and return it."""
        start = self.at
        while True:
            match = pattern.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or self.ended:
                return self.text[start : self.at]
            yield

    def take(self, *marks: str) -> Reading[str]:
        """Go on behind the longest of the marks that stands here, and return it; "" where none does."""
        while True:
            rest = self.text[self.at : self.at + max(map(len, marks))]
            if self.ended or not any(len(rest) < len(mark) and mark.startswith(rest) for mark in marks):
                found = max((mark for mark in marks if rest.startswith(mark)), key=len, default="")
                self.at += len(found)
                return found
            yield

    def expect(self, *marks: str) -> Reading[str]:
        """Go on behind a mark, and return it. Raises NotACall where none stands here."""
        found = yield from self.take(*marks)
        if not found:
            raise NotACall
        return found

    def name(self) -> Reading[str]:
        """Return a name of a function or of a parameter. Raises NotACall where none stands here."""
        found = yield from self.take_all(NAME)
        if not found:
            raise NotACall
        return found

    def until(self, closing: str, followers: Sequence[str] = ()) -> Reading[str]:
        """Return the text before a closing mark, and go on behind it.

        followers: marks of which one has to follow the closing one, after white space; one that the text holds for
        itself is not followed by them. The end of the text follows, too.
        """
        start = place = self.at
        while True:
            found = self.text.find(closing, place)
            if found < 0:
                place = max(start, len(self.text) - len(closing) + 1)
                if self.ended:
                    raise NotACall
                yield
                continue
            self.at = found + len(closing)
            yield from self.skip_space()
            after = self.at
            if not followers or self.at >= len(self.text) or (yield from self.take(*followers)):
                self.at = after if followers else found + len(closing)
                return self.text[start:found]
            place = found + 1

    def json(self) -> Reading[Any]:
        """Return the JSON object or list that stands here. Its end is found by decoding, not by a mark behind it."""
        start = place = self.at
        if (yield from self.peek()) not in ("{", "["):
            raise NotACall
        depth, in_string = 0, False
        while True:
            match = (STRING_END if in_string else BRACKETS).search(self.text, place)
            if match is None or (match.group() == "\\" and match.end() == len(self.text)):
                place = match.start() if match else len(self.text)
                if self.ended:
                    raise NotACall
                yield
                continue
            place = match.end() + (match.group() == "\\")  # what follows a backslash ends no string
            in_string ^= match.group() == '"'
            depth += 0 if in_string else (match.group() in "{[") - (match.group() in "}]")
            if depth > MAX_DEPTH:
                raise NotACall
            if depth == 0 and not in_string:
                self.at = place
                return decode(self.text[start:place])


def decode(text: str) -> Any:
    """Return the value of a JSON text, in which strings may have line breaks. Raises NotACall.

    Numbers that JSON does not have (NaN, or 1e999, which is infinite) are refused.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        raise NotACall from None


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number
