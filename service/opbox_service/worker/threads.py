"""`--isolation none`: the engine in this process, on a pool of threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from opbox_protocol.errors import DeadlineError, NotReadyError

from ..buffers import Lease, Pool
from ..engine import Engine
from ..frames import Framed, Laid, limits_of, serve
from ..settings import Settings
from .host import Outcome, Request
from .memory import resident_bytes

__all__ = ["ThreadHost"]

INLINE = 1 << 15
_log = structlog.get_logger("opbox.engine")


class ThreadHost:
    """See Host."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = limits_of(settings)
        self._pool = Pool(shared=False, limit=settings.max_buffer_bytes, keep=settings.buffer_cache_bytes)
        self._threads = ThreadPoolExecutor(settings.threads, "opbox-call")
        self._engine: Engine | None = None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self._engine is not None

    async def start(self) -> None:
        self._engine = await asyncio.get_running_loop().run_in_executor(self._threads, Engine, self._settings)
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        engine, self._engine = self._engine, None
        if self._sweeping is not None:
            self._sweeping.cancel()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._threads.shutdown)
        if engine is not None:
            await loop.run_in_executor(None, engine.close)
        self._pool.close()

    def lease(self, request: Request, nbytes: int) -> Lease:
        return self._pool.lease(nbytes)

    async def call(self, request: Request) -> Outcome:
        engine = self._engine
        if engine is None:
            _release(request)
            raise NotReadyError("the server is starting or stopping: try again in a moment")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Outcome | BaseException) -> None:
            if answered.done():
                if isinstance(outcome, Outcome):
                    outcome.release()
            elif isinstance(outcome, BaseException):
                answered.set_exception(outcome)
            else:
                answered.set_result(outcome)

        def send(laid: Laid) -> None:
            _release(request)
            if laid.problem is not None:
                _log.error("internal error", request_id=request.request_id, exc_info=laid.problem)
            try:
                outcome: Outcome | BaseException = self._lay_out(laid)
            except Exception as error:
                outcome = error
            loop.call_soon_threadsafe(settle, outcome)

        def work() -> None:
            body = request.body.view if isinstance(request.body, Lease) else request.body or b""
            framed = Framed(
                request.method,
                request.path,
                request.owner,
                request.scopes,
                body,
                request.header_length,
                request.binary,
            )
            rest = serve(engine, framed, self._limits, send)
            if rest is not None:
                rest()

        deadline = self._settings.deadline_s
        late = DeadlineError(f"{request.method} {request.path}: expected an answer within {deadline:g} s, got none")
        timer = loop.call_later(deadline, settle, late)
        try:
            try:
                self._threads.submit(work)
            except RuntimeError:  # the pool has been shut down
                _release(request)
                raise NotReadyError("the server is stopping: try again when it is back") from None
            return await answered
        finally:
            timer.cancel()

    def facts(self) -> dict[str, Any]:
        return {
            "sessions": len(self._engine.sessions) if self._engine is not None else 0,
            "restarts": 0,
            "rss": {"api": resident_bytes()},
            "buffer_bytes": self._pool.lent_bytes,
            "code_workers": 0,
            "code_deaths": {},
        }

    def _lay_out(self, laid: Laid) -> Outcome:
        """The answer in memory of its own: what it points to is reused as soon as this returns."""
        size = laid.size
        if size <= INLINE:
            return Outcome(laid.status, b"".join([laid.head, *laid.buffers]), laid.header_length, laid.commands)
        lease = self._pool.lease(size)
        laid.write_to(lease.view)
        return Outcome(laid.status, lease.view, laid.header_length, laid.commands, lease.release)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(10)
            self._pool.sweep()


def _release(request: Request) -> None:
    if isinstance(request.body, Lease):
        request.body.release()
