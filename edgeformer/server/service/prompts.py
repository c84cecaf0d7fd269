"""Prompts of requests: conversations and texts as token ids, and what kind of answer the conversation asks for."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import ChatBody, ChatMessage, NamedTool, Prompt
from edgeformer.server.schema.tool_formats import ToolFormat
from edgeformer.server.service.served import ServedModel


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation to answer. tool_format: None where no calls are to be read. forced: the answer is one call.

    json_schema: what the answer has to follow, or None.
    """

    tokens: list[int]
    tool_format: ToolFormat | None = None
    forced: bool = False
    json_schema: dict[str, Any] | None = None


def chat_prompt(served: ServedModel, body: ChatBody) -> ChatPrompt:
    """Return the prompt of a chat. Special tokens that messages or tools spell stay text.

    Raises ApiError or RequestError for what the model's chat template refuses or lacks.
    """
    messages = [as_template_message(message) for message in body.messages]
    schema = _response_schema(body)
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    if not tools and body.tool_choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice asks for a call, but there are no tools.", param="tool_choice")
    if not tools or body.tool_choice == "none":
        return ChatPrompt(_encode(served, messages, ()), json_schema=schema)
    format = served.tool_format
    if format is None:
        reason = "has no tools, or writes their calls in a format that this server cannot read"
        raise ApiError(400, f"the chat template of {served.name!r} {reason}.", code="no_tools", param="tools")
    tokens = _encode(served, messages, tools)
    if body.tool_choice in (None, "auto"):
        if schema is not None:
            message = "response_format with tools needs tool_choice 'none', or one that asks for a call."
            raise ApiError(400, message, param="response_format")
        return ChatPrompt(tokens, tool_format=format)
    functions = _callable_functions(body, tools)
    tokens += served.tokenizer.encode(format.forced_opening, add_special_tokens=False) if format.forced_opening else []
    return ChatPrompt(tokens, tool_format=format, forced=True, json_schema=format.schema(functions))


def as_template_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates read it: text for a list of parts, objects for arguments in JSON."""
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    fields: dict[str, Any] = {"role": role, "content": content if content is not None else ""}
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    return fields | {name: getattr(message, name) for name in ("name", "tool_call_id") if getattr(message, name)}


def _arguments(call: Any) -> Any:
    try:
        return json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        return call.function.arguments


def _encode(served: ServedModel, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[int]:
    return served.tokenizer.encode_chat(messages, tools=tools)


def _response_schema(body: ChatBody) -> dict[str, Any] | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None:
        message = "response_format.type is json_schema, but response_format.json_schema is missing."
        raise ApiError(400, message, param="response_format.json_schema")
    return wanted.json_schema.schema_


def _callable_functions(body: ChatBody, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the functions of which one has to be called."""
    functions = [tool["function"] for tool in tools]
    if not isinstance(body.tool_choice, NamedTool):
        return functions
    name = body.tool_choice.function.name
    named = [each for each in functions if each["name"] == name]
    if not named:
        raise ApiError(400, f"tool_choice names {name!r}, which is none of the tools.", param="tool_choice")
    return named


def text_prompts(served: ServedModel, prompt: Prompt, what: str, limit: int) -> list[list[int]]:
    """Return the token ids of each text or list of ids of a request, `limit` of them at most.

    what: the field, for errors.
    """
    items: Sequence[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    if not items:
        raise ApiError(400, f"{what} is empty; give at least one text.", param=what)
    if len(items) > limit:
        raise ApiError(400, f"{what} has {len(items)} texts; {limit} are allowed.", param=what)
    try:
        return [served.model.encode(item, what) for item in items]
    except RequestError as error:
        raise ApiError(400, str(error), param=what) from None


def check_length(served: ServedModel, tokens: Sequence[int], allowed: int | None, param: str) -> None:
    """Raise ApiError for a prompt beyond the server's limit, or beyond the model's context."""
    limit = min(served.context_length, allowed or served.context_length)
    if len(tokens) > limit:
        message = f"the prompt has {len(tokens)} tokens; this server takes {limit} of the model {served.name!r}."
        raise ApiError(400, message, code="context_length_exceeded", param=param)
