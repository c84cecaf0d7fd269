"""The record of a request: what its line in the log and the metrics are made of. It holds no text unless asked."""

import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LOG = logging.getLogger("edgeformer.server")


@dataclass
class Record:
    """The record of one request. Durations are in seconds; texts are kept only where prompts are logged.

    reasoning_tokens: those of completion_tokens that the model thought. outcome: `ok`, `error`, `disconnected` (the
    client went away), `stalled` (it stopped reading) or `cancelled` (the server stopped). warnings: sentences about
    what was asked for and is not done. at_end: functions that are called when the request has ended, by an answer or
    without.
    """

    method: str
    path: str
    request_id: str = field(default_factory=lambda: f"req-{secrets.token_hex(8)}")
    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    outcome: str = "ok"
    model: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    first_token_seconds: float | None = None
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None
    texts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    at_end: list[Callable[[], None]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Time since the request came."""
        return time.perf_counter() - self.started

    def line(self) -> dict[str, Any]:
        """Return the fields of the log's line; those that the request does not have are left out."""
        fields = {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 4),
        }
        if self.model is not None:
            fields |= {
                "model": self.model,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
                "finish_reasons": self.finish_reasons,
            }
        if self.first_token_seconds is not None:
            fields["first_token_seconds"] = round(self.first_token_seconds, 4)
        if self.error is not None:
            fields["error"] = self.error
        if self.warnings:
            fields["warnings"] = self.warnings
        return fields | self.texts


class JsonLines(logging.Formatter):
    """Formats each record of `logging` as one line of JSON: time, level, message, and the fields of a `Record`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        line = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr() -> None:
    """Write the log of the server, and uvicorn's, to stderr as lines of JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, level in (("edgeformer.server", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
