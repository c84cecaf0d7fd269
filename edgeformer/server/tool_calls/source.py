"""The text of an answer as readers of calls see it: it comes in pieces, and a reader waits where it needs more.

A reader is a generator. It yields where the text that has come does not decide how to go on, and is resumed when more
has come, so that every division of an answer into pieces is read alike, and no character twice. Of calls that a stream
wants while they are written, a reader says when one begins, and the text of its arguments is kept as strict JSON.
"""

import json
import math
import re
import secrets
import string
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

_Result = TypeVar("_Result")

Reading = Generator[None, None, _Result]
"""A reader of calls under way. It raises NotACall for text that is not a call."""

MAX_DEPTH = 64
"""Objects and lists inside each other in arguments, at most."""

SPACE = re.compile(r"\s*")
NAME = re.compile(r"[\w.:/-]*")
BRACKETS = re.compile(r'["{}\[\]]')
STRING_END = re.compile(r'["\\]')

ID = re.compile(r"[A-Za-z0-9]{9}")
ID_LETTERS = string.ascii_letters + string.digits
ID_LENGTH = 9
"""Letters and digits of a call's id: the templates of Mistral refuse any other length."""

NAMES = ("name", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters")
IDS = ("id", "call_id", "tool_call_id")
"""Keys of the objects that calls are, of which the first one is taken that an object has."""

BLANKS = " \t\r\n"
WRITTEN = {":": ": ", ",": ", "}
"""Marks of JSON that white space follows, as `json.dumps` writes them."""


class NotACall(Exception):
    """The text is not a call in the format."""


def make_id() -> str:
    """Return the id of a new call."""
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))


def id_of(given: object) -> str:
    """Return the id that a model gave a call, if it has the length that templates want, or a new one."""
    return given if isinstance(given, str) and ID.fullmatch(given) else make_id()


@dataclass
class BegunCall:
    """A call whose name is known.

    arguments: their text so far, without the last brace: a call that breaks off is never JSON. told: letters of it that
    were passed on. place: of the call among those of the answer, once it was told of. ended: whether all was told.
    """

    name: str
    id: str = field(default_factory=make_id)
    arguments: str = ""
    told: int = 0
    place: int | None = None
    ended: bool = False

    @property
    def whole(self) -> str:
        """The text of the arguments, if nothing more comes."""
        return (self.arguments or "{") + "}"

    def add(self, key: str, value: str) -> None:
        """Add an argument, whose value is JSON."""
        self.arguments += f"{', ' if self.arguments else '{'}{json.dumps(key, ensure_ascii=False)}: {value}"

    def is_of(self, name: str, arguments: str) -> bool:
        """Return whether it has become a call of this name with these arguments."""
        try:
            return self.name == name and json.loads(self.whole) == json.loads(arguments)
        except ValueError:
            return False


