"""Keep the special tokens of a chat template apart from what the messages spell.

A template writes `<|im_end|>` where a turn ends; a user who writes the same characters must not end a turn. The special
tokens inside the messages of users, systems and tools are hidden while the template runs. What the template wrote is
then marked by strings that nobody can guess, as tokens of a copy of the tokenizer, and that copy takes the spelled ones
for plain text.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tokenizers

from edgeformer.runtime.text import long_texts
from edgeformer.runtime.text.templates.message_forms import is_text_parts

MARK = re.compile("mark[0-9a-f]{32}")
"""Strings in the place of special tokens: letters and digits, which filters such as `tojson` leave alone."""


@dataclass(frozen=True)
class HiddenTokens:
    """A conversation whose special tokens are hidden. texts: what was hidden, by the string in its place."""

    messages: list[Mapping[str, Any]]
    texts: dict[str, str]
    tools: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)

    def shown(self, text: str) -> str:
        """Return a rendered text with what was hidden."""
        return MARK.sub(lambda match: self.texts.get(match.group(), match.group()), text)


def special_tokens(backend: tokenizers.Tokenizer) -> dict[str, tokenizers.AddedToken]:
    """Return the special tokens of a tokenizer by what they look like in a text."""
    return {token.content: token for token in backend.get_added_tokens_decoder().values() if token.special}


def hide(
    messages: Sequence[Mapping[str, Any]],
    spelled: Sequence[str],
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
    unsaid: Sequence[str] = (),
) -> HiddenTokens:
    """Hide every occurrence of the strings `spelled`, in any field of the messages, tools and variables of a template.

    What the assistant said stays as it is: the model wrote these tokens, and templates look for them, as for `</think>`
    where they leave out what was thought in earlier turns. unsaid: tokens that no model writes, such as a picture's
    placeholder, which are hidden in its messages, too.
    """
    texts: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        mark = _mark()
        texts[mark] = match.group()
        return mark

    def hidden(value: Any, pattern: re.Pattern[str] | None) -> Any:
        if pattern is None:
            return value
        if isinstance(value, str):
            return pattern.sub(replaced, value)
        if isinstance(value, Mapping):
            return {key: hidden(each, pattern) for key, each in value.items()}
        if is_text_parts(value):
            value = _whole(value, pattern)
        return [hidden(each, pattern) for each in value] if isinstance(value, list | tuple) else value

    given, said = (_pattern(each) if each else None for each in (spelled, unsaid))
    shown = [hidden(message, said if message.get("role") == "assistant" else given) for message in messages]
    return HiddenTokens(shown, texts, [hidden(tool, given) for tool in tools], hidden(variables or {}, given))


def _whole(parts: Sequence[Mapping[str, Any]], pattern: re.Pattern[str]) -> Sequence[Mapping[str, Any]]:
    """Return parts of text, as a single one where neighbours spell a special token together, trimmed or not."""
    texts = [part["text"] for part in parts]
    apart = sum(len(pattern.findall(text)) for text in texts)
    spelled = (len(pattern.findall("".join(each))) for each in (texts, [text.strip() for text in texts]))
    return parts if all(count <= apart for count in spelled) else [{"type": "text", "text": "".join(texts)}]


class MarkedTokenizer:
    """A copy of a tokenizer that takes marks for the special tokens of a template, and spelled ones for plain text.

    It is made once for a tokenizer, which takes as long as reading its file. Nobody sees its marks.
    """

    def __init__(self, backend: tokenizers.Tokenizer):
        special = special_tokens(backend)
        self._copy = tokenizers.Tokenizer.from_str(backend.to_str())
        self._copy.encode_special_tokens = True
        self._gap, self._marks = _mark(), {content: _mark() for content in special}
        self._copy.add_tokens([_plain_token(self._marks[content], like=token) for content, token in special.items()])
        self._copy.add_tokens([tokenizers.AddedToken(self._gap, normalized=False)])
        self._special = _pattern(list(special))
        self._special_ids = {backend.token_to_id(content) for content in special}
        self._meant: dict[int | None, int | None] = {self._copy.token_to_id(self._gap): None}
        self._meant |= {self._copy.token_to_id(mark): backend.token_to_id(each) for each, mark in self._marks.items()}

    def encode(self, rendered: str, hidden: HiddenTokens) -> list[int]:
        """Return the token ids of a rendered conversation, in which only what the template wrote is a special token."""
        ids = self._encode(rendered, hidden, split=False)
        written = len(self._special.findall(rendered))
        # A Unigram model has its special tokens among its pieces: what spells one is divided, then.
        found = sum(id in self._special_ids for id in ids)
        return ids if found == written else self._encode(rendered, hidden, split=True)

    def _encode(self, rendered: str, hidden: HiddenTokens, *, split: bool) -> list[int]:
        """Encode with a mark for every special token of the template; split: divide spelled ones after a character."""
        text = self._special.sub(lambda match: self._marks[match.group()], rendered)
        divided = {mark: spelled[:1] + self._gap + spelled[1:] for mark, spelled in hidden.texts.items()}
        text = replace(hidden, texts=divided if split else hidden.texts).shown(text)
        ids = [self._meant.get(id, id) for id in long_texts.encode_ids(self._copy, text, add_special_tokens=False)]
        return [id for id in ids if id is not None]


def _plain_token(mark: str, like: tokenizers.AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        mark, single_word=like.single_word, lstrip=like.lstrip, rstrip=like.rstrip, normalized=False
    )


def _pattern(spelled: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern of any of these strings, the longest first."""
    return re.compile("|".join(re.escape(each) for each in sorted(spelled, key=len, reverse=True)) or "(?!)")


def _mark() -> str:
    """Return a string that no message holds."""
    return f"mark{secrets.token_hex(16)}"
