"""The fields of requests that switch thinking, as the clients of today spell them, and what they ask of a model."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, Field

from edgeformer.errors import RequestError
from edgeformer.runtime.text.tokenizer import Tokenizer
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.body import Body
from edgeformer.server.schema.fields import PARTS

_Value = TypeVar("_Value")


class ReasoningOptions(Body):
    """Thinking as OpenAI's responses and OpenRouter have it. summary, exclude: ignored; thoughts come as they are."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)

    effort: str | None = Field(None, max_length=32)
    enabled: bool | None = None
    max_tokens: int | None = Field(None, ge=0)


class ThinkingOptions(Body):
    """Thinking as Anthropic, DeepSeek and GLM have it."""

    FIELDS = PARTS["thinking"]

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = Field(None, ge=0)


class ThinkingFields(Body):
    """Fields that say whether and how much a model thinks.

    chat_template_kwargs: variables of the chat template. The others are set where the template reads them.
    """

    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = Field(None, max_length=32)
    reasoning: ReasoningOptions | None = None
    thinking: ThinkingOptions | bool | None = None

    def switches(self) -> dict[str, bool]:
        """Return whether the model is to think, by the paths of the fields that say so."""
        found: dict[str, bool | None] = {"enable_thinking": self.enable_thinking}
        if self.reasoning is not None:
            found["reasoning.enabled"] = self.reasoning.enabled
        if isinstance(self.thinking, bool):
            found["thinking"] = self.thinking
        elif self.thinking is not None:
            found["thinking.type"] = {"enabled": True, "disabled": False}.get(self.thinking.type)
        return {path: value for path, value in found.items() if value is not None}

    def efforts(self) -> dict[str, str]:
        """Return how much the model is to think, by the paths of the fields that say so."""
        nested = self.reasoning.effort if self.reasoning is not None else None
        found = {"reasoning_effort": self.reasoning_effort, "reasoning.effort": nested}
        return {path: value for path, value in found.items() if value is not None}

    def budgets(self) -> dict[str, int]:
        """Return after how many tokens thinking ends, by the paths of the fields that say so."""
        found: dict[str, int | None] = {"thinking_budget": getattr(self, "thinking_budget", None)}
        if self.reasoning is not None:
            found["reasoning.max_tokens"] = self.reasoning.max_tokens
        if self.thinking is not None and not isinstance(self.thinking, bool):
            found["thinking.budget_tokens"] = self.thinking.budget_tokens
        return {path: value for path, value in found.items() if value is not None}


def template_variables(tokenizer: Tokenizer, body: ThinkingFields, with_tools: bool) -> dict[str, Any] | None:
    """Return the variables that a request sets in the chat template of a model; None for none.

    Raises ApiError, naming the field, for those that the template does not read.
    """
    switch, enable_thinking = _one(body.switches())
    degree, reasoning_effort = _one(body.efforts())
    try:
        variables = tokenizer.thinking_variables(
            enable_thinking, reasoning_effort, body.chat_template_kwargs, with_tools=with_tools
        )
    except RequestError as error:
        path = {"enable_thinking": switch, "reasoning_effort": degree}.get(error.field or "", error.field)
        path = path or degree or "chat_template_kwargs"
        message = str(error).replace(str(error.field), str(path), 1) if error.field else str(error)
        raise ApiError(400, message, code="unsupported_parameter", param=path) from None
    return variables or None


def thinking_budget(body: ThinkingFields) -> int | None:
    """Return after how many tokens of thinking a request wants an answer. Raises ApiError for two numbers."""
    return _one(body.budgets())[1]


def _one(given: Mapping[str, _Value]) -> tuple[str | None, _Value | None]:
    """Return the path and the value of one of several fields that mean the same. Raises ApiError where they differ."""
    if not given:
        return None, None
    first = next(iter(given))
    for path, value in given.items():
        if value != given[first]:
            raise ApiError(400, f"{first} and {path} say different things; give one of them.", param=path)
    return first, given[first]
