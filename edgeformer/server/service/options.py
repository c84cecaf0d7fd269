"""The options of a server: where it listens, who may use it, and how much it takes."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeformer.errors import RequestError
from edgeformer.server.remote_pictures.hosts import read_hosts
from edgeformer.server.tool_calls.table import FORMATS

KEY_VARIABLE = "EDGEFORMER_API_KEY"
"""Environment variable of the API key."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a server listens, and its limits. Raises RequestError, naming the field, for a value outside its range.

    Attributes:
        host: address to listen on; the default is reached from this machine only.
        port: TCP port; 0 takes a free one.
        api_key: what clients send as `Authorization: Bearer KEY`; None asks for none. The page at `/`, `/health` and
            `/ready` ask for none in any case.
        cors_origins: origins of web pages that may use the server from a browser, such as https://example.org, or `*`.
        allowed_hosts: names by which clients may call the server (the header Host), or `*`. None allows those of the
            loopback where it listens there, and any elsewhere. This keeps web pages out that make a name of their own
            resolve to 127.0.0.1 (DNS rebinding).
        max_body_bytes: bytes of a request at most; more is answered with status 413. None for 4 MiB, and 32 MiB where
            a model reads pictures, or recordings beside text.
        max_prompt_tokens: tokens of a prompt at most; None for what the model's context has room for.
        default_max_tokens: new tokens of a request that names no limit; None for that of the runtime.
        max_pictures: pictures of a conversation at most.
        max_picture_bytes: bytes of a picture's file at most.
        max_picture_pixels: pixels of a picture at most; decoding takes 4 bytes for each.
        picture_hosts: hosts that pictures are fetched from, as `edgeformer.server.remote_pictures.hosts` reads them;
            none by default, so that a picture is in the request.
        picture_seconds: time in which the pictures of a request have to arrive from them.
        max_recordings: recordings of a conversation at most.
        max_recording_bytes: bytes of a recording's file at most.
        max_recording_seconds: seconds of a recording at most; a file is decoded as far as that at 48 kHz.
        max_choices: the largest `n` of a request, and the most prompts in one.
        max_connections: open connections at most, within the files that the process may open; more get status 503.
        max_connections_per_address: of one address at most. A proxy before the server is one address.
        max_header_bytes: bytes of a request's headers at most; more is answered with status 431.
        header_seconds: time that a connection has to send the headers of a request; after that it is closed.
        body_seconds: time that a client has to send a request; after that the status is 408.
        stall_seconds: time that a client may leave a stream unread; after that its request is cancelled.
        drain_seconds: time that running requests have after SIGTERM; after that they are cancelled.
        log_prompts: write prompts and answers into the log.
        models_memory: bytes that the files of models of a folder may have that are loaded; beyond it, those that were
            used longest ago are put to sleep. None for no limit.
        idle_seconds: time after which a model of a folder that nobody uses is put to sleep.
        tool_format: name of the format of tool calls of all models; None for what their chat templates ask for.
        cache_precision: of all models, as `edgeformer.runtime.load` takes it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    max_body_bytes: int | None = None
    max_prompt_tokens: int | None = None
    default_max_tokens: int | None = None
    max_pictures: int = 16
    max_picture_bytes: int = 20 << 20
    max_picture_pixels: int = 1 << 26
    picture_hosts: tuple[str, ...] = ()
    picture_seconds: float = 10.0
    max_recordings: int = 16
    max_recording_bytes: int = 20 << 20
    max_recording_seconds: int = 600
    max_choices: int = 16
    max_connections: int = 1000
    max_connections_per_address: int = 500
    max_header_bytes: int = 64 << 10
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    stall_seconds: float = 60.0
    drain_seconds: float = 30.0
    log_prompts: bool = False
    models_memory: int | None = None
    idle_seconds: float = 300.0
    tool_format: str | None = None
    cache_precision: Literal["int8"] | None = None

    def __post_init__(self) -> None:
        at_least_one = (
            "max_body_bytes", "max_prompt_tokens", "default_max_tokens", "max_choices", "models_memory",
            "max_connections", "max_connections_per_address", "max_header_bytes", "max_pictures", "max_picture_bytes",
            "max_picture_pixels", "max_recordings", "max_recording_bytes", "max_recording_seconds",
        )  # fmt: skip
        for name in at_least_one:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.picture_seconds <= 0:
            raise RequestError(f"picture_seconds is {self.picture_seconds}; it must be more than 0.")
        read_hosts(self.picture_hosts)
        for name in ("header_seconds", "body_seconds", "stall_seconds", "drain_seconds", "idle_seconds"):
            if getattr(self, name) < 0:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be 0 or more.")
        if not self.host:
            raise RequestError("host is empty, which would be every address of this machine. Give 0.0.0.0 for that.")
        if self.tool_format not in (None, *FORMATS):
            raise RequestError(f"tool_format is {self.tool_format!r}; it must be one of {', '.join(FORMATS)}.")
        if self.api_key is not None and (not self.api_key.isascii() or not self.api_key.isprintable()):
            raise RequestError("the API key has characters that no HTTP header can carry; use printable ASCII.")
        if self.api_key is not None and not self.api_key.strip():
            raise RequestError("the API key is empty. Give one, or none at all.")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of this server that requests may use, or `*`."""
        if self.allowed_hosts is not None:
            return self.allowed_hosts
        return (*LOOPBACK, self.host) if _is_loopback(self.host) else ("*",)


def _is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only: all of 127.0.0.0/8 is."""
    try:
        return host in LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_api_key(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the API key: the first line of a file, or else that of the environment; None where neither has one.

    Raises RequestError for a file that cannot be read or that is empty.
    """
    if file is None:
        return environment.get(KEY_VARIABLE)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the file of the API key, {file}, cannot be read: {error}.") from None
    if not lines or not lines[0].strip():
        raise RequestError(f"the file of the API key, {file}, is empty; its first line must be the key.")
    return lines[0].strip()
