"""Encode and decode text and chats with the files of a Hugging Face tokenizer, without transformers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from edgeformer.config.tokenizer_limits import token_limit
from edgeformer.documents.json_document import read_object
from edgeformer.errors import BundleError, EdgeformerError, RequestError
from edgeformer.manifest.placeholders.prompt_text import PromptText
from edgeformer.runtime import request_values
from edgeformer.runtime.request_values import is_list, shown, text_or_ids
from edgeformer.runtime.text import chat_text, long_texts
from edgeformer.runtime.text.templates.conversation import ChatTemplates, check_variables
from edgeformer.runtime.text.templates.template_files import DEFAULT, TOOL_USE, read_templates
from edgeformer.runtime.text.thinking.formats import ThinkingFormat, recognise
from edgeformer.runtime.text.thinking.switches import thinking_variables
from edgeformer.runtime.text.token_bytes import vocabulary_bytes
from edgeformer.runtime.text.token_texts import TokenTexts

CONFIG = "tokenizer_config.json"

OLDER_TOKENS = "special_tokens_map.json"
"""Where older folders name special tokens. transformers reads it where CONFIG does not list the added tokens."""

Message = dict[str, Any]
"""A message of a conversation: `role` (system, user, assistant) and `content`, a text or a list of parts."""

Tool = Mapping[str, Any]
"""A function that a model may call, as OpenAI's API describes it: {"type": "function", "function": {"name": …}}."""

TAIL = 8
"""Tokens at the end of a prompt that may begin thinking."""

LARGEST_ID = 2**32 - 1
"""The largest id that the package `tokenizers` takes."""


