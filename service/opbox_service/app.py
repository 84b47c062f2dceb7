"""create_app(settings): all wiring of the server. Nothing happens at import.

uvicorn.run(create_app(Settings(token="…")), loop="uvloop", http="httptools")
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from opbox_protocol.errors import BadRequestError, MXNetError, NotFoundError

from .api import graphs, health, ops, sessions
from .api.documents import REQUESTS
from .api.endpoint import Disconnected, Endpoint, Receive, Scope, Send
from .api.front import Front, send_error
from .api.metrics import Metrics
from .settings import Settings
from .worker.host import Host
from .worker.threads import ThreadHost
from .worker.workers import WorkerHost

__all__ = ["create_app"]


def create_app(settings: Settings) -> Front:
    """The ASGI app. Its lifespan starts and stops the workers.

    Args:
        settings: with at least one token; without any, no request but liveness is answered.
    """
    host: Host = WorkerHost(settings) if settings.isolation == "process" else ThreadHost(settings)
    metrics = Metrics(host.facts)
    endpoint = Endpoint(host, settings, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if not host.ready:
            await host.start()
        yield
        app.state.stopping = True
        await host.stop()

    app = FastAPI(
        title="opbox",
        version=version("opbox-service"),
        summary="Neural-network operators over HTTP.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.endpoint = endpoint
    app.state.metrics = metrics
    app.state.host = host
    app.state.stopping = False
    app.state.is_ready = lambda: host.ready and not app.state.stopping
    for router in (health.router, ops.router, graphs.router, sessions.router):
        app.include_router(router)
    _handle_errors(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    front = Front(app, endpoint, settings, metrics)
    metrics.in_flight.set_function(lambda: front.in_flight)
    return front


def _handle_errors(app: FastAPI) -> None:
    for kind in (MXNetError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(Disconnected, _on_disconnect)


async def _on_error(request: Request, error: Exception) -> Response:
    place = f"{request.method} {request.url.path[:100]}"
    if isinstance(error, HTTPException) and error.status_code == 404:
        error = NotFoundError(f"{place}: expected one of the routes of GET /openapi.json")
    elif isinstance(error, HTTPException | RequestValidationError):
        status = getattr(error, "status_code", 400)
        return _Told(BadRequestError(f"{place}: expected a method and parameters of GET /openapi.json"), status)
    return _Told(error)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


class _Told(Response):
    """An error, in the form that all have."""

    def __init__(self, error: BaseException, status: int | None = None) -> None:
        super().__init__()
        self._error = error
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(self._error, scope["opbox"], send, self._status)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The schema, with the bodies that FastAPI does not read and the token that it does not check."""
    if app.openapi_schema is None:
        told = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        _, bodies = models_json_schema(
            [(model, "validation") for model in REQUESTS], ref_template="#/components/schemas/{model}"
        )
        components = told.setdefault("components", {})
        components["schemas"] = {**bodies["$defs"], **components.get("schemas", {})}
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        told["security"] = [{"token": []}]
        told["paths"]["/v2/health/live"]["get"]["security"] = []
        app.openapi_schema = told
    return app.openapi_schema
