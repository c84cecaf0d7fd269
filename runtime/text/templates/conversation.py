"""Lay out conversations by the chat templates of a model, with messages in the forms that the template reads."""

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.runtime import request_values
from edgeformer.runtime.request_values import shown
from edgeformer.runtime.text.chat_template import ChatTemplate, one_deadline
from edgeformer.runtime.text.templates.message_forms import MessageForms, probe, with_empty_content
from edgeformer.runtime.text.templates.template_files import chosen_name
from edgeformer.runtime.text.thinking.switches import SWITCHES

OWN_VARIABLES = frozenset(("messages", "tools", "add_generation_prompt"))
"""Variables of every template, which no caller sets."""


class ChatTemplates:
    """The chat templates of a model. sources: by name. tokens: texts of the special tokens, by the names of variables.

    Attributes:
        sources: the programs, by name.
    """

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]):
        self.sources = sources
        self._tokens = tokens
        self._templates = {name: _Template(source, tokens) for name, source in sources.items()}

    def names(self, with_tools: bool) -> frozenset[str]:
        """Return the variables that the template of a conversation reads. Raises RequestError where there is none."""
        return frozenset(self._choose(with_tools).template.names)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any],
    ) -> str:
        """Return a conversation as text. Raises RequestError for one that the template refuses."""
        request_values.flag("add_generation_prompt", add_generation_prompt)
        request_values.flag("continue_final_message", continue_final_message)
        chosen = self._choose(bool(tools))
        values = {"documents": None, **self._tokens, **variables}  # transformers defines these for every template
        values["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        adapted: Sequence[Mapping[str, Any]] = [chosen.forms.adapt(message) for message in messages]
        mark, text = f"mark{secrets.token_hex(16)}", ""
        if continue_final_message:
            adapted, text = _open_last(adapted, mark)
        try:
            rendered = chosen.render(adapted, tools, values)
        except RequestError:
            if all("content" in message for message in adapted):
                raise
            rendered = chosen.render(with_empty_content(adapted), tools, values)
        return _cut(rendered, text, mark) if continue_final_message else rendered

    def _choose(self, with_tools: bool) -> "_Template":
        return self._templates[chosen_name(list(self._templates), with_tools)]


class _Template:
    """One chat template, and the forms of messages that it reads."""

    def __init__(self, source: str, tokens: Mapping[str, str]):
        self.template = ChatTemplate(source)
        self._tokens = tokens

    @cached_property
    def forms(self) -> MessageForms:
        """The forms of messages, found when they are first needed."""
        with one_deadline():
            return probe(self._render)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], values: Mapping[str, Any]
    ) -> str:
        """Return a conversation as text. values: of variables, beside the messages and the tools."""
        return self.template.render(**self.template.with_tools(messages, tools), **values)

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self.template.render(
            messages=list(messages), tools=None, documents=None, add_generation_prompt=False, **self._tokens
        )


def check_variables(given: Any, names: frozenset[str]) -> dict[str, Any]:
    """Return the variables that a caller gives a template, which have to be some that it reads. Raises RequestError."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise RequestError(f"chat_template_kwargs is {shown(given)}; it must map names to values.")
    for name in given:
        if name in OWN_VARIABLES:
            raise RequestError(f"chat_template_kwargs has {name!r}, which the conversation itself says.")
        if name not in names:
            known = ", ".join(sorted(names - OWN_VARIABLES)) or "none"
            raise RequestError(
                f"chat_template_kwargs has {name[:100]!r}, which the chat template of this model does not read; its "
                f"variables are {known}."
            )
        if name in SWITCHES and str(given[name]).lower() in ("false", "true") and not isinstance(given[name], bool):
            said = f"chat_template_kwargs has {name} = {shown(given[name])}"
            raise RequestError(f"{said}, which templates take for true; give a bool.")
    return dict(given)


def _open_last(messages: Sequence[Mapping[str, Any]], mark: str) -> tuple[list[Mapping[str, Any]], str]:
    """Return messages with a mark behind the text of the last one, as transformers does, and the text.

    Raises RequestError.
    """
    last = dict(messages[-1]) if messages else {}
    content = last.get("content")
    parts = [dict(part) for part in content] if isinstance(content, list) else [{"text": content}]
    written = next((part for part in reversed(parts) if isinstance(part.get("text"), str)), None)
    if last.get("role") != "assistant" or written is None:
        raise RequestError("continue_final_message needs a last message of the assistant that has text to continue.")
    text: str = written["text"]
    written["text"] = f"{text}{mark} "
    return [*messages[:-1], last | {"content": parts if isinstance(content, list) else written["text"]}], text


def _cut(rendered: str, text: str, mark: str) -> str:
    """Return a rendered conversation up to the end of the last message's text. Raises RequestError if it is not there.

    White space at the end of the text is left out where the template trims it.
    """
    end = rendered.rfind(mark)
    if end < 0 or text.strip() not in rendered:
        raise RequestError("the last message cannot be continued: the chat template of this model changes its text.")
    return rendered[:end] if rendered.startswith(f"{mark} ", end) else rendered[:end].rstrip()
