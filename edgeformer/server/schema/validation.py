"""The fault of a request, as one sentence that begins with a path in the request."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from edgeformer.server.schema.api_errors import ApiError

KINDS = {
    "string_type": "a text",
    "list_type": "a list",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""Errors of pydantic that say a value is of another type, and the type that it should be of."""

CODES = ("unknown_parameter", "unsupported_parameter")
"""Errors whose names are codes of the API."""


def error_of(error: ValidationError, data: Mapping[str, Any]) -> ApiError:
    """Return the error of the API for a request that is wrong.

    Of a field that may be of several types, the error deepest inside is the one of the type that was meant, and one
    about a value says more than one about its type.
    """
    found = [(_path(each["loc"], data, each), each) for each in error.errors(include_url=False)]
    path, first = max(found, key=lambda pair: (len(pair[0]), pair[1]["type"] not in KINDS))
    others = [each for other, each in found if other == path]
    param = ".".join(path) or None
    kinds = list(dict.fromkeys(KINDS[each["type"]] for each in others if each["type"] in KINDS))
    if first["type"] in CODES:
        message = f"{param!r} {first['msg']}."
    elif first["type"] == "too_long":
        context = first["ctx"]
        message = f"{param} has {context['actual_length']} entries; {context['max_length']} are allowed."
    elif first["type"] in ("too_short", "string_too_short"):
        message = f"{param} is empty."
    elif len(kinds) > 1 and first["type"] in KINDS:
        message = f"{param or 'the body'}: it must be {' or '.join(kinds)}."
    elif first["type"] in OWN:
        message = f"{param} {first['msg']}."
    else:
        message = f"{param or 'the body'}: {first['msg'].removeprefix('Value error, ')}."
    code = first["type"] if first["type"] in CODES else "invalid_type"
    return ApiError(400, message, code=code, param=param, details=first.get("ctx", {}).get("details"))


OWN = ("wrong_type", "wrong_name", "never_included", "missing_schema")
"""Errors of the bodies' own, whose sentences go on behind the path."""


def _path(location: Sequence[int | str], data: Any, error: Mapping[str, Any]) -> list[str]:
    """Return a location without the names of types that pydantic puts into it, as a path in the request."""
    path: list[str] = []
    for step in location:
        is_index = isinstance(step, int) and isinstance(data, list) and step < len(data)
        if is_index or (isinstance(data, Mapping) and step in data):
            data = data[step]
        elif not (isinstance(data, Mapping) and error["type"] == "missing" and step == location[-1]):
            continue
        path.append(str(step))
    field = error.get("ctx", {}).get("field")
    if field is not None:
        path.append(str(field))
    return path or [str(location[0])] if location else path  # of a field by its other name
