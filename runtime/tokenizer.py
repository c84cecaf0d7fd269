"""Text to token ids and back, and chat templates: the files of a Hugging Face tokenizer, without transformers."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers

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
        config_file = folder / "tokenizer_config.json"
        self._config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
        template_file = folder / "chat_template.jinja"
        self._template = (
            template_file.read_text(encoding="utf-8") if template_file.is_file() else self._config.get("chat_template")
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return isinstance(self._template, str)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer puts around it."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

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
        if not self.has_chat_template:
            raise RequestError("this model has no chat template; give it a plain prompt.")
        # Templates come with downloaded models: they run sandboxed. The environment is that of transformers.
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        tokens = {name: _content(value) for name, value in self._config.items() if name.endswith("_token")}
        try:
            template = environment.from_string(self._template)
            return template.render(messages=list(messages), add_generation_prompt=True, **tokens)
        except TemplateError as error:
            raise RequestError(f"the chat template of this model refuses the conversation: {error}") from error


def _content(token: Any) -> Any:
    """tokenizer_config.json holds special tokens as strings or as objects."""
    return token["content"] if isinstance(token, dict) else token


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
