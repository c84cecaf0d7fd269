"""Serve bundles over HTTP, by the API of OpenAI that clients of all languages speak.

    from edgeformer.server import ServerOptions, create_app, load_models, serve
    serve(["tiny-llama"], ServerOptions(port=8000))                    # what `edgeformer serve tiny-llama` does
    app = create_app(load_models(["tiny-llama"]), ServerOptions())     # an ASGI application, for a server of your own

It needs the extra `server`. Routes read a request (`bodies`), make token ids and a `GenerationConfig` of it (`prompts`,
`config_of_body`), submit them to the `Engine` of the model (`served`), and write what comes back (`chat`,
`completions`). Tool calls are read, and held to schemas, in `tool_calls`. Nothing here knows rows, caches or sessions.
"""

import importlib
from typing import TYPE_CHECKING, Any

from edgeformer.errors import require

if TYPE_CHECKING:
    from edgeformer.server.http.app import create_app
    from edgeformer.server.http.run import serve
    from edgeformer.server.service.options import ServerOptions
    from edgeformer.server.service.served import load_models

__all__ = ["ServerOptions", "create_app", "load_models", "serve"]

_LAZY = {
    "ServerOptions": "edgeformer.server.service.options",
    "create_app": "edgeformer.server.http.app",
    "load_models": "edgeformer.server.service.served",
    "serve": "edgeformer.server.http.run",
}

PACKAGES = ("starlette", "uvicorn", "pydantic", "prometheus_client", "python_multipart")
"""Packages of the extra `server`."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in PACKAGES:
        require(package, "server")
    return getattr(importlib.import_module(_LAZY[name]), name)
