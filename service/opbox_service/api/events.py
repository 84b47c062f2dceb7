"""Server-sent events of `GET /v1/events`: the server's state once a second, collected only while a client watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from opbox_protocol import routes as paths
from opbox_protocol.errors import MXNetError

from ..accounting.history import SessionHistory
from ..carriers import RawRequest
from ..json_text import write
from ..owner_terms import Scope
from ..routes.health import server_metadata
from ..routes.route import RouteTable
from ..settings import Settings
from ..worker.pool import WorkerPool
from .traffic import Traffic

__all__ = ["Events"]

INTERVAL_S = 1.0
ANSWER_S = 2.0
"""Seconds to wait for a worker's answer; after that its last answer is sent again."""


class Events:
    """The streams of one server.

    Args:
        pool: the workers.
        routes: with the calls that are made to them.
        settings: of the server.
        traffic: the requests.
        history: what sessions' programs report.
    """

    def __init__(
        self, pool: WorkerPool, routes: RouteTable, settings: Settings, traffic: Traffic, history: SessionHistory
    ) -> None:
        self._history = history
        self._pool = pool
        self._routes = routes
        self._settings = settings
        self._traffic = traffic
        self._begun = time.monotonic()
        self._closed = False
        self._close: Callable[[], object] = lambda: None
        self._closing: asyncio.Event | None = None
        self._messages: dict[tuple[str, frozenset[Scope]], tuple[float, asyncio.Task[bytes]]] = {}
        self._lists: dict[tuple[str, str], list[Any]] = {}

    def close(self) -> None:
        """End all streams: the server stops. Any thread, and any handler of a signal, may call this."""
        self._closed = True
        self._close()

    async def stream(self, owner: str, scopes: frozenset[Scope]) -> AsyncIterator[bytes]:
        """The events for an owner with these scopes; it ends with the server."""
        closing = self._closing = self._closing or asyncio.Event()
        self._close = partial(asyncio.get_running_loop().call_soon_threadsafe, closing.set)
        self._traffic.watch()
        try:
            yield b"retry: 2000\n\n"
            while not self._closed:
                yield await self._message(owner, scopes)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(closing.wait(), INTERVAL_S)
        finally:
            self._traffic.unwatch()
            if not self._traffic.watchers:
                self._messages.clear()
                self._lists.clear()

    async def _message(self, owner: str, scopes: frozenset[Scope]) -> bytes:
        """Return the current event, shared by clients with the same rights."""
        key, now = (owner, scopes), time.monotonic()
        at, task = self._messages.get(key, (float("-inf"), None))
        if task is None or now - at > INTERVAL_S / 2:
            task = asyncio.create_task(self._described(owner, scopes))
            self._messages[key] = (now, task)
        return await asyncio.shield(task)

    async def _described(self, owner: str, scopes: frozenset[Scope]) -> bytes:
        data = await asyncio.to_thread(write, await self.state(owner, scopes), "null")
        return b"event: state\ndata: %b\n\n" % data

    async def state(self, owner: str, scopes: frozenset[Scope]) -> dict[str, Any]:
        """Return the state that an owner with these scopes may see."""
        administers = "admin" in scopes
        sees_all = administers or "metrics" in scopes
        path = paths.ADMIN_SESSIONS if administers else paths.SESSIONS
        sessions, devices = await asyncio.gather(
            self._listed(path, "sessions", owner, scopes), self._listed(paths.DEVICES, "devices", owner, scopes)
        )
        stats, about = self._pool.stats(), server_metadata()
        state: dict[str, Any] = {
            "time": time.time(),
            "you": {"owner": owner, "scopes": sorted(scopes)},
            "server": {
                "version": about["version"],
                "cpu": about["cpu"],
                "gpu": about["gpu"],
                "ready": not self._pool.unready,
                "uptime_s": round(time.monotonic() - self._begun, 1),
                "isolation": self._settings.isolation,
                "device": self._settings.device,
                "node": self._settings.node,
            },
            "devices": devices,
            "sessions": [self._watched(owner, {"owner": owner, **session}) for session in sessions],
            "ended": self._history.ended_so_far(owner),
            "requests": await asyncio.to_thread(self._traffic.requests, None if sees_all else owner),
            "errors": self._traffic.errors(None if administers else owner),
        }
        if sees_all:
            state["workers"] = [
                {"name": name, "resident_bytes": resident, "sessions": stats.sessions_of.get(name)}
                for name, resident in stats.resident.items()
            ]
            state["server"] |= {
                "sessions": stats.sessions,
                "restarts": stats.restarts,
                "buffer_bytes": stats.buffer_bytes,
                "code_deaths": stats.code_deaths,
            }
        return state

    def _watched(self, owner: str, session: dict[str, Any]) -> dict[str, Any]:
        """The session, with the latest values that its program reported, where it is the watcher's own."""
        if session["owner"] != owner:
            return session
        return {**session, **self._history.watched(owner, session["id"])}

    async def _listed(self, path: str, key: str, owner: str, scopes: frozenset[Scope]) -> list[Any]:
        """Return the workers' answers to a GET, or their last ones where a worker is too busy."""
        route, parameters = self._routes.match("GET", path)
        request = RawRequest(route, parameters, path, owner, scopes, "events")
        try:
            response = await asyncio.wait_for(self._pool.call(request), ANSWER_S)
        except (MXNetError, TimeoutError):
            return self._lists.get((path, owner), [])
        try:
            rows: list[Any] = json.loads(bytes(response.body)).get(key, [])
        finally:
            response.release()
        self._lists[path, owner] = rows
        return rows
