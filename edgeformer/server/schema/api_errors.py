"""Errors of the API: a status and a JSON object of a form that OpenAI's clients read, and Anthropic's."""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from edgeformer.errors import EdgeformerError, PromptLengthError, RequestError
from edgeformer.options.generation import OPTIONS
from edgeformer.runtime import EngineBusyError

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""`error.type` by status; every other status is an invalid_request_error."""


LONGEST = 600
"""Characters of a message of the runtime at most, which may cite what it was given."""


class ApiError(EdgeformerError):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        code: a word for programs, such as `model_not_found`.
        param: the field of the request that is wrong.
        retry_after: seconds after which the client should try again.
        details: what clients of Anthropic read.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.details = details

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        kind = KINDS.get(self.status, "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"type": "error", "error": error if self.details is None else error | {"details": self.details}}

    def response(self) -> Response:
        """Return the answer; its headers say how to log in, and when to try again."""
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        # A message may quote half of a character, which UTF-8 does not have; JSON in ASCII does.
        return Response(json.dumps(self.body), self.status, headers, media_type="application/json")


def as_api_error(error: BaseException, param: str | None = None) -> ApiError:
    """Return the error of the API for one of the runtime: 429, 400, or 500 for what is nobody's request's fault.

    param: the field of the request that it is about, where the error does not know it.
    """
    match error:
        case ApiError():
            return error
        case EngineBusyError():
            return ApiError(429, str(error), code="engine_busy", retry_after=error.retry_after)
        case PromptLengthError():
            return ApiError(400, str(error), code="context_length_exceeded", param=param)
        case RequestError():
            message = str(error).partition("\n<state>")[0]  # of a grammar's parser
            return ApiError(400, message[:LONGEST], param=param or param_of(error))
        case _:
            return ApiError(500, "the server failed to answer this request; its log says why.", code="internal_error")


def param_of(error: RequestError) -> str | None:
    """Return the field of requests that an error of the runtime is about, or None where it is about no option."""
    option = OPTIONS.get(error.field or "")
    return option.api or None if option is not None else None
