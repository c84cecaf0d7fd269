"""Prompts of requests: conversations and texts as token ids, and what kind of answer the conversation asks for."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.runtime import Encoder
from edgeformer.runtime.media.pictures.resample import Pixels
from edgeformer.runtime.tasks.causal_lm import SeenPrompt
from edgeformer.server.schema.answer_forms import answer_schema
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.schema.bodies import AllowedTools, ChatBody, ChatMessage, NamedTool, Prompt
from edgeformer.server.schema.json_values import problem_of
from edgeformer.server.schema.thinking import template_variables
from edgeformer.server.service.records import LOG
from edgeformer.server.service.served import ServedModel
from edgeformer.server.tool_calls.format import ToolFormat
from edgeformer.server.tool_calls.lark import arguments_schema, resolved


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation to answer.

    Attributes:
        tokens: of the prompt, with those that pictures become; the decoder's first ones, where `source` is read.
        tool_format: None where no calls are to be read.
        functions: that may be called.
        is_thinking: whether the prompt ends where the model thinks.
        grammar: what the answer has to follow, where it may be a call.
        seen: the prompt with its pictures, if it has any.
        source: the pixels of the picture that an encoder-decoder writes the text of. positions: of its encoder.
    """

    tokens: list[int]
    tool_format: ToolFormat | None = None
    functions: Sequence[dict[str, Any]] = ()
    is_thinking: bool = False
    grammar: str | None = None
    seen: SeenPrompt | None = None
    source: Pixels | None = None
    positions: int = 0

    @property
    def length(self) -> int:
        """Tokens that the model reads, or positions of its encoder."""
        return self.positions or len(self.tokens)


def chat_prompt(served: ServedModel, body: ChatBody) -> ChatPrompt:
    """Return the prompt of a chat. Special tokens that messages or tools spell stay text.

    Raises ApiError or RequestError for what the model's chat template refuses or lacks.
    """
    messages = [as_template_message(message) for message in body.messages]
    schema = answer_schema(body)
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    if not tools and body.tool_choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice asks for a call, but there are no tools.", param="tool_choice")
    functions, forced = _callable_functions(body, tools)
    format, tokenizer = served.tool_format, served.tokenizer
    has_tools = bool(tools) and body.tool_choice != "none"
    if has_tools and format is None:
        reason = "has no tools, or writes their calls in a format that this server cannot read"
        raise ApiError(400, f"the chat template of {served.name!r} {reason}.", code="no_tools", param="tools")
    _check_pointers(tools if has_tools else ())
    tokens = tokenizer.encode_chat(
        messages,
        tools=tools if has_tools else (),
        continue_final_message=body.continue_final_message is True,
        chat_template_kwargs=template_variables(tokenizer, body, has_tools),
        most_tokens=served.context_length,
    )
    is_thinking = tokenizer.opens_thinking(tokens)
    follows_grammar = forced or schema is not None or any(each.get("strict") for each in functions)
    if is_thinking and (follows_grammar or body.structured_outputs is not None):
        assert tokenizer.thinking_format is not None
        tokens += tokenizer.encode_marks(f"\n{tokenizer.thinking_format.closing}\n\n")  # the grammar is the answer's
        is_thinking = False
    if not has_tools or format is None:
        return ChatPrompt(tokens, is_thinking=is_thinking)
    if not follows_grammar:
        return ChatPrompt(tokens, format, functions, is_thinking)
    constrained = [
        each | {"parameters": arguments_schema(each.get("parameters") or {}, strict=each.get("strict") is True)}
        for each in functions
    ]
    grammar = format.grammar(constrained, served.special_marks, forced=forced, answer_schema=None if forced else schema)
    return ChatPrompt(tokens, format, functions, grammar=grammar)


def _check_pointers(tools: Sequence[dict[str, Any]]) -> None:
    """Raise ApiError for parameters that are a `$ref` to themselves, or to nothing."""
    for index, function in enumerate(tool["function"] for tool in tools):
        parameters = function.get("parameters") or {}
        if "$ref" in parameters and not resolved(parameters, parameters):
            reason = f"are a $ref to {str(parameters['$ref'])[:100]!r}, which leads to no schema of theirs"
            message = f"the parameters of the tool {function['name']!r} {reason}."
            raise ApiError(400, message, param=f"tools.{index}.function.parameters")


MEDIA = {"image_url": "image", "input_audio": "audio"}
"""Types of parts of a chat template, by those of a request."""


