"""The requests of the API. Types are strict: "5" is no number, and a field that is not here is refused by its name.

Ranges of OpenAI's API that the runtime checks too are left to it; its errors name the field and the value.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import Field, ValidationError, create_model

from edgeformer.options.generation import OPTIONS, Texts, TokenBiases
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.body import Body
from edgeformer.server.schema.fields import drop_other_fields
from edgeformer.server.schema.json_values import Schema
from edgeformer.server.schema.thinking import ThinkingFields

TokenId = Annotated[int, Field(ge=0)]
Prompt = str | list[str] | list[TokenId] | list[list[TokenId]]


class ModelBody(Body):
    """A request to one of the served models. model: None for the first one."""

    model: str | None = None


class Part(Body):
    """A part of a message's content; there is only text."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """The function of a call: its name, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call that the assistant made earlier in the conversation."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Body):
    """A message. tool_calls: of an assistant. tool_call_id: of the tool's answer to a call.

    reasoning_content, reasoning: what the assistant thought, by either name; the chat template says what becomes of it.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Function(Body):
    """A function that the model may call. parameters: a JSON schema of its arguments."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    """A tool; there are only functions."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """The name of a function that has to be called."""

    name: str


class NamedTool(Body):
    """The tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class StreamOptions(Body):
    """Options of streams. include_obfuscation: ignored; streams are not padded against listeners on the wire."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class JsonSchema(Body):
    """A schema that the answer has to follow. strict: ignored; it is always followed."""

    name: str | None = None
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of the answer: any text, any JSON object, or what follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def with_options(*names: str) -> Any:
    """Return a body with these options of generation as fields: all that the API has, where none is named."""
    chosen = [OPTIONS[name] for name in names] or [option for option in OPTIONS.values() if option.api]
    fields: dict[str, Any] = {}
    for option in chosen:
        kind = JSON_TYPES.get(option.value_type, option.value_type)
        limits: dict[str, Any] = dict(option.api_limits)
        fields[option.api] = (kind | None, Field(None, **limits))
    return create_model("OptionsBody", __base__=ModelBody, **fields)


JSON_TYPES: dict[Any, Any] = {
    Texts: str | Annotated[list[str], Field(max_length=16)],
    TokenBiases: dict[str, float],
}
"""Types of fields, for options whose type in Python is another."""

if TYPE_CHECKING:
    OptionsBody = ModelBody
else:
    OptionsBody = with_options()


class GenerationBody(OptionsBody):
    """The fields that chats and completions share: options of generation, and others. Not all are OpenAI's."""

    n: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatBody(ThinkingFields, GenerationBody):
    """The request of /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[ToolDefinition] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(GenerationBody):
    """The request of /v1/completions. source_language, target_language: of models that translate."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    source_language: str | None = None
    target_language: str | None = None


class EmbeddingBody(ModelBody):
    """The request of /v1/embeddings."""

    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class Document(Body):
    """A document as an object; only its text is scored."""

    text: str


class RerankBody(ModelBody):
    """The request of /v1/rerank. top_n: how many documents the answer has at most. None: all of them."""

    query: str
    documents: list[str | Document]
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None


class TokenizeBody(ModelBody):
    """The request of /tokenize: a prompt or a conversation."""

    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    add_special_tokens: bool = True


class DetokenizeBody(ModelBody):
    """The request of /detokenize."""

    tokens: list[TokenId]


_Body = TypeVar("_Body", bound=Body)


def read_body(kind: type[_Body], content: bytes) -> _Body:
    """Return a request from its JSON text. Raises ApiError with status 400 that names the field that is wrong."""
    try:
        data = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body is not a JSON object.", code="invalid_json")
    known = {field.alias or name: field for name, field in kind.model_fields.items()}
    fields = drop_other_fields(data, known)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        # Of a field that may be of several types, the error deepest inside is the one of the type that was meant.
        first = max(error.errors(include_url=False, include_context=False), key=lambda each: len(each["loc"]))
        param = ".".join(str(part) for part in first["loc"] if "[" not in str(part)) or None
        reason = first["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"{param or 'the body'}: {reason}.", code="invalid_type", param=param) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
