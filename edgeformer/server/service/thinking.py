"""The thinking that a request asks for, as variables of the model's chat template and as a budget."""

from collections.abc import Mapping
from typing import Any, TypeVar

from edgeformer.errors import RequestError
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.thinking import ThinkingFields
from edgeformer.server.service.served import ServedModel

_Value = TypeVar("_Value")


def template_variables(served: ServedModel, body: ThinkingFields, with_tools: bool) -> dict[str, Any] | None:
    """Return the variables that a request sets in the chat template of a model; None for none.

    Raises ApiError, naming the field, for those that the template does not read.
    """
    switch, enable_thinking = _one(body.switches())
    degree, reasoning_effort = _one(body.efforts())
    try:
        variables = served.tokenizer.thinking_variables(
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
