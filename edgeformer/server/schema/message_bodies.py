"""The request of /v1/messages, Anthropic's API, and the chat that it stands for."""

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import (
    CalledFunction,
    ChatBody,
    ChatMessage,
    Function,
    JsonSchema,
    ModelBody,
    NamedFunction,
    NamedTool,
    Part,
    PictureUrl,
    ResponseFormat,
    ToolCall,
    ToolDefinition,
    ToolName,
    with_options,
)
from edgeformer.server.schema.body import Body
from edgeformer.server.schema.fields import FIELDS, MESSAGE_FIELDS, PARTS
from edgeformer.server.schema.json_values import Schema
from edgeformer.server.schema.thinking import ThinkingOptions

BLOCKS = ("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking")
"""Types of blocks that are read."""


class PictureSource(Body):
    """The content of a picture, or where it is."""

    TYPES = ("base64", "url"), "a picture is in the request, in base64, or at a URL; this server stores no files"

    type: str
    media_type: str = Field("image/png", max_length=60)
    data: str | None = None
    url: str | None = None

    def picture(self, path: str) -> PictureUrl:
        """Return the place of the picture; path: of the source. Raises ApiError for one without content."""
        field = "data" if self.type == "base64" else "url"
        content = getattr(self, field)
        if content is None:
            raise ApiError(400, f"{path}.{field}: Field required.", code="invalid_type", param=f"{path}.{field}")
        url = content if field == "url" else f"data:{self.media_type};base64,{content}"
        return PictureUrl(url=url).at(f"{path}.{field}")


class MessageBlock(Body):
    """A part of a message: a text, a picture, a call, what a tool returned, or what the model thought."""

    FIELDS = PARTS["block"]
    TYPES = BLOCKS, f"messages have blocks of these types: {', '.join(BLOCKS)}"

    type: str
    text: str = ""
    source: PictureSource | None = None
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str | None = None
    content: "str | list[MessageBlock] | None" = None
    is_error: bool | None = None


class AnthropicMessage(Body):
    """A message of the user or of the assistant. A last one of the assistant is continued."""

    FIELDS = PARTS["message"]

    role: Literal["user", "assistant", "system"]
    content: str | list[MessageBlock] = ""


class AnthropicTool(Body):
    """A tool that the client runs."""

    FIELDS = PARTS["tool"]
    TYPES = ("custom",), "tools of clients alone can be called, and the server runs none of its own"

    type: str = "custom"
    name: ToolName
    description: str | None = None
    input_schema: Schema = Field(default_factory=dict)
    strict: bool | None = None


class AnthropicToolChoice(Body):
    """Whether a tool has to be called. name: of the only one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ContextEdit(Body):
    """A change of the conversation before it is answered, of which one is the chat template's affair."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)

    TYPES = (
        ("clear_thinking_20251015",),
        "a conversation is answered as it is, but for what the chat template leaves out",
    )

    type: str


class ContextManagement(Body):
    """Changes of the conversation before it is answered."""

    edits: list[ContextEdit] | None = None


class OutputFormat(Body):
    """The schema that an answer has to follow."""

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(Body):
    """The form of an answer, and how much the model is to think, where its template has degrees."""

    format: OutputFormat | None = None
    effort: str | None = Field(None, max_length=32)


OPTION_NAMES = ("temperature", "top_p", "top_k")
"""Options of generation that /v1/messages has, by the same names."""

if TYPE_CHECKING:
    OptionsBody = ModelBody
else:
    OptionsBody = with_options(*OPTION_NAMES)


