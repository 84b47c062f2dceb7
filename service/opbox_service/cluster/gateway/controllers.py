"""Controllers: what a gateway asks the cluster's controller, wherever that runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ..controller import Controller, Outcome
from ..documents import Directory, GoneSession, SessionWish
from ..summaries import cluster_summary

__all__ = ["Controllers", "LocalControllers"]


class Controllers(Protocol):
    """The controller, as gateways reach it. A method may raise OSError or MXNetError while it is not reached."""

    async def place(self, wish: SessionWish) -> Outcome:
        """Find a node for a session; asking again with the same wish asks for the same place."""

    async def directory(self, since: int) -> Directory:
        """The directory; the same version while nothing has changed."""

    async def move(self, session_id: str, new_id: str, owner: str) -> None:
        """Record that a lost session of an owner's goes on as another."""

    async def where(self, session_id: str) -> str | GoneSession:
        """The URL of the node that has a session, or why none has."""

    async def summary(self) -> dict[str, Any]:
        """Figures of nodes, and sessions that wait; see `cluster_summary`."""


class LocalControllers:
    """A controller in this process.

    Args:
        controller: as above.
        now: its clock.
    """

    def __init__(self, controller: Controller, now: Callable[[], float] = time.time) -> None:
        self.controller, self._now = controller, now

    async def place(self, wish: SessionWish) -> Outcome:
        """See Controllers."""
        return self.controller.place(wish, self._now())

    async def directory(self, since: int) -> Directory:
        """See Controllers."""
        return self.controller.directory(since)

    async def move(self, session_id: str, new_id: str, owner: str) -> None:
        """See Controllers."""
        self.controller.move(session_id, new_id, owner, self._now())

    async def where(self, session_id: str) -> str | GoneSession:
        """See Controllers."""
        return self.controller.where(session_id)

    async def summary(self) -> dict[str, Any]:
        """See Controllers."""
        return cluster_summary(self.controller)
