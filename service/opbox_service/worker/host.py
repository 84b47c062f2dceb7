"""What the API asks of the place where calls run, be it processes or threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..buffers import Lease
from ..settings import Scope

__all__ = ["Host", "Outcome", "Request", "session_of"]


@dataclass(slots=True)
class Request:
    """A call on its way. The host releases the lease, whatever becomes of the call.

    Attributes:
        scopes: what the caller's token may.
        body: received already; None when there is none.
        header_length, binary: see frames.Framed.
    """

    method: str
    path: str
    owner: str
    scopes: frozenset[Scope]
    request_id: str
    body: Lease | bytes | None = None
    header_length: int | None = None
    binary: bool = False


@dataclass(slots=True)
class Outcome:
    """An answer: its bytes are valid until `release`.

    Attributes:
        header_length: bytes of the JSON part when tensors follow it as bytes; None when all is JSON.
        commands: how many commands of a session were run or accepted.
    """

    status: int
    body: memoryview | bytes
    header_length: int | None = None
    commands: int = 0
    release: Callable[[], None] = field(default=lambda: None)


class Host(Protocol):
    """Where calls run."""

    @property
    def ready(self) -> bool:
        """Whether calls can be taken."""

    async def start(self) -> None:
        """Get ready; raises when that cannot be."""

    async def stop(self) -> None:
        """Finish what is accepted, within the grace period, and end."""

    def lease(self, request: Request, nbytes: int) -> Lease:
        """A buffer to receive this request's body in; NotReadyError when there is no room."""

    async def call(self, request: Request) -> Outcome:
        """Make a call. Raises MXNetError when it could not be made or brought to an end."""

    def facts(self) -> dict[str, Any]:
        """For the metrics: sessions, restarts, rss_bytes by process."""


def session_of(path: str) -> str | None:
    """The session that a path speaks of, or None."""
    parts = path.split("/", 4)
    return parts[3] if len(parts) > 3 and parts[1] == "v1" and parts[2] == "sessions" and parts[3] else None
