"""The ASGI application: routes, and what stands before them."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgeformer.server.endpoints import status
from edgeformer.server.endpoints.chat import chat_completions
from edgeformer.server.endpoints.completions import completions
from edgeformer.server.endpoints.infill import infill
from edgeformer.server.endpoints.messages import count_tokens, messages
from edgeformer.server.endpoints.rerank import rerank
from edgeformer.server.endpoints.responses import input_tokens, responses
from edgeformer.server.endpoints.texts import detokenize, embeddings, list_models, show_model, tokenize
from edgeformer.server.endpoints.transcriptions import transcriptions, translations
from edgeformer.server.http.middleware import Guard, Recorder
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.service.metrics import Metrics
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.served import ServedModels
from edgeformer.server.service.state import State

ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/responses", responses, methods=["POST"]),
    Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    Route("/infill", infill, methods=["POST"]),
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/v1/rerank", rerank, methods=["POST"]),
    Route("/v2/rerank", rerank, methods=["POST"]),
    Route("/rerank", rerank, methods=["POST"]),
    Route("/v1/audio/transcriptions", transcriptions, methods=["POST"]),
    Route("/v1/audio/translations", translations, methods=["POST"]),
    Route("/v1/models", list_models),
    Route("/v1/models/{name}", show_model),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/health", status.health),
    Route("/ready", status.ready),
    Route("/metrics", status.metrics),
    Route("/", status.page),
]
"""All routes. The first lines of their functions' docstrings describe them in the reference."""


def create_app(models: ServedModels, options: ServerOptions) -> Starlette:
    """Return the ASGI application that serves these models. Whoever runs it closes the models in the end."""
    state = State(models, options, Metrics(models))
    labels = {route.path: route.path for route in ROUTES}
    labels |= {f"/v1/models/{name}": "/v1/models/{name}" for name in models.names()}
    middleware = [Middleware(Recorder, state=state, routes=labels)]
    if options.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(options.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                allow_private_network=True,
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    middleware.append(Middleware(Guard, state=state))
    app = Starlette(routes=ROUTES, middleware=middleware, exception_handlers={HTTPException: _http_error})
    app.state.edgeformer = state
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """Return starlette's own errors, an unknown path or method, in the form of the API."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}."
    response = ApiError(error.status_code, message).response()
    response.headers.update(error.headers or {})
    return response
