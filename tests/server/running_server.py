"""A server in a thread of the test's process, over bundles of the presets."""

import contextlib
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai

from edgeformer.server.http.run import DrainingServer, listen, open_models, url_of
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.served import ServedModels

TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nCall as <tool_call>{"name": …}</tool_call>: ' + tools | tojson + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + (call.function.arguments.city or call.function.arguments.input) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""


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
    bundles: list[Path],
    engine: dict[str, object] | None = None,
    send_buffer: int | None = None,
    models_dir: Path | None = None,
    **options: object,
) -> Iterator[Running]:
    """Serve bundles while the `with` lasts. send_buffer: bytes that the kernel keeps for a slow client."""
    chosen = ServerOptions(port=0, **options)
    models = open_models(bundles, chosen, "cpu", 1, engine, models_dir=models_dir)
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


def with_tools(bundle: Path, folder: Path) -> Path:
    """Copy a bundle to a folder, with a chat template that has tools."""
    shutil.copytree(bundle, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    manifest = json.loads((folder / "edgeformer.json").read_text())
    manifest["files"]["chat_template.jinja"]["bytes"] = len(TEMPLATE.encode())
    (folder / "edgeformer.json").write_text(json.dumps(manifest))
    return folder
