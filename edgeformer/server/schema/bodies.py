"""The requests of the API. Types are strict: "5" is no number, and a field that is not here is refused by its name.

Ranges of OpenAI's API that the runtime checks too are left to it; its errors name the field and the value.
"""

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
    field_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from edgeformer.options.generation import OPTIONS, Texts, TokenBiases, TokenIds
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.body import Body
from edgeformer.server.schema.fields import FIELDS, PARTS
from edgeformer.server.schema.json_values import Schema
from edgeformer.server.schema.thinking import ThinkingFields
from edgeformer.server.schema.validation import error_of

TokenId = Annotated[int, Field(ge=0)]
Prompt = str | list[str] | list[TokenId] | list[list[TokenId]]


class ModelBody(Body):
    """A request to one of the served models. model: None for the first one."""

    FIELDS = FIELDS

    model: str | None = None


TEXT_TYPES = ("text", "input_text", "output_text", "refusal")
"""Types of parts that are texts, by the routes of the API."""

SHOWN_DATA = 40
"""Characters of a picture's URL, or of a recording, that a log has."""


def _shortened(data: str, most: int = SHOWN_DATA) -> str:
    """Return the beginning of a text, so that no log has a whole picture or recording."""
    return data if len(data) <= most else f"{data[:most]}… ({len(data):,} characters)"


FUNCTIONS = ("function",), "functions alone can be called, and the server runs no tools of its own"
"""Types of tools, and why there are no others."""


class Medium(Body):
    """A picture or a recording, which may come from another route than chats."""

    FIELDS = PARTS["part"]

    _path: str = PrivateAttr("")

    def at(self, path: str) -> Self:
        """Return it as of a request to another route. path: of its data in that request, for errors."""
        self._path = path
        return self

    @property
    def path(self) -> str:
        """The path of its data in the request, where it is no chat; empty otherwise."""
        return self._path


class PictureUrl(Medium):
    """The place of a picture: a data: URL. detail: low for as few tokens as its processor allows."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None

    @field_serializer("url")
    def _shorten(self, url: str) -> str:
        return _shortened(url)


class InputAudio(Medium):
    """A recording: the bytes of a file in base64. format: of the file, whose own bytes decide."""

    data: str
    format: str | None = Field(None, max_length=40)

    @field_serializer("data")
    def _shorten(self, data: str) -> str:
        return _shortened(data)


MEDIA_TYPES = ("image_url", "input_audio")
"""Types of parts that are pictures and recordings, and the fields that have them."""


class PictureOrText(Body):
    """A text or a picture: {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}."""

    FIELDS = PARTS["part"]

    type: str = "text"
    text: str | None = None
    image_url: PictureUrl | None = None

    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return a refusal as the text that it is, and a URL by itself as a picture."""
        data = data if "refusal" not in data else {"text": data["refusal"]} | data | {"refusal": None}
        url = data.get("image_url")
        return data | {"image_url": {"url": url}} if isinstance(url, str) else data

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        given = [name for name in ("text", *MEDIA_TYPES) if getattr(self, name, None) is not None]
        wanted = self.type if self.type in MEDIA_TYPES else "text"
        if given != [wanted]:
            others = next((name for name in given if name != wanted), "text" if wanted != "text" else "image_url")
            raise ValueError(f"a part of the type {self.type} has {wanted}, and no {others}")
        return self


class Part(PictureOrText):
    """A part of a message's content: a text, a picture for models that see, or a recording for models that hear."""

    TYPES = (
        (*TEXT_TYPES, *MEDIA_TYPES),
        "messages have parts that are texts, pictures (image_url) or recordings (input_audio)",
    )

    input_audio: InputAudio | None = None


