"""create_app(settings): all wiring of the server. Nothing happens at import.

uvicorn.run(create_app(Settings(token="…")), loop="uvloop", http="httptools")
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from opbox_protocol.errors import BadRequestError, MXNetError, NotFoundError

from .accounting.accounts import Accounts
from .accounting.books import Books
from .api.endpoint import Endpoint
from .api.events import Events
from .api.identity import Tokens
from .api.metrics import Metrics
from .api.middleware import Middleware, send_error
from .api.openapi import add_routes, document
from .api.request_context import Disconnected, Receive, Send
from .api.request_context import Scope as HttpScope
from .api.traffic import Traffic
from .checkpoint_store import FileCheckpoints, store_of
from .routes.page import TAG as PAGE
from .routes.route import RouteTable
from .routes.table import ROUTES
from .settings import Scope, Settings
from .worker.pool import WorkerPool
from .worker.process_pool import ProcessPool
from .worker.thread_pool import ThreadPool

__all__ = ["ApiProcess", "create_app"]


LAST_S = 2.0
"""How long workers have to end, at the least, when requests have taken the whole grace period."""


class ApiProcess:
    """The API process, for the routes of routes/health (see Place there).

    Attributes:
        pool: where calls run.
        books: accounts, usage and the audit log.
        stop_by: when its workers are to have ended, by time.monotonic; None while nobody has said.
    """

    def __init__(
        self, app: FastAPI, pool: WorkerPool, routes: RouteTable, metrics: Metrics, watched: Events, books: Books
    ) -> None:
        self.pool = pool
        self.books: Books | None = books
        self._stopping = False
        self.stop_by: float | None = None
        self._app = app
        self._routes = routes
        self._metrics = metrics
        self._events = watched
        self._cancel: Callable[[str, str], bool] = lambda owner, request_id: False

    def cancel_by(self, cancel: Callable[[str, str], bool]) -> None:
        """Requests are stopped by this function of an owner and a request's id."""
        self._cancel = cancel

    @property
    def stopping(self) -> bool:
        """Whether it takes no calls any more; streams of events end then."""
        return self._stopping

    @stopping.setter
    def stopping(self, stopping: bool) -> None:
        self._stopping = stopping
        if stopping:
            self._events.close()

    @property
    def checkpoints(self) -> FileCheckpoints | None:
        """Where they are saved; None where there is no place."""
        return self.pool.checkpoints

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

    def events(self, owner: str, scopes: frozenset[Scope]) -> AsyncIterator[bytes]:
        """What goes on, for an owner with these scopes."""
        return self._events.stream(owner, scopes)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return document(self._app, self._routes)


def create_app(settings: Settings, routes: RouteTable = ROUTES) -> Middleware:
    """The ASGI app. Its lifespan starts and stops the workers; its `server` is the ApiProcess.

    Args:
        settings: with at least one token; without any, no request but liveness is answered.
        routes: the calls that it takes; worker processes take those of `routes.table`.
    """
    if not settings.page:
        routes = RouteTable(route for route in routes if route.tag != PAGE)
    processes = settings.isolation == "process"
    accounts = Accounts(settings)
    checkpoints = store_of(settings, accounts)
    books = Books(settings, accounts, checkpoints.used if checkpoints is not None else None)
    tokens = Tokens(settings, accounts, books.tokens_read)
    pool: WorkerPool = (
        ProcessPool(settings, books, checkpoints) if processes else ThreadPool(settings, routes, books, checkpoints)
    )
    books.sessions_of = pool.sessions_of
    metrics = Metrics(pool.stats, settings.deadline_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if not pool.ready:
            await pool.start()
        books.start(pool.device_times)
        yield
        server.stopping = True
        rest = settings.stop_grace_s if server.stop_by is None else server.stop_by - time.monotonic()
        await pool.stop(max(LAST_S, rest))
        await books.stop(pool.device_times)

    app = FastAPI(
        title="opbox",
        version=version("opbox-service"),
        summary="Neural-network operators over HTTP.",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    traffic = Traffic()
    server = ApiProcess(app, pool, routes, metrics, Events(pool, routes, settings, traffic), books)
    endpoint = Endpoint(server, settings, metrics, books)
    server.cancel_by(endpoint.cancel)
    add_routes(app, routes, endpoint)
    _handle_errors(app, routes)
    middleware = Middleware(app, endpoint, routes, settings, metrics, server, traffic, tokens, books)
    metrics.in_flight.set_function(lambda: middleware.in_flight)
    return middleware


def _handle_errors(app: FastAPI, routes: RouteTable) -> None:
    for kind in (MXNetError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, partial(_on_error, routes))
    app.add_exception_handler(Disconnected, _on_disconnect)


async def _on_error(routes: RouteTable, request: Request, error: Exception) -> Response:
    place = f"{request.method} {request.url.path[:100]}"
    if isinstance(error, HTTPException) and error.status_code == 404:
        error = NotFoundError(f"{place}: expected one of the routes of GET /openapi.json")
    elif isinstance(error, HTTPException | RequestValidationError):
        status = getattr(error, "status_code", 400)
        wrong = BadRequestError(f"{place}: expected a method and parameters of GET /openapi.json")
        return _ErrorResponse(wrong, status, routes.methods(request.url.path) if status == 405 else ())
    return _ErrorResponse(error)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


class _ErrorResponse(Response):
    """An error, in the form that all have."""

    def __init__(self, error: BaseException, status: int | None = None, allowed: Sequence[str] = ()) -> None:
        super().__init__()
        self._error = error
        self._status = status
        self._allowed = allowed

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        await send_error(self._error, scope["opbox"], send, self._status, self._allowed)
