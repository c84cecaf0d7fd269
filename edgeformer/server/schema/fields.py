"""Fields of OpenAI's API that the server does not have: those that it may ignore, and those that it must refuse.

A field that would change the answer is refused, by its name, unless its value changes nothing. A field that changes
nothing about the answer is ignored. A field that is in neither table nor in a model of `bodies` is refused as unknown.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.server.schema.api_errors import ApiError

IGNORED: dict[str, str] = {
    "metadata": "labels of stored answers; nothing is stored",
    "prediction": "a guess that makes the same answer come sooner",
    "prompt_cache_key": "a hint; prefixes that are kept are found by their tokens",
    "prompt_cache_retention": "a hint; prefixes are kept while there is room",
    "safety_identifier": "names the end user; nobody is told",
    "service_tier": "there is one tier",
    "store": "nothing is stored",
    "user": "names the end user; nobody is told",
}
"""Fields that change nothing about an answer, each with the reason."""

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), "answers are text"),
    "background": ((False,), "an answer belongs to its request"),
    "best_of": ((1,), "answers are not ranked; use n"),
    "context_management": (([],), "a conversation is answered as it is"),
    "conversation": ((), "nothing is stored; send the whole conversation"),
    "function_call": (("none",), "deprecated by OpenAI; use tool_choice"),
    "functions": (([],), "deprecated by OpenAI; use tools"),
    "include": (([],), "an answer has all that there is"),
    "max_tool_calls": ((), "no tool runs on the server"),
    "modalities": ((["text"],), "answers are text"),
    "moderation": ((), "there is no moderation"),
    "previous_response_id": ((), "nothing is stored; send the whole conversation as input"),
    "prompt": ((), "no templates are stored"),
    "suffix": (("",), "no model fills in the middle"),
    "top_logprobs": ((0,), "this route has no logprobs; use /v1/chat/completions"),
    "truncation": (("disabled",), "a conversation is answered as it is"),
    "verbosity": ((), "no model has degrees of verbosity"),
    "web_search_options": ((), "nothing is searched"),
}
"""Fields that would change an answer: values at which they change nothing (null is always one), and the reason."""


def drop_other_fields(body: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that the server has. Raises ApiError for one that it must not ignore."""
    kept = {}
    for name, value in body.items():
        if name in known:
            kept[name] = value
            continue
        if name in IGNORED:
            continue
        if name not in REFUSED:
            raise ApiError(400, f"{name!r} is no field of this request.", code="unknown_parameter", param=name)
        neutral, reason = REFUSED[name]
        if value is not None and value not in neutral:
            message = f"{name!r} is not supported: {reason}. Leave it out."
            raise ApiError(400, message, code="unsupported_parameter", param=name)
    return kept