class JsonPieces:
    """The text of a JSON value, piece by piece, as strict JSON.

    White space between values is that of `json.dumps`, and control characters within strings are escaped. A number, a
    word or an escape is passed on once it is complete. The last brace is left out.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._held = ""  # of an escape, or of a number or a word
        self.ended = False

    def push(self, letter: str) -> str:
        """Add a letter; return text that is certain now."""
        return self._in_text(letter) if self._in_string else self._outside(letter)

    def _in_text(self, letter: str) -> str:
        if self._held:
            self._held += letter
            if self._held[1] == "u" and len(self._held) < 6:
                return ""
            escape, self._held = self._held, ""
            return escape
        if letter == "\\":
            self._held = letter
            return ""
        if letter == '"':
            self._in_string = False
        return json.dumps(letter)[1:-1] if letter < " " else letter

    def _outside(self, letter: str) -> str:
        if letter not in '"{}[],:' and letter not in BLANKS:
            self._held += letter
            return ""
        word, self._held = self._held, ""
        if letter in BLANKS:
            return word
        self._in_string = letter == '"'
        self._depth += (letter in "{[") - (letter in "}]")
        self.ended = self._depth == 0 and letter in "}]"
        return word if self.ended else word + WRITTEN.get(letter, letter)


class CallObjects:
    """Reads names and arguments from objects that are calls, or a list of them, while they are written.

    It takes calls whose name comes before their arguments, and leaves all others to the end. names: of the functions.
    begun: to which calls are added. by_name: whether the arguments of a call may stand by its name.
    """

    def __init__(self, names: Collection[str], begun: list[BegunCall], by_name: bool = False):
        self._names = names
        self._by_name = by_name
        self._begun = begun
        self._depth = 0
        self._calls_at = 0  # depth within an object that is a call
        self._string: list[str] | None = None
        self._escaped = False
        self._key = ""  # whose value comes
        self._last = ""  # the string that was read last
        self._fields: dict[str, str] = {}
        self._pieces: JsonPieces | None = None

    def push(self, text: str) -> None:
        """Add text."""
        for letter in text:
            if self._pieces is not None:
                self._begun[-1].arguments += self._pieces.push(letter)
                if self._pieces.ended:
                    self._pieces = None
            elif self._string is not None:
                self._in_string(letter)
            else:
                self._outside(letter)

    def _in_string(self, letter: str) -> None:
        assert self._string is not None
        if letter == '"' and not self._escaped:
            self._last, self._string = "".join(self._string), None
            if self._key and self._depth == self._calls_at:
                self._fields[self._key] = self._last
                self._key = ""
            return
        self._escaped = letter == "\\" and not self._escaped
        self._string.append(letter)

    def _outside(self, letter: str) -> None:
        if letter == '"':
            self._string, self._escaped = [], False
        elif letter == ":" and self._depth == self._calls_at:
            self._key = self._last
        elif letter == "," and self._depth == self._calls_at:
            self._key = ""
        elif letter in "{[":
            self._open(letter)
        elif letter in "}]":
            self._depth -= 1

    def _open(self, letter: str) -> None:
        is_value = letter == "{" and self._depth == self._calls_at
        by_name = self._by_name and self._key in self._names
        begins = is_value and (by_name or self._key in ARGUMENTS)
        name = self._key if by_name else next((self._fields[key] for key in NAMES if key in self._fields), "")
        if begins and name in self._names:
            given = next((self._fields[key] for key in IDS if key in self._fields), None)
            self._begun.append(BegunCall(name, id_of(given)))
            self._pieces, self._key = JsonPieces(), ""
            self._fields = {}
            self._begun[-1].arguments += self._pieces.push(letter)
            return
        self._depth += 1
        if letter == "{" and (self._calls_at == 0 or self._depth == self._calls_at):
            self._calls_at, self._fields, self._key = self._depth, {}, ""


class Source:
    """The text of an answer so far.

    at: where the reader is. ended: whether no more text comes. names: functions whose calls are wanted while they are
    written, and begun: those of the block that is read.
    """

    def __init__(self, text: str = "", *, ended: bool = False, names: Collection[str] = ()):
        self.text = text
        self.at = 0
        self.ended = ended
        self.names = names
        self.begun: list[BegunCall] = []

    def begin(self, name: str, id: object = None) -> BegunCall | None:
        """Return a call that begins, if it is wanted while it is written."""
        if name not in self.names:
            return None
        self.begun.append(BegunCall(name, id_of(id)))
        return self.begun[-1]

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

    def json(self, *, is_call: bool = False, by_name: bool = False, begins: BegunCall | None = None) -> Reading[Any]:
        """Return the JSON object or list that stands here. Its end is found by decoding, not by a mark behind it.

        is_call: whether it is a call, or a list of calls, whose arguments may stand by their names with `by_name`.
        begins: the call whose arguments it is.
        """
        start = place = seen = self.at
        first = yield from self.peek()
        if first not in ("{", "["):
            raise NotACall
        watch = self._watch(is_call, by_name, begins if first == "{" else None)
        depth, in_string = 0, False
        while True:
            match = (STRING_END if in_string else BRACKETS).search(self.text, place)
            if match is None or (match.group() == "\\" and match.end() == len(self.text)):
                place = match.start() if match else len(self.text)
                if self.ended:
                    raise NotACall
                watch(self.text[seen:])
                seen = len(self.text)
                yield
                continue
            place = match.end() + (match.group() == "\\")  # what follows a backslash ends no string
            in_string ^= match.group() == '"'
            depth += 0 if in_string else (match.group() in "{[") - (match.group() in "}]")
            if depth > MAX_DEPTH:
                raise NotACall
            if depth == 0 and not in_string:
                self.at = place
                value = decode(self.text[start:place])
                watch(self.text[seen:place])
                return value

    def _watch(self, is_call: bool, by_name: bool, begins: BegunCall | None) -> Callable[[str], None]:
        """Return what text of a JSON value is shown to while it comes."""
        if begins is not None:
            pieces = JsonPieces()

            def add(text: str) -> None:
                begins.arguments += "".join(map(pieces.push, text))

            return add
        return CallObjects(self.names, self.begun, by_name).push if is_call and self.names else lambda _: None


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
