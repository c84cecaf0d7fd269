"""Encode and decode text and chats with the files of a Hugging Face tokenizer, without transformers."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2.ext
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgeformer.errors import BundleError, RequestError
from edgeformer.runtime import chat_text
from edgeformer.runtime.request_values import is_list, shown, text_or_ids
from edgeformer.runtime.token_bytes import vocabulary_bytes

Message = dict[str, str]
"""A message of a conversation: `role` (system, user, assistant) and `content`."""


class Tokenizer:
    """The tokenizer of a bundle: tokenizer.json, and if they exist tokenizer_config.json and chat_template.jinja.

    backend: the tokenizer of the package `tokenizers`. Raises BundleError for files that cannot be read.
    """

    def __init__(self, folder: Path):
        try:
            self.backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exceptions
            raise BundleError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
        # The runtime pads, and refuses long texts; padding and truncation saved with the tokenizer are switched off.
        self.backend.no_padding()
        self.backend.no_truncation()
        self.config = _read_config(folder / "tokenizer_config.json")
        template_file = folder / "chat_template.jinja"
        template = self.config.get("chat_template")
        if template_file.is_file():
            template = template_file.read_text(encoding="utf-8")
        elif isinstance(template, list):  # a list of named templates
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        self._template: str | None = template
        self._truncating: tokenizers.Tokenizer | None = None  # a copy, made when a text is to be cut

    @property
    def has_chat_template(self) -> bool:
        """Return whether the tokenizer has a chat template, so that `encode_chat` works."""
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, by default with the special tokens that the tokenizer adds."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return the token ids of a pair of texts, and their token types: 0 in the first text, 1 in the second."""
        encoding = self.backend.encode(first, second)
        return encoding.ids, encoding.type_ids

    def encode_truncated(self, texts: Sequence[Any], max_length: int) -> tuple[list[int], list[int]]:
        """Return the token ids and token types of one text or a pair, cut to `max_length` tokens.

        Special tokens are kept; of a pair the longer text is cut first. The end is cut off, or the beginning where
        tokenizer_config.json has `truncation_side` = left.
        """
        if self._truncating is None or (self._truncating.truncation or {}).get("max_length") != max_length:
            copy = tokenizers.Tokenizer.from_str(self.backend.to_str())
            side = "left" if self.config.get("truncation_side") == "left" else "right"
            copy.enable_truncation(max_length, strategy="longest_first", direction=side)
            self._truncating = copy
        encoding = self._truncating.encode(*texts)
        return encoding.ids, encoding.type_ids

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token (`mask_token`) by tokenizer_config.json; None if it has none."""
        token = _content(self.config.get(name))
        return token if isinstance(token, str) else None

    @cached_property
    def vocabulary(self) -> list[bytes]:
        """The bytes of each token id, which may be a part of a character; special tokens are spelled as their names."""
        return vocabulary_bytes(self.backend)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self.backend.decode(list(ids), skip_special_tokens=True)

    def encode_chat(self, messages: Sequence[Message], *, allow_special: bool = False) -> list[int]:
        """Return the token ids of a conversation and the start of the assistant's turn, by the chat template.

        messages: dicts with `role` (system, user, assistant) and `content`. allow_special: whether a message that
        spells a special token, such as `<|im_end|>`, becomes that token, and may so end its turn; otherwise it is text
        like any other. Raises RequestError as `render_chat`.
        """
        if not is_list(messages) or not all(isinstance(message, Mapping) for message in messages):
            raise RequestError(
                f"messages is {shown(messages)}; it must be a list of messages, each with a role and a content."
            )
        hidden = chat_text.hide(messages, [] if allow_special else list(chat_text.special_tokens(self.backend)))
        rendered = self.render_chat(hidden.messages)
        text_or_ids("conversation", rendered)
        if not hidden.texts:
            return self.encode(rendered, add_special_tokens=False)
        return chat_text.encode_hidden(self.backend, rendered, hidden)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """Return a conversation as text, by the chat template.

        Raises RequestError for a model without a template, and for messages that the template refuses.
        """
        if self._template is None:
            raise RequestError("this model has no chat template; give it a plain prompt.")
        tokens = {name: _content(value) for name, value in self.config.items() if name.endswith("_token")}
        try:
            return (
                _environment()
                .from_string(self._template)
                .render(
                    # transformers defines these for every template, and drops entries of a message that are None.
                    messages=[
                        {key: value for key, value in message.items() if value is not None} for message in messages
                    ],
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    **{name: value for name, value in tokens.items() if isinstance(value, str)},
                )
            )
        except Exception as error:  # a template is a program of the model, which may raise anything
            raise RequestError(f"the chat template of this model refuses the conversation: {error}") from error


class _Generation(jinja2.ext.Extension):
    """The tag {% generation %}, which marks the assistant's words for training; only its content is kept."""

    tags = {"generation"}  # noqa: RUF012 - so jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    """Return the environment of templates: that of transformers, sandboxed, because templates come with models."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise BundleError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise BundleError(f"{path} cannot be read: it must hold a JSON object.")
    return config


def _content(token: Any) -> Any:
    """Return the text of a special token, which tokenizer_config.json holds as a string or as an object."""
    return token.get("content") if isinstance(token, dict) else token


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
