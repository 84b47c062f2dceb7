"""create_app(settings): all wiring of the server. Nothing happens at import.

uvicorn.run(create_app(Settings(token="…")), loop="uvloop", http="httptools")
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.routing import Router

from opbox_protocol.errors import BadRequestError

from .accounting.accounts import Accounts
from .accounting.books import Books
from .api.endpoint import Endpoint
from .api.events import Events
from .api.identity import Tokens
from .api.metrics import Metrics
from .api.middleware import Middleware
from .api.traffic import Traffic
from .carriers import Answer, Done
from .checkpoint_store import FileCheckpoints
from .dataset_store import FileDatasets
from .models.repository import ModelRepository
from .models.shared_memory import SharedMemory
from .owner_terms import Scope
from .routes.health import ServedModels
from .routes.model_table import DROP_MODELS, MODEL_FIGURES, PREPARE_MODEL
from .routes.page import TAG as PAGE
from .routes.route import RouteTable
from .routes.table import ROUTES
from .settings import Settings
from .stores import open_stores
from .worker.model_publishing import ModelPublishing
from .worker.model_serving import ModelServing
from .worker.model_watch import ModelWatch
from .worker.pool import STARTING, WorkerPool
from .worker.process_pool import ProcessPool
from .worker.thread_pool import ThreadPool
from .worker.walls import walls_of

if TYPE_CHECKING:
    from .api.tracing import OtlpTracing

__all__ = ["ApiProcess", "create_app"]


LAST_S = 2.0
"""Minimum seconds for workers to end, even if requests used up the grace period."""


class ApiProcess:
    """The API process, for the routes of routes/health (see Place there).

    Attributes:
        pool: where calls run.
        books: accounts, usage and the audit log.
        confinement: what confines code of sessions, in a line; empty where there is none.
        served_models: the models that it serves.
        publishing: takes models of owners'.
        stop_by: when its workers are to have ended, by time.monotonic; None while nobody has said.
    """

    def __init__(
        self,
        pool: WorkerPool,
        routes: RouteTable,
        metrics: Metrics,
        watched: Events,
        books: Books,
        tokens: Tokens,
        served_models: ModelServing,
        publishing: ModelPublishing,
        waits_for_models: bool,
    ) -> None:
        self.pool = pool
        self._waits_for_models = waits_for_models
        self._tokens = tokens
        self.served_models: ServedModels = served_models
        self.publishing = publishing
        self._tasks: set[asyncio.Task[None]] = set()
        self.books: Books | None = books
        self._stopping = False
        self.stop_by: float | None = None
        self.confinement = ""
        self._openapi: dict[str, Any] | None = None
        self._writing = threading.Lock()
        self._routes = routes
        self._metrics = metrics
        self._events = watched
        self._cancel: Callable[[str, str], bool] = lambda owner, request_id: False

    def cancel_by(self, cancel: Callable[[str, str], bool]) -> None:
        """Requests are stopped by this function of an owner and a request's id."""
        self._cancel = cancel

    def begin(self, work: Coroutine[Any, Any, Answer | None], done: Done) -> None:
        """Do something that takes its time; `done` gets its answer, an empty one for None, or its error."""

        async def run() -> None:
            try:
                answer = await work
            except Exception as error:
                done(error)
            else:
                done(answer or Answer({}))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def stopping(self) -> bool:
        """True if it takes no calls any more; streams of events end then."""
        return self._stopping

    @stopping.setter
    def stopping(self, stopping: bool) -> None:
        self._stopping = stopping
        if stopping:
            self._events.close()

    @property
    def checkpoints(self) -> FileCheckpoints | None:
        """The store of checkpoints; None where the server has none."""
        return self.pool.checkpoints

    @property
    def datasets(self) -> FileDatasets | None:
        """The store of datasets."""
        return self.pool.datasets

    @property
    def unready(self) -> str:
        """Why calls cannot be taken; empty where they can be."""
        if self.stopping or self.pool.unready:
            return STARTING if self.stopping else self.pool.unready
        if self._waits_for_models and self.served_models.repository.loading:
            return "the server is loading its models: try again in a moment"
        return self._tokens.unready

    async def metrics(self) -> Answer:
        """Prometheus metrics."""
        models = await self.served_models.all_statistics()
        return Answer({}, text=self._metrics.text(models), content_type=self._metrics.content_type)

    def cancel(self, owner: str, request_id: str) -> bool:
        """Stop an owner's request; return False if the id is unknown."""
        return self._cancel(owner, request_id)

    def events(self, owner: str, scopes: frozenset[Scope]) -> AsyncIterator[bytes]:
        """Return the stream of events for an owner with these scopes."""
        return self._events.stream(owner, scopes)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, written when it is first asked for: FastAPI takes a second of processor time for it."""
        with self._writing:  # by the first of several that ask at a time
            if self._openapi is None:
                from .api.openapi import document

                self._openapi = document(self._routes)
        return self._openapi


def create_app(settings: Settings, routes: RouteTable = ROUTES) -> Middleware:
    """The ASGI app. Its lifespan starts and stops the workers; its `server` is the ApiProcess.

    Args:
        settings: with at least one token; without any, no request but liveness is answered.
        routes: the calls that it takes; worker processes take those of `routes.table`.
    """
    plain, settings = settings, settings.without_plain_tokens()
    if not settings.page:
        routes = RouteTable(route for route in routes if route.tag != PAGE)
    processes = settings.isolation == "process"
    accounts = Accounts(settings)
    stores = open_stores(settings, accounts)
    books = Books(settings, accounts, stores.used)
    tokens = Tokens(plain, accounts, books.tokens_read)
    pool: WorkerPool = (
        ProcessPool(settings, books, stores) if processes else ThreadPool(settings, routes, books, stores)
    )
    books.sessions_of = pool.sessions_of
    metrics = Metrics(pool.stats, settings.deadline_s)
    tracing = _tracing_of(settings)

    @asynccontextmanager
    async def lifespan(app: Router) -> AsyncIterator[None]:
        if pool.unready:
            await pool.start()
        books.start(pool.device_times)
        await tokens.start()
        repository.loading = True
        loading = asyncio.create_task(_load_models(served, watch))
        yield
        await tokens.stop()
        server.stopping = True
        loading.cancel()
        rest = settings.stop_grace_s if server.stop_by is None else server.stop_by - time.monotonic()
        await pool.stop(max(LAST_S, rest))
        await books.stop(pool.device_times)
        served.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    traffic = Traffic()
    memory = SharedMemory(settings.shared_memory, settings.max_shared_memory_regions)
    repository = ModelRepository(settings.models, stores.models)
    served = ModelServing(pool, repository, memory, PREPARE_MODEL, DROP_MODELS, MODEL_FIGURES)
    publishing = ModelPublishing(served, stores.models, stores.threads, books.audit.note)
    watch = None if settings.store_url is None else ModelWatch(publishing, served, stores.models)
    watched = Events(pool, routes, settings, traffic, books.history)
    server = ApiProcess(pool, routes, metrics, watched, books, tokens, served, publishing, settings.strict_readiness)
    endpoint = Endpoint(server, settings, metrics, books)
    server.cancel_by(endpoint.cancel)
    if processes:
        server.confinement = walls_of(settings).line
    middleware = Middleware(
        Router(lifespan=lifespan), endpoint, routes, settings, metrics, server, traffic, tokens, books, tracing
    )
    metrics.in_flight.set_function(lambda: middleware.in_flight)
    return middleware


async def _load_models(served: ModelServing, watch: ModelWatch | None) -> None:
    """Load all models; where servers share published ones, go on loading what others publish."""
    try:
        await served.load_all(published=watch is None)
        if watch is not None:
            await watch.look()
    finally:
        served.repository.loading = False
    if watch is not None:
        await watch.run()


def _tracing_of(settings: Settings) -> OtlpTracing | None:
    if settings.otlp_endpoint is None:
        return None
    try:
        from .api.tracing import OtlpTracing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("opentelemetry", "google", "requests"):
            raise
        raise BadRequestError(
            "OPBOX_OTLP_ENDPOINT: needs OpenTelemetry's SDK and exporter: pip install 'opbox-service[otel]'"
        ) from None
    return OtlpTracing(settings.otlp_endpoint, settings.node)
