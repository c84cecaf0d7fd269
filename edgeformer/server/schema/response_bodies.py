"""The request of /v1/responses, and the chat that it stands for."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import (
    TEXT_TYPES,
    AllowedFunctions,
    AllowedTools,
    CalledFunction,
    ChatBody,
    ChatMessage,
    Function,
    InputAudio,
    JsonSchema,
    ModelBody,
    NamedFunction,
    NamedTool,
    Part,
    PictureUrl,
    ResponseFormat,
    StreamOptions,
    ToolCall,
    ToolDefinition,
    with_options,
)
from edgeformer.server.schema.body import Body
from edgeformer.server.schema.custom_tools import INPUT, TOOL_TYPES, CustomTool, NamedResponseTool, ResponseTool
from edgeformer.server.schema.fields import PARTS
from edgeformer.server.schema.json_values import Schema
from edgeformer.server.schema.thinking import ThinkingFields


class Returned(Body):
    """A part of a conversation. Clients send back what they were given, whose other fields change nothing."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(Returned):
    """A part of a text."""

    TYPES: ClassVar[tuple[Sequence[str], str]] = (
        (*TEXT_TYPES, "reasoning_text", "summary_text"),
        "texts have parts that are texts",
    )

    type: str = "input_text"
    text: str = ""
    refusal: str | None = None


MEDIA_PARTS = ("input_image", "input_audio")
"""Types of parts that are pictures and recordings."""


class ContentPart(TextPart):
    """A part of a message's content: a text, a picture for models that see, or a recording for models that hear."""

    TYPES = (
        (*TextPart.TYPES[0], *MEDIA_PARTS),
        "messages have parts that are texts, pictures (input_image) or recordings (input_audio)",
    )

    image_url: str | None = None
    input_audio: InputAudio | None = None
    detail: Literal["auto", "low", "high"] | None = None


CALLS = ("function_call", "custom_tool_call")
ITEMS = ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning")
"""Types of items."""


STORED = "item_reference"
"""The type of an item that a server has stored, as the AI SDK sends it where `store` is true."""


