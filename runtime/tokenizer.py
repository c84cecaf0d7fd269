"""Text to token ids and back, and chat templates: the files of a Hugging Face tokenizer, without transformers."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2.ext
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgeformer.errors import BundleError, RequestError

Message = dict[str, str]


class Tokenizer:
    """The tokenizer of a bundle: tokenizer.json, with tokenizer_config.json and chat_template.jinja beside it."""

    def __init__(self, folder: Path):
        try:
            self.backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exceptions
            raise BundleError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
        # A bundle's limits are its model's; padding and truncation left over from training are not wanted.
        self.backend.no_padding()
        self.backend.no_truncation()
        self.config = _read_config(folder / "tokenizer_config.json")
        template_file = folder / "chat_template.jinja"
        template = self.config.get("chat_template")
        if template_file.is_file():
            template = template_file.read_text(encoding="utf-8")
        elif isinstance(template, list):  # several, by name
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        self._template: str | None = template

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer puts around it."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Token ids of two texts that belong together, and which of them each token is of: 0 or 1."""
        encoding = self.backend.encode(first, second)
        return encoding.ids, encoding.type_ids

    def special_token(self, name: str) -> str | None:
        """What tokenizer_config.json calls a token (`mask_token`), if it does."""
        token = _content(self.config.get(name))
        return token if isinstance(token, str) else None

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        return self.backend.decode(list(ids), skip_special_tokens=True)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation and the start of the assistant's turn, laid out by the model's template.

        messages: dicts with `role` (system, user, assistant) and `content`.
        """
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The conversation as the text that the model was trained on."""
        if self._template is None:
            raise RequestError("this model has no chat template; give it a plain prompt.")
        tokens = {name: _content(value) for name, value in self.config.items() if name.endswith("_token")}
        try:
            return (
                _environment()
                .from_string(self._template)
                .render(
                    # transformers defines these for every template, and drops what is None from a message.
                    messages=[
                        {key: value for key, value in message.items() if value is not None} for message in messages
                    ],
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    **{name: value for name, value in tokens.items() if isinstance(value, str)},
                )
            )
        except Exception as error:  # a template is a foreign program: it may raise anything
            raise RequestError(f"the chat template of this model refuses the conversation: {error}") from error


class _Generation(jinja2.ext.Extension):
    """{% generation %}…{% endgeneration %} marks the assistant's words for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - so jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Keep what is between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    """Where templates run: sandboxed, since they come with downloaded models. Otherwise that of transformers."""
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
    """tokenizer_config.json holds special tokens as strings or as objects."""
    return token.get("content") if isinstance(token, dict) else token


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
