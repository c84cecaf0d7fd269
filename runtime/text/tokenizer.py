"""Encode and decode text and chats with the files of a Hugging Face tokenizer, without transformers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from edgeformer.config.tokenizer_limits import token_limit
from edgeformer.documents.json_document import read_object, read_text
from edgeformer.errors import BundleError, EdgeformerError, RequestError
from edgeformer.runtime import request_values
from edgeformer.runtime.request_values import is_list, shown, text_or_ids
from edgeformer.runtime.text import chat_text, long_texts
from edgeformer.runtime.text.chat_template import ChatTemplate
from edgeformer.runtime.text.token_bytes import vocabulary_bytes
from edgeformer.runtime.text.token_texts import TokenTexts

CONFIG = "tokenizer_config.json"

Message = dict[str, str]
"""A message of a conversation: `role` (system, user, assistant) and `content`."""

Tool = Mapping[str, Any]
"""A function that a model may call, as OpenAI's API describes it: {"type": "function", "function": {"name": …}}."""

LARGEST_ID = 2**32 - 1
"""The largest id that the package `tokenizers` takes."""


class Tokenizer:
    """The tokenizer of a bundle: tokenizer.json, and if they exist tokenizer_config.json and chat_template.jinja.

    backend: the tokenizer of the package `tokenizers`. Raises BundleError for files that cannot be read.
    """

    def __init__(self, folder: Path):
        try:
            self.backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except BaseException as error:  # tokenizers raises bare Exceptions, and panics, which are BaseExceptions
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise BundleError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
        # The runtime pads, and refuses long texts; padding and truncation saved with the tokenizer are switched off.
        self.backend.no_padding()
        self.backend.no_truncation()
        path = folder / CONFIG
        self.config = read_object(path, BundleError) if path.is_file() else {}
        template = _read_template(folder / "chat_template.jinja", self.config)
        self._template = None if template is None else ChatTemplate(template)
        self._truncating: tokenizers.Tokenizer | None = None  # a copy, made when a text is to be cut

    @property
    def chat_template(self) -> str | None:
        """The chat template, a program of Jinja; None for a tokenizer without one."""
        return None if self._template is None else self._template.source

    @property
    def has_chat_template(self) -> bool:
        """Return whether the tokenizer has a chat template, so that `encode_chat` works."""
        return self._template is not None

    def encode(
        self, text: str, *, add_special_tokens: bool = True, most_tokens: int | None = None, what: str = "text"
    ) -> list[int]:
        """Return the token ids of a text, by default with the special tokens that the tokenizer adds.

        most_tokens: how many are of any use; a much longer text is not encoded to its end. what: names it in errors.
        Raises RequestError for anything but a text, and PromptLengthError for one that is too long without a doubt.
        """
        checked = request_values.text(what, text)
        with _tokenizer_errors():
            if most_tokens is not None:
                long_texts.check_length(self.backend, checked, most_tokens, what)
            return long_texts.encode_ids(self.backend, checked, add_special_tokens=add_special_tokens)

    def encoding(self, text: str, *, add_special_tokens: bool = True) -> tokenizers.Encoding:
        """Return the encoding of a text: its token ids, and the characters of the text that each stands for.

        Raises RequestError for anything but a text, and BundleError where the tokenizer cannot encode it.
        """
        checked = request_values.text("text", text)
        with _tokenizer_errors():
            return long_texts.encode(self.backend, checked, add_special_tokens=add_special_tokens)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return the token ids of a pair of texts, and their token types: 0 in the first text, 1 in the second.

        Raises RequestError for anything but texts.
        """
        first, second = request_values.text("first text", first), request_values.text("second text", second)
        with _tokenizer_errors():
            encoding = long_texts.encode(self.backend, first, second)
        return encoding.ids, encoding.type_ids

    def encode_truncated(
        self, texts: Sequence[Any], max_length: int, *, keep_end: bool | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the token ids and token types of one text or a pair, cut to `max_length` tokens.

        Special tokens are kept; of a pair the longer text is cut first. The end is cut off, or the beginning where
        tokenizer_config.json has `truncation_side` = left. keep_end: whether the beginning is cut off in any case, or
        the end.
        """
        left = self.config.get("truncation_side") == "left" if keep_end is None else keep_end
        direction = "left" if left else "right"
        copy = self._truncating  # read once: another thread may put another one in its place
        has = {} if copy is None else copy.truncation or {}
        if copy is None or (has.get("max_length"), has.get("direction")) != (max_length, direction):
            copy = self._copy()
            copy.enable_truncation(max_length, strategy="longest_first", direction=direction)
            self._truncating = copy
        with _tokenizer_errors():
            cut = [long_texts.beginning(self.backend, text, max_length, of_end=left) for text in texts]
            encoding = long_texts.encode(copy, *cut)
        return encoding.ids, encoding.type_ids

    def encode_windows(self, first: str, second: str, max_length: int, overlap: int) -> list[tokenizers.Encoding]:
        """Return the encodings of a pair of texts with as much of the second one each as `max_length` tokens take.

        overlap: tokens of the second text that neighbours share.
        """
        copy = self._copy()
        copy.enable_truncation(max_length, stride=overlap, strategy="only_second")
        with _tokenizer_errors():
            encoding = long_texts.encode(copy, first, second)
        return [encoding, *encoding.overflowing]

    def _copy(self) -> tokenizers.Tokenizer:
        """Return a copy of the backend, whose truncation can be changed. Raises BundleError."""
        try:
            return tokenizers.Tokenizer.from_str(self.backend.to_str())
        except Exception as error:  # a bare one, of a file that could be read and cannot be written again
            raise BundleError(f"the tokenizer cannot be copied, so it cuts no texts: {error}") from error

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token (`mask_token`) by tokenizer_config.json; None if it has none.

        Raises RequestError for a name that is no text.
        """
        request_values.text("name", name)
        token = _content(self.config.get(name))
        return token if isinstance(token, str) else None

    @property
    def max_length(self) -> int:
        """Return how many tokens a text may have by tokenizer_config.json; a very large number for no limit."""
        return token_limit(self.config) or LARGEST_ID

    @cached_property
    def unknown_id(self) -> int | None:
        """Return the id of the token that stands for unknown text; None for a tokenizer that has no such token.

        tokenizer_config.json names the token, or else the model in tokenizer.json does.
        """
        name = self.special_token("unk_token") or getattr(self.backend.model, "unk_token", None)
        return None if name is None else self.backend.token_to_id(name)

    @cached_property
    def vocabulary(self) -> list[bytes]:
        """The bytes of each token id, which may be a part of a character; special tokens are spelled as their names."""
        return vocabulary_bytes(self.backend)

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """The texts of special tokens, by their ids."""
        added = self.backend.get_added_tokens_decoder().items()
        return {id: token.content for id, token in added if token.special}

    @cached_property
    def token_texts(self) -> TokenTexts:
        """The text of each token by itself, for streams, which ask at every token."""
        return TokenTexts(self.backend)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; ids beyond the vocabulary are left out.

        skip_special_tokens: whether special tokens are left out, too. Raises RequestError for anything but a list of
        whole numbers from 0 on.
        """
        # A stream decodes at every step, so that plain lists of plain integers are not checked one by one.
        plain = isinstance(ids, list) and all(type(each) is int for each in ids)
        checked = list(ids) if plain else request_values.token_ids("ids", ids)
        if checked and not 0 <= min(checked) <= max(checked) <= LARGEST_ID:
            raise RequestError(f"ids has numbers outside 0 to {LARGEST_ID:,}, which are no token ids.")
        skip = request_values.flag("skip_special_tokens", skip_special_tokens)
        return self.backend.decode(checked, skip_special_tokens=skip)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Tool] = (),
        allow_special: bool = False,
        most_tokens: int | None = None,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Return the token ids of a conversation and the start of the assistant's turn, by the chat template.

        messages: dicts with `role` (system, user, assistant) and `content`. tools: the functions that the model may
        call, for templates that have the variable `tools`. allow_special: whether a message or a tool that spells a
        special token, such as `<|im_end|>`, becomes that token, and may so end its turn; otherwise it is text like any
        other. most_tokens: how many are of any use; a much longer conversation is not encoded to its end, and raises
        PromptLengthError. continue_final_message: end within the last message, as transformers does, instead of with
        the start of a turn. Raises RequestError as `render_chat`.
        """
        _check_conversation(messages, tools)
        request_values.flag("allow_special", allow_special)
        spelled = [] if allow_special else list(chat_text.special_tokens(self.backend))
        hidden = chat_text.hide(messages, spelled, tools)
        rendered = self.render_chat(hidden.messages, hidden.tools, continue_final_message=continue_final_message)
        text_or_ids("conversation", rendered)
        if most_tokens is not None:
            long_texts.check_length(self.backend, hidden.shown(rendered), most_tokens, "conversation")
        if not hidden.texts:
            return self.encode(rendered, add_special_tokens=False)
        return chat_text.encode_hidden(self.backend, rendered, hidden)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool] = (),
        *,
        continue_final_message: bool = False,
    ) -> str:
        """Return a conversation as text, by the chat template. Arguments are those of `encode_chat`.

        Raises RequestError for a model without a template, and for messages that the template refuses.
        """
        if self._template is None:
            raise RequestError("this model has no chat template; give it a plain prompt.")
        _check_conversation(messages, tools)
        tokens = {name: _content(value) for name, value in self.config.items() if name.endswith("_token")}
        request_values.flag("continue_final_message", continue_final_message)
        rendered = self._template.render(
            # transformers defines these for every template, and drops entries of a message that are None.
            **self._template.with_tools(
                [{key: value for key, value in message.items() if value is not None} for message in messages], tools
            ),
            documents=None,
            add_generation_prompt=not continue_final_message,
            **{name: value for name, value in tokens.items() if isinstance(value, str)},
        )
        return _up_to(messages[-1], rendered) if continue_final_message and messages else rendered


def _up_to(message: Mapping[str, Any], rendered: str) -> str:
    """Return a rendered conversation up to the text of its last message. Raises RequestError where it has none."""
    content = message.get("content")
    if isinstance(content, list):
        content = next((part["text"] for part in reversed(content) if "text" in part), "")
    text = content.strip() if isinstance(content, str) else ""
    place = rendered.rfind(text) if text else -1
    if place < 0:
        raise RequestError("the last message has no text that the chat template writes, so it cannot be continued.")
    whole = str(content).lstrip()  # templates may cut the white space at its end
    return rendered[: place + len(whole if rendered.startswith(whole, place) else text)]


def _check_conversation(messages: Any, tools: Any) -> None:
    """Raise RequestError for anything but a list of messages and a list of tools."""
    for name, value, content in (("messages", messages, "a role and a content"), ("tools", tools, "a type")):
        if not is_list(value) or not all(isinstance(each, Mapping) for each in value):
            raise RequestError(f"{name} is {shown(value)}; it must be a list of {name}, each with {content}.")


@contextmanager
def _tokenizer_errors() -> Iterator[None]:
    """Raise BundleError where the tokenizer cannot encode a text."""
    try:
        yield
    except BaseException as error:  # a panic, where the file names tokens that it does not have; see Tokenizer
        if isinstance(error, KeyboardInterrupt | SystemExit | EdgeformerError):
            raise
        raise BundleError(f"the tokenizer cannot encode the text: {error}. Copy tokenizer.json again.") from error


def _read_template(file: Path, config: dict[str, Any]) -> str | None:
    """Return the chat template of a file, else of tokenizer_config.json; None if there is none."""
    if file.is_file():
        return read_text(file, BundleError)
    template = config.get("chat_template")
    if isinstance(template, list):  # a list of named templates
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[-1].get("template") if named else None
    if not isinstance(template, str | None):
        raise BundleError(f"{file.parent / CONFIG} has chat_template = {shown(template)}; it must be a text.")
    return template


def _content(token: Any) -> Any:
    """Return the text of a special token, which tokenizer_config.json holds as a string or as an object."""
    return token.get("content") if isinstance(token, dict) else token