class Item(Returned):
    """A message, what the model thought, a call of a tool, or what the tool returned."""

    TYPES = ITEMS, f"a conversation has items of these types: {', '.join(ITEMS)}"

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None
    summary: list[TextPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[TextPart] | None = None


class AllowedResponseTools(Body):
    """The tools that may be called. mode: whether one of them has to be."""

    TYPES = ("allowed_tools",), TOOL_TYPES[1]

    type: str
    mode: Literal["auto", "required"]
    tools: list[NamedResponseTool] = Field(min_length=1)


class TextFormat(Body):
    """The form of the answer: any text, any JSON object, or what follows a schema. strict: every keyword of it."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    """Options of the text of an answer."""

    FIELDS = PARTS["text"]

    format: TextFormat | None = None


NEVER_INCLUDED = ("file_search", "web_search", "computer", "code_interpreter", "message.input_image", "reasoning")
"""Beginnings of values of `include` that are parts of items that no answer has."""

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log-probabilities of an answer's tokens."""


def _check_included(values: list[str]) -> list[str]:
    for value in values:
        if value != LOGPROBS and not value.startswith(NEVER_INCLUDED):
            raise PydanticCustomError("never_included", "has {shown}, which no answer has", {"shown": repr(value[:60])})
    return values


OPTION_NAMES = ("temperature", "top_p")
"""Options of generation that /v1/responses has, by the same names."""

if TYPE_CHECKING:
    OptionsBody = ModelBody
else:
    OptionsBody = with_options(*OPTION_NAMES)


class ResponseBody(ThinkingFields, OptionsBody):
    """The request of /v1/responses."""

    input: str | list[Item] = Field(min_length=1)
    instructions: str | None = None
    include: Annotated[list[str], AfterValidator(_check_included)] | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[ResponseTool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedResponseTool | AllowedResponseTools | None = None
    parallel_tool_calls: bool | None = None

    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields as they are. Raises ApiError for items that are stored nowhere."""
        for place, item in enumerate(data["input"] if isinstance(data.get("input"), list) else ()):
            if isinstance(item, dict) and item.get("type") == STORED:
                where = f"input.{place}.type"
                reason = "nothing is stored, so send the item itself (with the AI SDK: store false)"
                raise ApiError(400, f"{where} is {STORED!r}; {reason}.", code="invalid_type", param=where)
        return super().renamed(data)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text of an answer comes with log-probabilities of its tokens."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def as_chat(self) -> ChatBody:
        """Return the same request as one of /v1/chat/completions. Raises ApiError for items that lack a field."""
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": _messages(self),
            "max_completion_tokens": self.max_output_tokens,
            "stream": self.stream,
            "response_format": _response_format(self.text),
            "tools": [
                ToolDefinition(
                    type="function",
                    function=tool.as_function()
                    if isinstance(tool, CustomTool)
                    else Function(**tool.model_dump(exclude={"type"})),
                )
                for tool in self.tools or ()
            ],
            "tool_choice": _tool_choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "logprobs": self.wants_logprobs,
            "top_logprobs": self.top_logprobs,
        }
        fields |= {name: getattr(self, name) for name in ThinkingFields.model_fields}
        return ChatBody(**fields | {name: getattr(self, name) for name in OPTION_NAMES})


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, NamedResponseTool):
        return NamedTool(type="function", function=NamedFunction(name=choice.name))
    if isinstance(choice, AllowedResponseTools):
        allowed = AllowedFunctions(mode=choice.mode, tools=[_tool_choice(tool) for tool in choice.tools])
        return AllowedTools(type="allowed_tools", allowed_tools=allowed)
    return choice


def _messages(body: ResponseBody) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    if body.instructions is not None:
        messages.append(ChatMessage(role="system", content=body.instructions))
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    thought = ""  # by the assistant, before the item that follows
    for place, item in enumerate(items):
        where = f"input.{place}"
        if item.type == "reasoning":
            thought += _text(item.content) or _text(item.summary)
            continue
        reasoning, thought = thought or None, ""
        if item.type == "message":
            _require(where, role=item.role, content=item.content)
            assert item.role is not None
            reasoning = reasoning if item.role == "assistant" else None
            content = _content(item.content, f"{where}.content")
            messages.append(ChatMessage(role=item.role, content=content, reasoning_content=reasoning))
        elif item.type in CALLS:
            text = {"input": item.input} if item.type == "custom_tool_call" else {"arguments": item.arguments}
            _require(where, call_id=item.call_id, name=item.name, **text)
            messages = _with_call(messages, item, reasoning)
        else:
            _require(where, call_id=item.call_id, output=item.output)
            messages.append(ChatMessage(role="tool", content=_text(item.output), tool_call_id=item.call_id))
    if not messages:
        raise ApiError(400, "input has no message to answer.", code="invalid_type", param="input")
    return messages


def _with_call(messages: list[ChatMessage], item: Item, reasoning: str | None) -> list[ChatMessage]:
    """Return messages with a further call; calls and text of one turn are one message. reasoning: before the call."""
    custom = item.type == "custom_tool_call"
    arguments = json.dumps({INPUT: item.input}, ensure_ascii=False) if custom else str(item.arguments)
    call = ToolCall(id=str(item.call_id), function=CalledFunction(name=str(item.name), arguments=arguments))
    if messages and messages[-1].role == "assistant" and reasoning is None:
        *messages, last = messages
        return [*messages, last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]})]
    return [*messages, ChatMessage(role="assistant", tool_calls=[call], reasoning_content=reasoning)]


def _content(content: str | list[ContentPart] | None, where: str) -> str | list[Part]:
    """Return the text of a message, or its parts where there are pictures or recordings. Raises ApiError as `_part`."""
    if isinstance(content, str) or all(part.type not in MEDIA_PARTS for part in content or ()):
        return _text(content)
    return [_part(part, f"{where}.{place}") for place, part in enumerate(content or ())]


def _part(part: ContentPart, where: str) -> Part:
    """Return a part of a message as one of a chat. Raises ApiError for a picture or a recording without its data."""
    if part.type == "input_image" and part.image_url is not None:
        picture = PictureUrl(url=part.image_url, detail=part.detail)
        return Part(type="image_url", image_url=picture.at(f"{where}.image_url"))
    if part.type == "input_audio" and part.input_audio is not None:
        return Part(type="input_audio", input_audio=part.input_audio.at(f"{where}.input_audio.data"))
    if part.type not in MEDIA_PARTS:
        return Part(text=_text([part]))
    field, what = ("image_url", "pictures") if part.type == "input_image" else ("input_audio", "recordings")
    message = f"{where}.{field} is missing; {what} are in the request, and no files are stored."
    raise ApiError(400, message, code="invalid_type", param=f"{where}.{field}")


def _text(content: str | Sequence[TextPart] | None) -> str:
    return content if isinstance(content, str) else "".join(part.text or part.refusal or "" for part in content or ())


def _require(where: str, **fields: object) -> None:
    for name, value in fields.items():
        if value is None:
            raise ApiError(400, f"{where}.{name}: Field required.", code="invalid_type", param=f"{where}.{name}")


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    wanted = None if text is None else text.format
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        return ResponseFormat(type=wanted.type)
    if wanted.schema_ is None:
        message = "text.format.type is json_schema, but text.format.schema is missing."
        raise ApiError(400, message, param="text.format.schema")
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=wanted.schema_, strict=wanted.strict))
