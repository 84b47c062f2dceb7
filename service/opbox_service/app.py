"""create_app(settings): all wiring of the server. Nothing happens at import.

uvicorn.run(create_app(Settings(token="…")), loop="uvloop", http="httptools")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from opbox_protocol.errors import BadRequestError, MXNetError, NotFoundError

from .api.endpoint import Disconnected, Endpoint, Receive, Scope, Send
from .api.metrics import Metrics
from .api.middleware import Middleware, send_error
from .api.openapi import add_routes, document
from .routes.route import RouteTable
from .routes.table import ROUTES
from .settings import Settings
from .worker.pool import WorkerPool
from .worker.process_pool import ProcessPool
from .worker.thread_pool import ThreadPool

__all__ = ["ApiProcess", "create_app"]


class ApiProcess:
    """The API process, for the routes of routes/health (see Place there).

    Attributes:
        pool: where calls run.
        stopping: whether it takes no calls any more.
    """

    def __init__(self, app: FastAPI, pool: WorkerPool, routes: RouteTable, metrics: Metrics) -> None:
        self.pool = pool
        self.stopping = False
        self._app = app
        self._routes = routes
        self._metrics = metrics
        self._cancel: Callable[[str, str], bool] = lambda owner, request_id: False

    def cancel_by(self, cancel: Callable[[str, str], bool]) -> None:
        """Requests are stopped by this function of an owner and a request's id."""
        self._cancel = cancel

    @property
    def ready(self) -> bool:
        """Whether calls can be taken."""
        return self.pool.ready and not self.stopping

    def metrics(self) -> tuple[bytes, str]:
        """Prometheus metrics, and their content type."""
        return self._metrics.text(), self._metrics.content_type

    def cancel(self, owner: str, request_id: str) -> bool:
        """Stop a request of the owner's; False when there is none of that id."""
        return self._cancel(owner, request_id)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return document(self._app, self._routes)


def create_app(settings: Settings, routes: RouteTable = ROUTES) -> Middleware:
    """The ASGI app. Its lifespan starts and stops the workers; its `server` is the ApiProcess.

    Args:
        settings: with at least one token; without any, no request but liveness is answered.
        routes: the calls that it takes; worker processes take those of `routes.table`.
    """
    processes = settings.isolation == "process"
    pool: WorkerPool = ProcessPool(settings) if processes else ThreadPool(settings, routes)
    metrics = Metrics(pool.stats, settings.deadline_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if not pool.ready:
            await pool.start()
        yield
        server.stopping = True
        await pool.stop()

    app = FastAPI(
        title="opbox",
        version=version("opbox-service"),
        summary="Neural-network operators over HTTP.",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    server = ApiProcess(app, pool, routes, metrics)
    endpoint = Endpoint(server, settings, metrics)
    server.cancel_by(endpoint.cancel)
    add_routes(app, routes, endpoint)
    _handle_errors(app)
    middleware = Middleware(app, endpoint, routes, settings, metrics, server)
    metrics.in_flight.set_function(lambda: middleware.in_flight)
    return middleware


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
        return _ErrorResponse(
            BadRequestError(f"{place}: expected a method and parameters of GET /openapi.json"), status
        )
    return _ErrorResponse(error)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


class _ErrorResponse(Response):
    """An error, in the form that all have."""

    def __init__(self, error: BaseException, status: int | None = None) -> None:
        super().__init__()
        self._error = error
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(self._error, scope["opbox"], send, self._status)