class MessagesBody(OptionsBody):
    """The request of /v1/messages and /v1/messages/count_tokens."""

    FIELDS = FIELDS | MESSAGE_FIELDS

    messages: list[AnthropicMessage] = Field(min_length=1)
    system: str | list[MessageBlock] | None = None
    max_tokens: int | None = Field(None, ge=1)
    stop_sequences: list[str] | None = Field(None, max_length=16)
    stream: bool | None = None
    tools: list[AnthropicTool] | None = Field(None, max_length=128)
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingOptions | None = None
    context_management: ContextManagement | None = None
    output_config: OutputConfig | None = None

    def as_chat(self) -> ChatBody:
        """Return the same request as one of /v1/chat/completions. Raises ApiError for blocks that lack a field."""
        wanted = self.output_config or OutputConfig(effort=None)
        messages = [] if self.system is None else [ChatMessage(role="system", content=_text(self.system, "system"))]
        for place, message in enumerate(self.messages):
            messages += _messages(message, f"messages.{place}")
        last, choice = messages[-1], self.tool_choice
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_completion_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "continue_final_message": last.role == "assistant" and bool(last.content) and not last.tool_calls,
            "tools": [_tool(tool) for tool in self.tools or ()],
            "tool_choice": None if choice is None else _tool_choice(choice),
            "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
            "thinking": self.thinking,
            "reasoning_effort": wanted.effort,
            "response_format": None if wanted.format is None else _response_format(wanted.format),
        }
        return ChatBody(**fields | {name: getattr(self, name) for name in OPTION_NAMES})


def _response_format(wanted: OutputFormat) -> ResponseFormat:
    schema = JsonSchema(schema=wanted.schema_, strict=True)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _tool(tool: AnthropicTool) -> ToolDefinition:
    function = Function(
        name=tool.name, description=tool.description, parameters=tool.input_schema or None, strict=tool.strict
    )
    return ToolDefinition(type="function", function=function)


def _tool_choice(choice: AnthropicToolChoice) -> Any:
    if choice.type != "tool":
        return {"any": "required"}.get(choice.type, choice.type)
    if choice.name is None:
        message = "tool_choice.name is missing, and the type is tool."
        raise ApiError(400, message, code="invalid_type", param="tool_choice.name")
    return NamedTool(type="function", function=NamedFunction(name=choice.name))


def _messages(message: AnthropicMessage, where: str) -> list[ChatMessage]:
    """Return a message as those of a chat: what tools returned, each, and then the text and the calls."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    results = [
        ChatMessage(role="tool", content=_result(block, f"{where}.content.{place}"), tool_call_id=block.tool_use_id)
        for place, block in enumerate(message.content)
        if block.type == "tool_result"
    ]
    said = _said(message.content, f"{where}.content")
    calls = [_call(block) for block in message.content if block.type == "tool_use"]
    thought = "".join(block.thinking for block in message.content if block.type == "thinking")
    if not (said or calls or thought) and results:
        return results
    last = ChatMessage(role=message.role, content=said, tool_calls=calls or None, reasoning_content=thought or None)
    return [*results, last]


def _said(content: list[MessageBlock], where: str) -> str | list[Part]:
    """Return the text of a message, or its parts where there are pictures. Raises ApiError for one without content."""
    if all(block.type != "image" for block in content):
        return "".join(block.text for block in content if block.type == "text")
    parts = list[Part]()
    for place, block in enumerate(content):
        if block.type == "text":
            parts.append(Part(text=block.text))
        elif block.type == "image":
            path = f"{where}.{place}.source"
            if block.source is None:
                raise ApiError(400, f"{path}: Field required.", code="invalid_type", param=path)
            parts.append(Part(type="image_url", image_url=block.source.picture(path)))
    return parts


def _call(block: MessageBlock) -> ToolCall:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return ToolCall(id=block.id, function=CalledFunction(name=block.name, arguments=arguments))


def _result(block: MessageBlock, where: str) -> str:
    if block.tool_use_id is None:
        raise ApiError(400, f"{where}.tool_use_id: Field required.", code="invalid_type", param=f"{where}.tool_use_id")
    return _text(block.content, f"{where}.content")


def _text(content: str | list[MessageBlock] | None, where: str) -> str:
    """Return the text of blocks. Raises ApiError for others."""
    if content is None or isinstance(content, str):
        return content or ""
    for place, block in enumerate(content):
        if block.type != "text":
            param = f"{where}.{place}.type"
            message = f"{param} is {block.type!r}; only texts can stand here."
            raise ApiError(400, message, code="invalid_type", param=param)
    return "".join(block.text for block in content)
