"""Serve bundles on a Ray cluster, behind the routes of `edgeformer serve`.

    serve run app:build folder=/models max_replicas=4

Every replica is a process with a core of its own. It opens a bundle when a request first names it, keeps the
MODELS_PER_REPLICA that were used last, and runs the requests of each together in an `Engine`. Ray Serve sends a request
to a replica that has its model already, by the header `serve_multiplexed_model_id`; a request without it goes to the
first bundle of the folder. Ray starts and ends replicas so that each has about ONGOING requests.
"""

from pathlib import Path
from typing import Any

from ray import serve

MODELS_PER_REPLICA = 2
ONGOING = 8
"""Requests of a replica that run together: the rows of an engine, by default."""


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=4 * ONGOING)
@serve.ingress()
class Bundles:
    """The bundles in a folder that all nodes see."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._names = sorted(path.parent.name for path in self._folder.glob("*/edgeformer.json"))
        if not self._names:
            raise ValueError(f"{folder} holds no bundles. Make one with: edgeformer export --output {folder}/NAME")

    def __serve_build_asgi_app__(self) -> Any:
        """Return the ASGI application of this replica; Ray Serve calls it after the constructor."""

        async def respond(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return
            name = serve.get_multiplexed_model_id() or self._names[0]
            if name not in self._names:
                await not_found(send, name, self._names)
                return
            opened = await self.open(name)
            await opened.app(scope, receive, send)

        return respond

    @serve.multiplexed(max_num_models_per_replica=MODELS_PER_REPLICA)
    async def open(self, name: str) -> "Opened":
        """Open a bundle; Ray Serve keeps what this returns, and drops the one that was not used for longest."""
        return Opened(self._folder / name)


class Opened:
    """A bundle with its engine and its application."""

    def __init__(self, folder: Path) -> None:
        from edgeformer.server import ServerOptions, create_app, load_models

        self._models = load_models([folder], "cpu", threads=1)
        self.app = create_app(self._models, ServerOptions(allowed_hosts=("*",)))

    def __del__(self) -> None:
        self._models.close(drain=False)


async def not_found(send: Any, name: str, names: list[str]) -> None:
    """Answer a request for a model that is not there, as the API of OpenAI does."""
    import json

    message = f"there is no model {name!r} here; there is {', '.join(names)}."
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": "model_not_found"}})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


def build(arguments: dict[str, str]) -> Any:
    """Return the application for `serve run app:build folder=FOLDER max_replicas=N`."""
    scaling = {
        "min_replicas": 1,
        "max_replicas": int(arguments.get("max_replicas", 2)),
        "target_ongoing_requests": ONGOING,
    }
    return Bundles.options(autoscaling_config=scaling).bind(arguments["folder"])