def _as_json_text(value: Any) -> Any:
    """Return arguments as JSON text, which some clients send as the object that they are."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


class CalledFunction(Body):
    """The function of a call: its name, and its arguments as JSON text."""

    FIELDS = PARTS["function of a call"]

    name: str
    arguments: Annotated[str, BeforeValidator(_as_json_text)] = ""


class ToolCall(Body):
    """A call that the assistant made earlier in the conversation."""

    FIELDS = PARTS["tool call"]
    TYPES = FUNCTIONS

    id: str = ""
    type: str = "function"
    function: CalledFunction


class ChatMessage(Body):
    """A message.

    tool_calls, reasoning_content: of an assistant; the latter is what it thought. tool_call_id: of the tool's answer to
    a call.
    """

    FIELDS = PARTS["message"]

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return a message with today's names: a `function` is a tool, and `reasoning` what an assistant thought."""
        role: dict[str, Any] = {"role": "tool"} if data.get("role") == "function" else {}
        if data.get("role") == "assistant" and isinstance(data.get("content"), list):
            data = _with_thoughts_apart(data)
        thought = data.get("reasoning")
        reasoning = {"reasoning_content": thought, "reasoning": None} if isinstance(thought, str) else {}
        return {"content": None} | reasoning | data | role | ({"reasoning": None} if reasoning else {})


THOUGHTS = ("thinking", "reasoning")
"""Types of parts that an assistant thought."""