class Tokenizer:
    """The tokenizer of a bundle: tokenizer.json, and if they exist tokenizer_config.json and chat templates.

    backend: the tokenizer of the package `tokenizers`. prompt_text: how prompts with pictures are written before they
    are encoded; None for as they are. unsaid: special tokens that no model writes, so that an assistant's message which
    spells one does not mean it. Raises BundleError for files that cannot be read.
    """

    def __init__(self, folder: Path, prompt_text: PromptText | None = None):
        self._prompt_text = prompt_text
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
        self._special_texts = _special_texts(self.config, folder)
        self.use_templates(read_templates(folder, self.config, path))
        self.unsaid: tuple[str, ...] = () if prompt_text is None else (prompt_text.spelled,)
        self._truncating: tokenizers.Tokenizer | None = None  # a copy, made when a text is to be cut

    @property
    def chat_template(self) -> str | None:
        """The chat template of conversations with tools, a program of Jinja; None for a tokenizer without one."""
        if self._templates is None:
            return None
        sources = self._templates.sources
        return sources.get(TOOL_USE) or sources.get(DEFAULT)

    @property
    def has_chat_template(self) -> bool:
        """Return whether the tokenizer has a chat template, so that `encode_chat` works."""
        return self._templates is not None

    def thinking_variables(
        self,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        others: Mapping[str, Any] | None = None,
        *,
        with_tools: bool = False,
    ) -> dict[str, Any]:
        """Return variables of the chat template that switch thinking, and the caller's others.

        enable_thinking, reasoning_effort: as in `CausalLM.chat`. Raises RequestError for what the template does not
        read; to switch thinking off changes nothing where there is none.
        """
        if enable_thinking is not None:
            request_values.flag("enable_thinking", enable_thinking)
        if reasoning_effort is not None:
            request_values.text("reasoning_effort", reasoning_effort)
        names, thinks = self.template_variables(with_tools), self.thinking_format is not None
        switches = thinking_variables(names, enable_thinking, reasoning_effort, thinks=thinks)
        return switches | (check_variables(others, names) if others is not None else {})

    def use_templates(self, sources: Mapping[str, str]) -> None:
        """Lay out conversations by these chat templates, by their names: `default`, and `tool_use` with tools."""
        self._templates = ChatTemplates(sources, self._special_texts) if sources else None

    def template_variables(self, with_tools: bool = False) -> frozenset[str]:
        """Return the names of the variables that the chat template reads, such as `enable_thinking`."""
        return frozenset() if self._templates is None else self._templates.names(with_tools)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, most_tokens: int | None = None, what: str = "text"
    ) -> list[int]:
        """Return the token ids of a text, by default with the special tokens that the tokenizer adds.

        A text that spells pictures is written as `PromptText` says first.

        most_tokens: how many are of any use; a much longer text is not encoded to its end. what: names it in errors.
        Raises RequestError for anything but a text, and PromptLengthError for one that is too long without a doubt.
        """
        checked = request_values.text(what, text)
        if self._prompt_text is not None and self._prompt_text.spelled in checked:
            checked = self._prompt_text.of(checked)
            add_special_tokens &= self._prompt_text.adds_special_tokens
        with _tokenizer_errors():
            if most_tokens is not None:
                long_texts.check_length(self.backend, checked, most_tokens, what)
            return long_texts.encode_ids(self.backend, checked, add_special_tokens=add_special_tokens)

    def encode_marks(self, text: str) -> list[int]:
        """Return the token ids of a text within a turn, in which special tokens may be spelled."""
        lead = self.encode("a", add_special_tokens=False)
        whole = self.encode(f"a{text}", add_special_tokens=False)
        return whole[len(lead) :] if whole[: len(lead)] == lead else self.encode(text, add_special_tokens=False)

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

        Raises RequestError for a name that is not a text.
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
    def thinking_format(self) -> ThinkingFormat | None:
        """The marks of what the model thinks, by its chat template and its added tokens; None for one without."""
        added = [token.content for token in self.backend.get_added_tokens_decoder().values()]
        return recognise(self.chat_template or "", added)

    def opens_thinking(self, tokens: Sequence[int]) -> bool:
        """Return whether a prompt ends where the model thinks, as it does where a template writes the opening mark."""
        last = b"".join(self.vocabulary[token] for token in tokens[-TAIL:] if token < len(self.vocabulary))
        return self.thinking_format is not None and self.thinking_format.is_open_behind(last.decode(errors="ignore"))

    @cached_property
    def vocabulary(self) -> list[bytes]:
        """The bytes of each token id, which may be a part of a character; special tokens are spelled as their names."""
        return vocabulary_bytes(self.backend)

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """The texts of the special tokens, which decoding leaves out, by their ids."""
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
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        most_tokens: int | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation and the start of the assistant's turn, by the chat template.

        Args:
            messages: dicts with `role` (system, user, assistant, tool) and `content`, a text or a list of parts.
            tools: the functions that the model may call, for templates that have the variable `tools`.
            allow_special: whether a message or a tool that spells a special token, such as `<|im_end|>`, becomes that
                token, and may so end its turn; otherwise it is text like any other. What the assistant said is the
                model's own, and keeps its tokens.
            add_generation_prompt: whether the assistant's turn begins at the end.
            continue_final_message: leave the last message, which is the assistant's, open, so that the model goes on
                with it.
            chat_template_kwargs: variables of the template, such as {"enable_thinking": False}.
            most_tokens: how many are of any use; a much longer conversation is not encoded to its end, and raises
                PromptLengthError.

        Raises RequestError as `render_chat`.
        """
        _check_conversation(messages, tools)
        request_values.flag("allow_special", allow_special)
        spelled = [] if allow_special else list(chat_text.special_tokens(self.backend))
        unsaid = () if allow_special else self.unsaid
        hidden = chat_text.hide(messages, spelled, tools, self._variables(chat_template_kwargs, tools), unsaid)
        rendered = self._chosen_templates.render(
            hidden.messages,
            hidden.tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=hidden.variables,
        )
        text_or_ids("conversation", rendered)
        if most_tokens is not None:
            long_texts.check_length(self.backend, hidden.shown(rendered), most_tokens, "conversation")
        if not hidden.texts:
            return self.encode(rendered, add_special_tokens=False)
        return self.marked.encode(rendered if self._prompt_text is None else self._prompt_text.of(rendered), hidden)

    @cached_property
    def marked(self) -> chat_text.MarkedTokenizer:
        """The copy of the tokenizer for conversations that spell special tokens."""
        return chat_text.MarkedTokenizer(self.backend)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as text, by the chat template. Arguments are those of `encode_chat`.

        Messages get the forms that the template reads: a text or a list of parts, arguments as an object or as text.
        Raises RequestError for a model without a template, for messages that the template refuses, and for variables
        that it does not read.
        """
        _check_conversation(messages, tools)
        return self._chosen_templates.render(
            messages,
            tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=self._variables(chat_template_kwargs, tools),
        )

    def _variables(self, given: Mapping[str, Any] | None, tools: Sequence[Tool]) -> dict[str, Any]:
        templates = self._chosen_templates
        return {} if given is None else check_variables(given, templates.names(bool(tools)))

    @property
    def _chosen_templates(self) -> ChatTemplates:
        if self._templates is None:
            raise RequestError("this model has no chat template; give it a plain prompt.")
        return self._templates


def _special_texts(config: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the texts of special tokens by their names, such as `eos_token`, as transformers gives templates."""
    older = folder / OLDER_TOKENS
    if "added_tokens_decoder" not in config and older.is_file():
        config = config | read_object(older, BundleError)
    texts = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


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


def _content(token: Any) -> Any:
    """Return the text of a special token, which tokenizer_config.json holds as a string or as an object."""
    return token.get("content") if isinstance(token, dict) else token
