"""The forms of messages that a chat template reads, found by rendering short conversations.

Some templates go through the parts of a message's content and write nothing of a plain text; most join texts and write
a list of parts as Python shows it. Some want the arguments of a call as an object, others as JSON text. A conversation
is brought into the forms that its template reads, so that nothing of it is lost.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from edgeformer.errors import RequestError

PROBE = "probe7zq4"
"""A word that no template writes."""

WRITTEN_OUT = re.compile(rf"""['"](text|thinking)['"]\s*:\s*['"]{PROBE}""")
"""A part as Python or JSON writes it, where a template wrote all of it in place of its text."""

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Fields of what the assistant thought. The first is the one that most templates read; gpt-oss reads the second."""

ROLES = ("user", "system", "assistant", "tool")

Render = Callable[[Sequence[Mapping[str, Any]]], str]
"""Renders messages. Raises RequestError for those that the template refuses."""


@dataclass(frozen=True)
class MessageForms:
    """The forms of messages that a template reads.

    Attributes:
        text_only: roles whose content has to be a text, not a list of parts.
        parts_only: roles whose content has to be a list of parts, not a text.
        arguments_as_text: whether the arguments of calls are JSON text, not an object.
        thinking_parts: whether what the assistant thought is a part of its content, not a field of the message.
    """

    text_only: frozenset[str] = frozenset()
    parts_only: frozenset[str] = frozenset()
    arguments_as_text: bool = False
    thinking_parts: bool = False

    def adapt(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message in the forms that the template reads, without fields that are None."""
        fields = {key: value for key, value in message.items() if value is not None}
        reasoning = next((fields[name] for name in REASONING if name in fields), None)
        if reasoning is not None:  # as transformers does
            fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
        role, content = fields.get("role"), fields.get("content")
        if self.thinking_parts and role == "assistant" and reasoning and isinstance(content, str | None):
            texts = [{"type": "text", "text": content}] if content else []
            fields["content"] = [{"type": "thinking", "thinking": reasoning}, *texts]
        elif isinstance(content, str) and role in self.parts_only:
            fields["content"] = [{"type": "text", "text": content}]
        elif is_text_parts(content) and role in self.text_only:
            fields["content"] = "".join(part["text"] for part in content)
        if self.arguments_as_text and isinstance(fields.get("tool_calls"), list):
            fields["tool_calls"] = [_with_text(call) for call in fields["tool_calls"]]
        return fields


def with_empty_content(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages that all have a content, for templates that read one of every message."""
    return [{"content": "", **message} for message in messages]


def is_text_parts(content: Any) -> TypeGuard[list[Mapping[str, Any]]]:
    """Return whether a content is a list of parts that are all text."""
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    )


def probe(render: Render) -> MessageForms:
    """Return the forms that a template reads. A role that it refuses in every form has that of users."""
    text_only, parts_only = set(), set()
    said: dict[str, Any] = {"user": "Hi", "assistant": "Yes."}
    for role in ROLES:
        reads_text, reads_parts = (
            _writes(render, _conversation(role, content, said))
            for content in (PROBE, [{"type": "text", "text": PROBE}])
        )
        as_users = not reads_text and "user" in text_only  # the template wants calls with arguments, say
        if (reads_text or as_users) and not reads_parts:
            text_only.add(role)
        if reads_parts and not reads_text:
            parts_only.add(role)
            said |= {role: [{"type": "text", "text": said[role]}]} if role in said else {}
    user = said["user"]
    return MessageForms(
        text_only=frozenset(text_only),
        parts_only=frozenset(parts_only),
        arguments_as_text=_wants_text(render, user),
        thinking_parts=_wants_thinking_parts(render, user),
    )


def _wants_text(render: Render, user: Any) -> bool:
    as_object, as_text = (
        any(_writes(render, _call(user, arguments, content)[:-1]) for content in (None, ""))
        for arguments in ({"word": PROBE}, json.dumps({"word": PROBE}))
    )
    return as_text and not as_object


def _wants_thinking_parts(render: Render, user: Any) -> bool:
    turn = {"role": "assistant", "content": "Yes."}
    asked = {"role": "user", "content": user}
    if _writes(render, [asked, turn | dict.fromkeys(REASONING, PROBE)]):
        return False
    parts = [{"type": "thinking", "thinking": PROBE}, {"type": "text", "text": "Yes."}]
    return _writes(render, [asked, turn | {"content": parts}])


def _conversation(role: str, content: Any, said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation with one message of a role, which has this content. said: what others say."""
    asked, message = {"role": "user", "content": said["user"]}, {"role": role, "content": content}
    match role:
        case "user":
            return [message]
        case "system":
            return [message, asked]
        case "assistant":
            return [asked, message, asked]
        case _:
            call = _call(said["user"], {}, said["assistant"])
            return [*call[:-1], call[-1] | message]


def _call(user: Any, arguments: Any, content: Any = None) -> list[dict[str, Any]]:
    """Return a conversation with a call, which has an id as Mistral's templates want it."""
    call = {"id": "abcdef123", "type": "function", "function": {"name": "look", "arguments": arguments}}
    turn = {"role": "assistant", "tool_calls": [call]} | ({} if content is None else {"content": content})
    answer = {"role": "tool", "tool_call_id": "abcdef123", "name": "look", "content": "Yes."}
    return [{"role": "user", "content": user}, turn, answer]


def _writes(render: Render, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the probe comes through as it is."""
    try:
        text = render(messages)
    except RequestError:
        return False
    return PROBE in text and not WRITTEN_OUT.search(text)


def _with_text(call: Any) -> Any:
    """Return a call whose arguments are JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}
