"""A server in a thread of the test's process, over bundles of the presets."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai

from edgeformer.server.options import ServerOptions
from edgeformer.server.run import DrainingServer, listen, url_of
from edgeformer.server.served import ServedModels, load_models


@dataclass
class Running:
    """A server that runs. url: without a path."""

    url: str
    models: ServedModels
    server: DrainingServer

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, path: str, body: object) -> httpx2.Response:
        return httpx2.post(f"{self.url}{path}", json=body, timeout=60)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", timeout=60)


@contextlib.contextmanager
def running(
    bundles: list[Path], engine: dict[str, object] | None = None, send_buffer: int | None = None, **options: object
) -> Iterator[Running]:
    """Serve bundles while the `with` lasts. send_buffer: bytes that the kernel keeps for a slow client."""
    chosen = ServerOptions(port=0, **options)
    models = load_models(bundles, "cpu", 1, engine)
    with listen(chosen) as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        server = DrainingServer(models, chosen)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Running(url_of(listener), models, server)
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            models.close(drain=False)
    assert not thread.is_alive()
