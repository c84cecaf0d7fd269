"""Run the server with uvicorn until SIGTERM or SIGINT: stop accepting, finish what runs, cancel what takes too long."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from edgeformer.errors import RequestError
from edgeformer.server.http.app import create_app
from edgeformer.server.http.connections import bounded_connection
from edgeformer.server.service.model_folder import ModelFolder
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.records import LOG, log_to_stderr
from edgeformer.server.service.served import ServedModel, ServedModels, load_model, load_models
from edgeformer.server.service.state import State

LAST_SECONDS = 5
"""Time that requests have to say so after they were cancelled, before their connections are cut."""


def serve(
    bundles: Sequence[str | Path],
    options: ServerOptions,
    provider: Any = "auto",
    threads: int | None = None,
    engine_options: Mapping[str, Any] | None = None,
    draft: str | Path | None = None,
    models_dir: str | Path | None = None,
) -> None:
    """Serve bundles until SIGTERM or SIGINT; return when all running requests have ended.

    Args:
        provider: as of `load_models`, like the next three.
        threads: that one model computes with.
        engine_options: of each model's engine.
        draft: bundle of a smaller model that drafts tokens, or `mtp` for a layer of the bundle itself.
        models_dir: a folder of bundles that are loaded when a request names them, and put to sleep when nobody uses
            them.

    Raises RequestError where it cannot listen, and for what cannot be served.
    """
    log_to_stderr()
    with listen(options) as listener:
        models = open_models(bundles, options, provider, threads, engine_options, draft, models_dir)
        # uvicorn raises the signal again when it has drained; this exit is not a failure.
        previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            server = DrainingServer(models, options)
            url = url_of(listener)
            names = ", ".join(models.names())
            LOG.info(f"serving {names} at {url}", extra={"fields": {"url": url}})
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, previous)
            models.close(drain=False)
    LOG.info("stopped")


def open_models(
    bundles: Sequence[str | Path],
    options: ServerOptions,
    provider: Any = "auto",
    threads: int | None = None,
    engine_options: Mapping[str, Any] | None = None,
    draft: str | Path | None = None,
    models_dir: str | Path | None = None,
) -> ServedModels:
    """Return the models of a server: bundles that stay loaded, and those of a folder."""
    given = provider, threads, engine_options
    settings: dict[str, Any] = {"tool_format": options.tool_format, "cache_precision": options.cache_precision}
    if models_dir is None:
        return load_models(bundles, *given, draft, **settings)
    always = load_models(bundles, *given, draft, **settings) if bundles else ()

    def load(folder: Path) -> list[ServedModel]:
        return load_model(folder, *given, **settings)

    return ModelFolder(always, Path(models_dir), load, options.models_memory, options.idle_seconds)


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which cancels what still runs `drain_seconds` after it was told to stop."""

    def __init__(self, models: ServedModels, options: ServerOptions):
        app = create_app(models, options)
        # Without a lifespan, nothing of the application runs before or after its requests.
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, date_header=False, lifespan="off", ws="none",
            http=bounded_connection(options), timeout_graceful_shutdown=int(options.drain_seconds) + LAST_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self._state: State = app.state.edgeformer
        self._loop: asyncio.AbstractEventLoop | None = None  # once it is to stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal. A second one cancels what runs, so that it ends with an event that says so."""
        if not self.should_exit:
            super().handle_exit(sig, frame)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._state.cancel_running)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for running requests, then cancel them."""
        self._state.draining = True
        self._loop = asyncio.get_running_loop()
        LOG.info("draining", extra={"fields": {"running": len(self._state.running)}})
        timer = asyncio.get_running_loop().call_later(self._state.options.drain_seconds, self._state.cancel_running)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            self._state.close()


def url_of(listener: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(options: ServerOptions) -> socket.socket:
    """Return a socket that listens. Raises RequestError where that is not possible."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        options.host.encode("idna")  # as `bind` does, after a socket was opened, which it would leave open
        return socket.create_server((options.host, options.port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RequestError(
            f"port {options.port} of {options.host} cannot be listened at: {reason}. Choose another with --port."
        ) from None
