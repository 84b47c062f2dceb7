"""The controller as the gateway's process reaches it: an actor of Ray's."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from opbox_protocol.errors import NotReadyError

from .controller import Outcome
from .documents import Directory, GoneSession, SessionWish
from .node_actor import CONTROLLER
from .ray_start import connect as connect_ray

__all__ = ["RayControllers", "connect"]

ANSWER_S = 10.0
"""Seconds without an answer after which the controller counts as not reached."""


class RayControllers:
    """The controller of the cluster that this process is connected to."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def place(self, wish: SessionWish) -> Outcome:
        """Find a node for a session; asking again with the same wish asks for the same place.

        Raises:
            NotReadyError: the controller is not reached, as in the other methods.
        """
        outcome: Outcome = await self._call("place", wish)
        return outcome

    async def directory(self, since: int) -> Directory:
        """The directory; the same version while nothing has changed."""
        directory: Directory = await self._call("directory", since)
        return directory

    async def move(self, session_id: str, new_id: str, owner: str) -> None:
        """Record that a lost session of an owner's goes on as another."""
        await self._call("move", session_id, new_id, owner)

    async def where(self, session_id: str) -> str | GoneSession:
        """The URL of the node that has a session, or why none has."""
        place: str | GoneSession = await self._call("where", session_id)
        return place

    async def summary(self) -> dict[str, Any]:
        """Figures of nodes, and sessions that wait; see `cluster_summary`."""
        summary: dict[str, Any] = await self._call("summary")
        return summary

    async def _call(self, method: str, *arguments: object) -> Any:
        import ray

        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(ray.get_actor, CONTROLLER)
            return await asyncio.wait_for(getattr(self._actor, method).remote(*arguments), ANSWER_S)
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
            self._actor = None
            raise NotReadyError(
                f"cluster: controller: expected an answer, got {type(error).__name__}: try again in some seconds"
            ) from None


def connect() -> RayControllers:
    """Connect this process to Ray's cluster at RAY_ADDRESS.

    Raises:
        NotReadyError: there is none.
    """
    connect_ray(os.environ.get("RAY_ADDRESS", "auto"), os.environ.get("RAY_AUTH_TOKEN", ""))
    return RayControllers()
