"""Figures: what the gateway answers of the cluster at GET /v1/cluster, asked of the controller once for all callers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from opbox_protocol.errors import MXNetError

from ...api.caller import Identity
from ...models.model_store import public_name
from ..documents import Directory
from .controllers import Controllers

__all__ = ["ClusterFigures"]

SUMMARY_S = 0.5
"""Seconds for which the controller's summary is shown."""
_WATCHERS = frozenset({"admin", "metrics"})


class ClusterFigures:
    """The cluster's figures.

    Args:
        controllers: the cluster's controller.
    """

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._asked = float("-inf")
        self._task: asyncio.Task[dict[str, Any]] | None = None
        self._summary: dict[str, Any] = {"nodes": {}, "waiting": {}}

    async def answer(self, directory: Directory, in_flight: dict[str, int], caller: Identity) -> dict[str, Any]:
        """The nodes and models. Numbers of sessions, which are others' too, are for `admin` and `metrics` alone.

        Args:
            directory: as the gateway knows it.
            in_flight: by node, requests that pass through the gateway.
            caller: who asks.
        """
        summary = await self._now()
        own = public_name(caller.owner, "")
        served = {
            name: names
            for name, names in sorted(directory.models.items())
            if "." not in name or name.startswith(own) or "admin" in caller.scopes  # others' names are theirs
        }
        models: dict[str, list[str]] = {name: [] for name in directory.nodes}
        for model, names in served.items():
            for name in names:
                models.setdefault(name, []).append(model)
        nodes: list[dict[str, Any]] = []
        for name, node in sorted(directory.nodes.items()):
            row = {"name": name, "url": node.url, "state": node.state, "in_flight": in_flight[name]}
            row |= {"devices": {}, "version": "", "sessions": None, "queue": None} | summary["nodes"].get(name, {})
            nodes.append({**row, "models": sorted(models[name])})
        answer = {
            "version": directory.version,
            "nodes": nodes,
            "models": [{"name": name, "nodes": list(names)} for name, names in served.items()],
            "waiting": summary["waiting"],
        }
        if not caller.scopes & _WATCHERS:
            del answer["waiting"]
            for row in nodes:
                del row["sessions"], row["queue"]
        return answer

    async def _now(self) -> dict[str, Any]:
        """The controller's summary; the last one while the controller is not reached."""
        if self._task is None or (self._task.done() and time.monotonic() - self._asked > SUMMARY_S):
            self._asked = time.monotonic()
            self._task = asyncio.ensure_future(self._controllers.summary())
        with contextlib.suppress(OSError, MXNetError):
            self._summary = await asyncio.shield(self._task)
        return self._summary