def as_template_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates read it, with objects for arguments in JSON."""
    role = "system" if message.role == "developer" else message.role
    content: Any = message.content
    if isinstance(content, list):
        content = [
            {"type": "text", "text": part.text} if part.type not in MEDIA else {"type": MEDIA[part.type]}
            for part in content
            if part.text or part.type in MEDIA or len(content) == 1
        ]
    fields: dict[str, Any] = {"role": role} | ({} if content is None else {"content": content})
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    return fields | {
        name: getattr(message, name) for name in ("name", "tool_call_id", "reasoning_content") if getattr(message, name)
    }


def _arguments(call: Any) -> Any:
    """Return the arguments of a call as an object; as the text that they are, if they are none."""
    try:
        arguments = json.loads(call.function.arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return call.function.arguments
    problem = problem_of(arguments)
    if problem is not None:
        message = f"the arguments of the call {call.id!r} cannot be read: it {problem}."
        raise ApiError(400, message.replace("read: it", "read; the value"), param="messages")
    if arguments in (None, [], ""):
        return {}
    return arguments if isinstance(arguments, dict) else call.function.arguments


def _callable_functions(body: ChatBody, tools: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Return the functions that may be called, and whether one has to be."""
    functions, choice = [tool["function"] for tool in tools], body.tool_choice
    if choice == "none":
        return [], False
    if isinstance(choice, AllowedTools):
        named, forced = choice.allowed_tools.tools, choice.allowed_tools.mode == "required"
    elif isinstance(choice, NamedTool):
        named, forced = [choice], True
    else:
        return functions, choice == "required"
    by_name = {each["name"]: each for each in functions}
    names = dict.fromkeys(each.function.name for each in named)
    for name in names:
        if name not in by_name:
            raise ApiError(400, f"tool_choice names {name!r}, which is none of the tools.", param="tool_choice")
    return [by_name[name] for name in names], forced


def text_prompts(
    served: ServedModel, prompt: Prompt, what: str, limit: int, truncate: int | None = None
) -> list[list[int]]:
    """Return the token ids of each text or list of ids of a request, `limit` of them at most.

    what: the field, for errors. truncate: tokens to cut each to, of a decoder the last ones, -1 for as many as fit;
    None to cut none.
    """
    items: Sequence[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    if not items:
        raise ApiError(400, f"{what} is empty; give at least one text.", param=what)
    if len(items) > limit:
        raise ApiError(400, f"{what} has {len(items)} texts; {limit} are allowed.", param=what)
    try:
        if truncate is not None:
            most = served.context_length if truncate == -1 else truncate
            items = [_truncated(served, item, min(most, served.context_length)) for item in items]
        prompts = [served.model.encode(item, what) for item in items]
    except RequestError as error:
        raise as_api_error(error, what) from None
    bos = served.model.manifest.tokens.bos
    texts = [tokens for item, tokens in zip(items, prompts, strict=True) if isinstance(item, str)]
    if bos is not None and any(tokens[:2] == [bos, bos] for tokens in texts):
        _log_once(
            f"{served.name}: a prompt begins with the text of the first token, which the tokenizer adds as well, so "
            "the model reads it twice, as with transformers. Leave it out, or send the token ids."
        )
    return prompts


@functools.cache
def _log_once(message: str) -> None:
    LOG.warning(message)


def _truncated(served: ServedModel, item: str | list[int], most: int) -> list[int]:
    """Return the tokens of a text or of a list of ids, cut to the first ones for an encoder, else to the last ones."""
    if most < 1:
        raise ApiError(400, "truncate_prompt_tokens is 0, which leaves nothing.", param="truncate_prompt_tokens")
    is_encoder = isinstance(served.model, Encoder)
    if isinstance(item, str):
        return served.tokenizer.encode_truncated([item], most, keep_end=None if is_encoder else True)[0]
    return item[:most] if is_encoder else item[-most:]


def check_length(served: ServedModel, tokens: Sequence[int], allowed: int | None, param: str) -> None:
    """Raise ApiError for a prompt beyond the server's limit, or beyond the model's context."""
    limit = min(served.context_length, allowed or served.context_length)
    if len(tokens) > limit:
        message = f"the prompt has {len(tokens)} tokens; this server takes {limit} of the model {served.name!r}."
        raise ApiError(400, message, code="context_length_exceeded", param=param)
