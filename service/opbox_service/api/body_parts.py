"""BodyParts: bodies of numbered calls that come in parts, each in a request that gateways in between let through.

nginx lets a body of 1 MiB through by default. The parts of a body have the number of their call, and the last one is
the call. A body that no part has come of for a while is dropped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from opbox_protocol.errors import BadRequestError, QuotaError
from opbox_protocol.wire import CALL, PART

from ..buffers import Lease
from ..carriers import RawRequest
from .kept_answers import CallName
from .request_context import Receive

__all__ = ["BodyPart", "BodyParts", "PartedBody", "StalePartError", "part_of"]

WAITED_S = 60.0
"""Seconds after which a body is dropped that no part has come of."""
MAX_BODIES = 32
"""Maximum number of bodies of an owner that are not whole."""

_PART = re.compile(rb"([0-9]{1,15})/([0-9]{1,15})")
_HEADER = PART.lower().encode()


class StalePartError(Exception):
    """Nobody wants a part any more that was being received: another connection brings it, or its session has ended."""


class BodyPart(NamedTuple):
    """A part of a body: its first byte, its bytes, and those of the whole body."""

    first: int
    length: int
    total: int


class PartedBody:
    """A body of which parts have come.

    Attributes:
        owner, name, path: of its call.
        lease: the buffer for the whole body.
        worker: whose buffer it is.
        total: bytes of the whole body.
        size: how many have come, from the first on.
        dropped: whether it is here no more.
    """

    def __init__(self, request: RawRequest, name: CallName, lease: Lease, total: int) -> None:
        self.owner, self.name, self.path = request.owner, name, request.path
        self.lease, self.worker, self.total = lease, request.worker, total
        self.size = 0
        self.dropped = False
        self.receiving: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


def part_of(headers: dict[bytes, bytes], length: int | None, name: CallName | None) -> BodyPart | None:
    """Return the part of a body that a request brings; None for a request with its whole body.

    Raises:
        BadRequestError: the header is malformed, or the request has no number or no length.
    """
    text = headers.get(_HEADER)
    if text is None:
        return None
    match = _PART.fullmatch(text)
    if match is None:
        raise BadRequestError(
            f"{PART}: expected the part's first byte, a slash and the bytes of the whole body, as in 1000000/5242880, "
            f"got {text.decode('latin-1')[:80]!r}"
        )
    part = BodyPart(int(match[1]), length or 0, int(match[2]))
    if part.first + part.length > part.total:
        raise BadRequestError(f"{PART}: expected at most {part.total} bytes in all, got {part.first + part.length}")
    if name is None:
        raise BadRequestError(f"{PART}: expected the call's number ({CALL}) with it, got none")
    if length is None:
        raise BadRequestError(f"{PART}: expected a Content-Length with it, got none")
    return part


class BodyParts:
    """The bodies, of all owners, that have come in part.

    Args:
        count: is told how many bytes of an owner's fewer are here when a body is dropped.
        waited_s: seconds to wait for another part.
    """

    def __init__(self, count: Callable[[str, int], None], waited_s: float = WAITED_S) -> None:
        self._count = count
        self._waited_s = waited_s
        self._bodies: dict[tuple[str, CallName], PartedBody] = {}

    def find(self, request: RawRequest, name: CallName, part: BodyPart) -> PartedBody | None:
        """Return the body that a part belongs to, if parts of it have come before.

        Raises:
            BadRequestError: they were parts of another one.
        """
        body = self._bodies.get((request.owner, name))
        if body is not None and (body.path, body.total) != (request.path, part.total):
            raise BadRequestError(
                f"{PART}: expected a part of the {body.total} bytes for {body.path} that this call has begun with, got "
                f"one of {part.total} bytes for {request.path}"
            )
        return body

    def begin(self, request: RawRequest, name: CallName, total: int, lease: Callable[[], Lease]) -> PartedBody:
        """Begin a body, whose bytes have been counted as its owner's.

        Args:
            request: brings its first part.
            name: of the call.
            total: bytes of the whole body.
            lease: returns the buffer for them.

        Raises:
            QuotaError: the owner has too many bodies that are not whole.
        """
        try:
            if sum(owner == request.owner for owner, _ in self._bodies) >= MAX_BODIES:
                raise QuotaError(
                    f"bodies in parts: expected at most {MAX_BODIES} of an owner that are not whole, got one more: "
                    "send the rest of the others"
                )
            buffer = lease()
        except BaseException:
            self._count(request.owner, -total)
            raise
        body = self._bodies[request.owner, name] = PartedBody(request, name, buffer, total)
        return body

    async def fill(
        self,
        body: PartedBody,
        part: BodyPart,
        receive: Receive,
        into: Callable[[memoryview, Receive], Awaitable[None]],
    ) -> bool:
        """Receive a part; return False if the body is not here any more, as another connection has brought its rest.

        A connection that has brought only the beginning of a part is not waited for: its client has given it up.

        Raises:
            Disconnected: the client went away.
            StalePartError: another connection begins to bring the part, or the session has ended.
        """
        while (other := body.receiving) is not None:
            other.cancel()
            await asyncio.wait([other])
        if body.dropped:
            return False
        if body.timer is not None:
            body.timer.cancel()
        end = part.first + part.length
        receiving = body.receiving = asyncio.ensure_future(into(body.lease.view[part.first : end], receive))
        try:
            await asyncio.wait([receiving])
        finally:
            receiving.cancel()
            body.receiving = None
            if not body.dropped:
                body.timer = asyncio.get_running_loop().call_later(self._waited_s, self._drop, body)
        if receiving.cancelled():
            raise StalePartError
        receiving.result()
        body.size = max(body.size, end)
        return True

    def take(self, body: PartedBody) -> None:
        """Take a whole body out; its buffer and what was counted are the caller's."""
        body.dropped = True
        if body.timer is not None:
            body.timer.cancel()
        del self._bodies[body.owner, body.name]

    def end_session(self, id: str) -> None:
        """Drop what has come for a session that has ended."""
        beginning = f"/v1/sessions/{id}/"
        for body in [body for body in self._bodies.values() if body.path.startswith(beginning)]:
            self._drop(body)

    def _drop(self, body: PartedBody) -> None:
        if body.dropped:
            return
        self.take(body)
        self._count(body.owner, -body.total)
        if body.receiving is None:
            body.lease.release()
        else:  # until it has ended, it may write into the buffer
            body.receiving.add_done_callback(lambda _: body.lease.release())
            body.receiving.cancel()
