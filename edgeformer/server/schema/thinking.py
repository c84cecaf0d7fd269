"""The fields of requests that switch thinking, as the clients of today spell them."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from edgeformer.server.schema.body import Body


class ReasoningOptions(Body):
    """Thinking as OpenAI's responses and OpenRouter have it. summary, exclude: ignored; thoughts come as they are."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)

    effort: str | None = Field(None, max_length=32)
    enabled: bool | None = None
    max_tokens: int | None = Field(None, ge=0)


class ThinkingOptions(Body):
    """Thinking as Anthropic, DeepSeek and GLM have it."""

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
