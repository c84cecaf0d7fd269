"""Routes for people and machines that watch the server: the page, /health, /ready, /metrics."""

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.service.state import state_of

PAGE_HEADERS = {
    # The page holds its script and its styles, and calls nothing but this server.
    "content-security-policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


async def page(request: Request) -> Response:
    """Return the page to chat in a browser."""
    html = (files("edgeformer.server.http") / "page" / "index.html").read_text(encoding="utf-8")
    return Response(html, media_type="text/html", headers=PAGE_HEADERS)


async def health(request: Request) -> Response:
    """Say that the process lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Say whether new requests are taken: not after SIGTERM. It asks for no key, and names no models."""
    if state_of(request).draining:
        raise ApiError(503, "the server is stopping and takes no more requests.", code="draining")
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus."""
    return Response(state_of(request).metrics.text(), media_type="text/plain; version=0.0.4")