def _with_thoughts_apart(data: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose parts of thinking, as Mistral and LangChain have them, are its `reasoning_content`."""
    parts = [part if isinstance(part, dict) else {} for part in data["content"]]
    thinks = [part.get("type") in THOUGHTS for part in parts]
    thoughts = [
        _thought(next((part[name] for name in ("thinking", "reasoning", "text") if name in part), None))
        for part, is_thought in zip(parts, thinks, strict=True)
        if is_thought
    ]
    if not thoughts:
        return data
    # Texts without letters stand in their places, so that errors name the others by their own.
    texts = [{"text": ""} if is_thought else data["content"][i] for i, is_thought in enumerate(thinks)]
    return {"reasoning_content": "".join(thoughts)} | data | {"content": texts}


def _thought(value: Any) -> str:
    if isinstance(value, list):
        return "".join(_thought(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def _check_name(value: str) -> str:
    if not NAME.fullmatch(value):
        message = "is {shown}; models call names of 1 to 128 letters, digits, `_`, `.` and `-`. Rename the function"
        raise PydanticCustomError("wrong_name", message, {"shown": repr(value[:80])})
    return value


ToolName = Annotated[str, AfterValidator(_check_name)]


class Function(Body):
    """A function that the model may call. parameters: a JSON schema of its arguments."""

    FIELDS = PARTS["tool"]

    name: ToolName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    """A tool; there are only functions."""

    FIELDS = PARTS["tool"]
    TYPES = FUNCTIONS

    type: str
    function: Function


class NamedFunction(Body):
    """The name of a function that has to be called."""

    name: str


class NamedTool(Body):
    """The tool that has to be called."""

    TYPES = FUNCTIONS

    type: str
    function: NamedFunction


class AllowedFunctions(Body):
    """The functions that may be called. mode: whether one of them has to be."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedTools(Body):
    """The tools of a request that may be called."""

    TYPES = ("allowed_tools",), FUNCTIONS[1]

    type: str
    allowed_tools: AllowedFunctions


class StreamOptions(Body):
    """Options of streams."""

    FIELDS = PARTS["stream_options"]

    include_usage: bool = False


class JsonSchema(Body):
    """A schema that the answer has to follow. strict: whether every keyword of it must be followed."""

    FIELDS = PARTS["response_format"]

    name: str | None = None
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


FORMS = ("text", "json_object", "json_schema")
"""Types of `response_format`."""


class ResponseFormat(Body):
    """The form of the answer: any text, any JSON object, or what follows a schema."""

    FIELDS = PARTS["response_format"]
    TYPES = FORMS, f"an answer has one of these forms: {', '.join(FORMS)}; see structured_outputs for others"

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return llama.cpp's form, a schema beside the type, as OpenAI's."""
        if data.get("schema") is None:
            return {name: value for name, value in data.items() if name != "schema"}
        others = {name: value for name, value in data.items() if name not in ("schema", "type", "name", "strict")}
        inner = {name: data[name] for name in ("schema", "name", "strict") if data.get(name) is not None}
        return {"type": "json_schema", "json_schema": inner} | others

    @model_validator(mode="after")
    def _check_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            message = "is missing, and the type is json_schema"
            raise PydanticCustomError("missing_schema", message, {"field": "json_schema"})
        return self


class StructuredOutputs(Body):
    """The form of the answer, as vLLM writes it: one of three."""

    json_: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1)


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
    TokenIds: list[TokenId],
}
"""Types of fields, for options whose type in Python is another."""

if TYPE_CHECKING:
    OptionsBody = ModelBody
else:
    OptionsBody = with_options()


ALIASES = {
    "n_predict": "max_tokens", "random_seed": "seed", "repeat_penalty": "repetition_penalty",
    "reasoning_budget_tokens": "thinking_budget", "thinking_token_budget": "thinking_budget",
}  # fmt: skip
"""Fields of llama.cpp's server, of vLLM and of Mistral's API that are ours by other names."""

ALL_TOKENS = 2**31 - 1
"""`max_tokens` of a request for all that the context leaves."""

SCHEMAS = ("json_schema", "guided_json")
"""Fields that are a schema of the answer."""


class GenerationBody(OptionsBody):
    """The fields that chats and completions share: options of generation, and others. Not all are OpenAI's."""

    n: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of vLLM and llama.cpp as those that they stand for."""
        fields = dict(data)
        for name, ours in ALIASES.items():
            value = fields.pop(name, None)
            if value is not None:
                fields.setdefault(ours, value)
        if fields.get("max_tokens") == -1:
            fields["max_tokens"] = ALL_TOKENS
        if fields.get("top_k") == -1:
            fields["top_k"] = 0
        if fields.get("thinking_budget") == -1:
            del fields["thinking_budget"]
        if fields.get("response_format") == {}:
            del fields["response_format"]
        guided = {name: fields.pop(f"guided_{name}") for name in ("regex", "choice") if f"guided_{name}" in fields}
        if any(value is not None for value in guided.values()):
            fields.setdefault("structured_outputs", guided)
        for name in SCHEMAS:
            schema = fields.pop(name, None)
            if schema is not None:
                fields.setdefault("response_format", {"type": "json_schema", "schema": _parsed(schema)})
        return fields


CHOICES = ("any", "auto", "none", "required")
"""Choices of tools that name none."""


class ChatBody(ThinkingFields, GenerationBody):
    """The request of /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    continue_final_message: bool | None = None
    tools: list[ToolDefinition] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None

    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of others as ours; what is continued has no start of a turn."""
        fields = super().renamed(data)
        if fields.get("continue_final_message") is True:
            fields.pop("add_generation_prompt", None)
        choice = fields.get("tool_choice")
        if isinstance(choice, dict) and choice.keys() == {"type"} and choice["type"] in CHOICES:
            choice = choice["type"]  # as Anthropic's API has it
        if isinstance(choice, str):
            fields["tool_choice"] = "required" if choice == "any" else choice
        messages = fields.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        if isinstance(last, dict) and last.get("role") == "assistant" and last.get("prefix") is True:
            fields["messages"] = [*fields["messages"][:-1], last | {"prefix": None}]
            fields.setdefault("continue_final_message", True)
        return fields


class CompletionBody(GenerationBody):
    """The request of /v1/completions. source_language, target_language: of models that translate."""

    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    source_language: str | None = None
    target_language: str | None = None


class OtherFile(Body):
    """A file beside the one that is filled in."""

    filename: str = "file"
    text: str


class InfillBody(GenerationBody):
    """The request of /infill. prompt: a text that what is filled in begins with; it is not part of the answer."""

    input_prefix: str
    input_suffix: str
    input_extra: list[OtherFile] | None = None
    prompt: str | None = None


class EmbeddingPart(PictureOrText):
    """A text or a picture to embed."""

    TYPES = (*TEXT_TYPES[:2], "image_url"), "there are texts and pictures (image_url) to embed"

    type: str


class EmbeddingBody(ModelBody):
    """The request of /v1/embeddings."""

    input: Prompt | list[str | EmbeddingPart]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)


class Document(Body):
    """A document as an object; only its text is scored."""

    FIELDS = PARTS["document"]

    text: str


class RerankBody(ModelBody):
    """The request of /v1/rerank. top_n: how many documents the answer has at most. None: all of them.

    instruction: what the documents are searched for, for models that read one. None: the model's own.
    """

    query: str
    documents: list[str | Document]
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None
    instruction: str | None = None


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
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise error_of(error, data) from None


def _parsed(schema: Any) -> Any:
    """Return a schema that is JSON text as the object that it is."""
    try:
        return json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        return schema


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
