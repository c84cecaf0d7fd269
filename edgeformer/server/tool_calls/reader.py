"""Divide an answer, piece by piece, into text and calls."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from edgeformer.server.tool_calls.format import END_THINK, THINK, Block, Call, CallPiece, ToolFormat
from edgeformer.server.tool_calls.source import BegunCall, NotACall, Reading, Source


class ToolCallReader:
    """Divides an answer into text and calls. No piece of a call is ever returned as text.

    A call that is not well formed, or whose name is none of the functions', stays text: the client sees what the model
    wrote. What stands between `<think>` and `</think>` is text, even if it is a call. White space around calls is left
    out.

    functions: that may be called, each with `name` and `parameters`. in_pieces: tell of calls while they are written,
    by `take_pieces`. Of one that breaks off, or turns out to be none, the last brace is never told, and its text is
    text.
    """

    def __init__(self, format: ToolFormat, functions: Sequence[Mapping[str, Any]] = (), *, in_pieces: bool = False):
        self._format = format
        self._tools = {each["name"]: each.get("parameters") or {} for each in functions}
        self._starts = tuple(format.starts(self._tools))
        self._marks = (*format.openings, *format.thinking, *format.silent)
        self._mark = re.compile("|".join(map(re.escape, sorted(self._marks, key=len, reverse=True))))
        self._source = Source(names=tuple(self._tools) if in_pieces else ())
        self._thinks_until = ""  # the mark that ends thinking, within it
        self._reading: Reading[Block] | None = None
        self._opening = ""  # the mark that the block which is read begins with, and where
        self._opened_at = 0
        self._at_start = True  # no answer has come yet, but white space and thinking
        self._space: str | None = ""  # white space that is left out if a call follows; None behind text
        self._has_calls = False
        self._text: list[str] = []
        self._calls: list[Call] = []
        self._pieces: list[CallPiece] = []
        self._places = 0  # calls that were told of

    def push(self, piece: str) -> tuple[str, list[Call]]:
        """Add text; return the text and the calls that are complete now."""
        source = self._source
        source.text = source.text[source.at :] + piece if self._reading is None else source.text + piece
        if self._reading is None:
            source.at = 0
        while self._advance():
            pass
        return self._taken()

    def finish(self) -> tuple[str, list[Call]]:
        """Return the rest."""
        self._source.ended = True
        text, calls = self.push("")
        if self._space and not self._has_calls:
            text, self._space = text + self._space, None
        return text, calls

    def take_pieces(self) -> list[CallPiece]:
        """Return the pieces of calls that have come, in their order."""
        self._tell()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _tell(self) -> None:
        """Make pieces of what is new of calls that are being written. One that another one follows has ended."""
        for each, following in zip_longest(self._source.begun, self._source.begun[1:]):
            self._tell_of(each, each.whole if following is not None else each.arguments, ends=following is not None)

    def _tell_of(self, each: BegunCall, text: str, *, ends: bool) -> None:
        if each.ended or (len(text) == each.told and not ends):
            return
        if each.place is None:
            each.place, self._places = self._places, self._places + 1
        self._pieces.append(CallPiece(each.place, each.id, each.name, text[each.told :], each.told == 0, ends))
        each.told, each.ended = len(text), ends

    def _taken(self) -> tuple[str, list[Call]]:
        text, calls = "".join(self._text), self._calls
        self._text, self._calls = [], []
        return text, calls

    def _advance(self) -> bool:
        """Read on; return False where more text is needed."""
        if self._reading is not None:
            return self._read_block()
        if self._thinks_until:
            return self._read_thinking()
        if self._at_start and self._starts and not self._open_at_start():
            return False
        return self._reading is not None or self._find_mark()

    def _read_block(self) -> bool:
        assert self._reading is not None
        try:
            next(self._reading)
        except StopIteration as stop:
            block: Block = stop.value
            if all(each.name in self._tools for each in block.calls):
                self._reading = None
                self._take(replace(block, calls=self._as_told(block.calls)))
                return True
        except NotACall:
            pass
        else:
            return False
        self._reading = None
        self._tell()
        self._source.begun = []
        self._source.at = self._opened_at + len(self._opening)
        self._write(self._opening)
        return True

    def _as_told(self, calls: Sequence[Call]) -> list[Call]:
        """Return calls of a block with the ids that were told of, and make pieces of what was not told of them."""
        begun, self._source.begun = self._source.begun, []
        ended = []
        for call in calls:
            each = next((each for each in begun if each.is_of(call.name, call.arguments)), None)
            if each is None:  # its name came behind its arguments
                self._tell_of(BegunCall(call.name, call.id), call.arguments, ends=True)
            else:
                begun.remove(each)
                self._tell_of(each, each.whole, ends=True)
                call = replace(call, id=each.id)
            ended.append(call)
        return ended

    def _take(self, block: Block) -> None:
        self._calls += block.calls
        if block.calls:
            self._has_calls, self._space, self._at_start = True, "", False
        if block.thinks_until:
            self._begin_thinking(block.thinks_until)

    def _read_thinking(self) -> bool:
        """Pass text on up to the mark that ends thinking."""
        found = self._source.text.find(self._thinks_until, self._source.at)
        if found < 0:
            return self._pass_on(self._possible_mark((self._thinks_until,)), thought=True)
        self._write(self._source.text[self._source.at : found] + END_THINK, thought=True)
        self._source.at = found + len(self._thinks_until)
        self._thinks_until, self._space = "", ""
        return True

    def _open_at_start(self) -> bool:
        """Begin a block where the answer begins, if it begins like one; return False where more text is needed."""
        text = self._source.text[self._source.at :]
        start = text.lstrip()
        if not self._source.ended and any(len(start) < len(each) and each.startswith(start) for each in self._starts):
            return False
        opening = max((each for each in self._starts if start.startswith(each)), key=len, default="")
        if opening:
            self._open(opening, self._source.at + len(text) - len(start))
        return True

    def _find_mark(self) -> bool:
        """Pass text on up to a mark, and do what it says; return False where more text is needed."""
        source = self._source
        match = self._mark.search(source.text, source.at)
        if match is None:
            return self._pass_on(self._possible_mark(self._marks))
        if not source.ended and any(
            mark != match.group() and mark.startswith(source.text[match.start() :]) for mark in self._marks
        ):
            return self._pass_on(match.start())  # a longer mark may come
        if match.group() in self._format.openings:
            self._open(match.group(), match.start())
            return True
        self._write(source.text[source.at : match.start()])
        source.at = match.end()
        if match.group() in self._format.thinking:
            self._begin_thinking(self._format.thinking[match.group()])
        return True

    def _open(self, opening: str, place: int) -> None:
        self._write(self._source.text[self._source.at : place])
        self._source.at = self._opened_at = place
        self._opening = opening
        self._reading = self._format.read(self._source, self._tools)

    def _begin_thinking(self, until: str) -> None:
        self._write(THINK, thought=True)
        self._thinks_until = until

    def _pass_on(self, end: int, *, thought: bool = False) -> bool:
        """Pass on text before a place; return False, as more is needed."""
        end = len(self._source.text) if self._source.ended else end
        text, self._source.at = self._source.text[self._source.at : end], end
        if not (self._source.ended and self._is_cut_mark(text)):
            self._write(text, thought=thought)
        return False

    def _is_cut_mark(self, text: str) -> bool:
        """Return whether an answer breaks off within a mark behind a call, perhaps behind a fence."""
        rest = text.strip().lstrip("`")
        return self._has_calls and self._space is not None and any(mark.startswith(rest) for mark in self._format.marks)

    def _possible_mark(self, marks: Sequence[str]) -> int:
        """Return the place from which the text may be the beginning of a mark, or its end."""
        text = self._source.text
        for place in range(max(self._source.at, len(text) + 1 - max(map(len, marks))), len(text)):
            if any(mark.startswith(text[place:]) for mark in marks):
                return place
        return len(text)

    def _write(self, text: str, *, thought: bool = False) -> None:
        """Return text to the caller. White space waits for what follows, where it may be left out."""
        self._at_start = self._at_start and (thought or not text.strip())
        if self._space is not None:
            text, self._space = self._space + text, None
            if not text.strip():
                self._space = text
                return
        self._text.append(text)
