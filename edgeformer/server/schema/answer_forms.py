"""The forms that an answer may have to follow: a JSON schema, a regular expression, or one of several texts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import GenerationBody
from edgeformer.server.tool_calls.lark import followed_schema, is_unread, names_are_followed, resolved, says_nothing

UNFOLLOWED = (
    "contains", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
)  # fmt: skip
"""Keywords of JSON schemas that no grammar follows."""

FORMATS = (
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid",
)  # fmt: skip
"""Values of `format` that grammars follow."""


def structure_of(body: GenerationBody) -> dict[str, Any]:
    """Return the options of the runtime for the form that a request wants of its answer.

    Raises ApiError for two forms at once, and for a schema that leads to itself or to nothing.
    """
    schema, wanted = answer_schema(body), body.structured_outputs
    found: dict[str, Any] = {} if schema is None else {"json_schema": schema}
    if wanted is not None:
        choice = wanted.choice and "|".join(map(re.escape, wanted.choice))
        forms = {"json_schema": wanted.json_ and _followed(wanted.json_, False), "regex": wanted.regex or choice}
        found |= {name: value for name, value in forms.items() if value}
    if len(found) > 1 or (wanted is not None and wanted.regex and wanted.choice):
        message = "response_format and structured_outputs want several forms of one answer; give one."
        raise ApiError(400, message, param="structured_outputs")
    return found


def answer_schema(body: GenerationBody) -> dict[str, Any] | None:
    """Return the schema that an answer has to follow by `response_format`, or None."""
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.json_schema is None:
        return {"type": "object"}
    schema = wanted.json_schema.schema_
    if "$ref" in schema and not resolved(schema, schema):
        reason = f"a $ref to {str(schema['$ref'])[:100]!r}, which leads to no schema of its own"
        raise ApiError(400, f"the schema of response_format is {reason}.", param="response_format.json_schema.schema")
    return _followed(schema, wanted.json_schema.strict is True)


def warnings_of(body: GenerationBody) -> list[str]:
    """Return a sentence for each part of the form that a request wants and that is not followed."""
    wanted = body.response_format and body.response_format.json_schema
    schema = wanted.schema_ if wanted else body.structured_outputs and body.structured_outputs.json_
    keywords = unfollowed(schema) if schema and not (wanted and wanted.strict) else []
    return [f"the schema of the answer is not followed in: {', '.join(keywords)}"] if keywords else []


def tool_warnings(functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for what is not followed of the parameters of tools whose calls follow their schemas."""
    keywords = unfollowed([each.get("parameters") for each in functions if not each.get("strict")])
    return [f"the parameters of tools are not followed in: {', '.join(keywords)}"] if keywords else []


def _followed(schema: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    return followed_schema(schema, strict=strict)


def unfollowed(schema: Any) -> list[str]:
    """Return the keywords of a schema that are not followed, in the order of their names."""
    return sorted(set(_unfollowed(schema)))


def _unfollowed(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _unfollowed(each)
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            if value is None or says_nothing(key, value) or (key == "propertyNames" and names_are_followed(value)):
                continue
            if key in UNFOLLOWED:
                yield key
            elif key == "pattern" and is_unread(value):
                yield "pattern with looks around"
            elif key == "format" and isinstance(value, str) and value not in FORMATS:
                yield f"format {value[:40]!r}"
            elif key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, Mapping):
                yield from _unfollowed(list(value.values()))
            elif key not in ("const", "default", "enum", "examples"):
                yield from _unfollowed(value)


def form_error(error: RequestError, of_tools: bool) -> ApiError | RequestError:
    """Return the error of a form that cannot be followed: without the grammar itself, and by the field that has it."""
    lines = str(error).splitlines()
    of_expression = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    reason = f"{lines[0][:300]} {of_expression[:200]}".rstrip()
    name, cannot, cause = reason.partition(" cannot be followed: ")
    if not cannot:
        return error
    cause = cause.split(" failed to ")[-1]
    if of_tools:
        return ApiError(400, f"the parameters of a tool cannot be followed: {cause}", param="tools")
    param = "response_format" if name == "json_schema" else "structured_outputs"
    return ApiError(400, f"the {name} of {param} cannot be followed: {cause}", param=param)
