"""Keeps the answers of numbered calls until their client says that they have come.

A link may lose an answer after the call has run. The client then makes the call again under the same number: it gets
the answer of the first time, or waits for it, and nothing runs twice. Calls without a number are not kept.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from opbox_protocol.errors import BadRequestError, GoneError
from opbox_protocol.wire import ANSWERED, CALL

from ..carriers import RawResponse

__all__ = ["ABANDONED_S", "CallName", "KeptAnswers", "NumberedCall"]

ABANDONED_S = 60.0
"""Seconds that a numbered call goes on after its connection has ended; its client may ask for the answer by then."""
KEPT_S = 600.0
"""Seconds after which an answer is dropped that nobody has asked for again."""
MAX_KEPT = 64
"""Maximum number of answers that are kept for one client."""
MAX_DROPPED = 1024
"""Number of dropped answers that are remembered for one client."""
MAX_CLIENTS = 2000
"""Number of clients that are remembered; those without answers are forgotten first."""

_NAME = re.compile(rb"([A-Za-z0-9_-]{1,64})/([0-9]{1,15})")
_CALL, _ANSWERED = CALL.lower().encode(), ANSWERED.lower().encode()


class CallName(NamedTuple):
    """A numbered call: the name that its client chose for itself, and the number."""

    client: bytes
    number: int


class NumberedCall:
    """A call with a number: under way, or answered.

    Args:
        path: of its route.
        abandoned_s: seconds that it goes on without a connection.

    Attributes:
        path: of its route.
        since: when it was answered, by time.monotonic; 0 while it is under way.
        size: bytes of its answer.
    """

    def __init__(self, path: str, abandoned_s: float = ABANDONED_S) -> None:
        self.path = path
        self._abandoned_s = abandoned_s
        self.since = 0.0
        self.size = 0
        self._clients = 0
        self._users = 1
        self._response: RawResponse | None = None
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._cancel: Callable[[], None] = lambda: None

    def join(self) -> None:
        """Count a connection that waits for the answer."""
        self._clients += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self) -> None:
        """Count a connection less; after a while without any, the call is cancelled."""
        self._clients -= 1
        if self._clients <= 0 and not self._answered.done():
            self._timer = asyncio.get_running_loop().call_later(self._abandoned_s, self._cancel)

    def cancel_by(self, cancel: Callable[[], None]) -> None:
        """Cancel the call by this function."""
        self._cancel = cancel

    def finish(self, response: RawResponse) -> RawResponse:
        """Take the answer, and return it for the connection that asked; its `release` must be called."""
        self._end()
        self._response, self.size = response, response.size
        self._answered.set_result(None)
        self._users += 1
        return replace(response, release=self.drop)

    def fail(self, error: BaseException) -> None:
        """Take the error that the call ended with."""
        self._end()
        self._answered.set_exception(error)
        self._answered.exception()  # perhaps nobody asks for it

    def _end(self) -> None:
        self.since = time.monotonic()
        self._cancel = lambda: None
        if self._timer is not None:
            self._timer.cancel()

    async def answer(self) -> RawResponse:
        """Wait for the answer and return it; its `release` must be called.

        Raises:
            MXNetError: the call ended with it.
        """
        self._users += 1
        try:
            await asyncio.shield(self._answered)
        except BaseException:
            self.drop()
            raise
        assert self._response is not None
        return replace(self._response, release=self.drop)

    def drop(self) -> None:
        """Let go of the answer once; its memory goes when nobody sends it any more."""
        self._users -= 1
        if self._users == 0 and self._response is not None:
            self._response.release()


class _Client:
    """The numbered calls of one client.

    Attributes:
        calls: those under way, and those whose answers are kept, by number.
        answered: all answers up to this number have come.
        dropped: numbers of answers that were dropped before the client had them.
    """

    __slots__ = ("answered", "calls", "dropped")

    def __init__(self) -> None:
        self.calls: dict[int, NumberedCall] = {}
        self.answered = 0
        self.dropped: set[int] = set()


class KeptAnswers:
    """The numbered calls of all owners.

    Args:
        limit: gives the maximum bytes of an owner's kept answers.
        count: is told how many bytes of an owner are kept more, or less.
    """

    def __init__(self, limit: Callable[[str], int], count: Callable[[str, int], None]) -> None:
        self._limit = limit
        self._count = count
        self._clients: dict[tuple[str, bytes], _Client] = {}
        self._bytes: dict[str, int] = {}
        self._sweeping = False

    def acknowledge(self, owner: str, headers: dict[bytes, bytes]) -> None:
        """Drop the answers that the header says have come."""
        text = headers.get(_ANSWERED)
        if text is None:
            return
        name = _read(text, ANSWERED)
        client = self._clients.get((owner, name.client))
        if client is None or name.number <= client.answered:
            return
        client.answered = name.number
        client.dropped = {number for number in client.dropped if number > name.number}
        for number in [n for n, call in client.calls.items() if n <= name.number and call.since]:
            self._drop(owner, client, number)

    def name(self, headers: dict[bytes, bytes]) -> CallName | None:
        """Return the name of a numbered call; None for a call without a number."""
        text = headers.get(_CALL)
        return None if text is None else _read(text, CALL)

    def find(self, owner: str, name: CallName, path: str) -> NumberedCall | None:
        """Return the call of this name, if it has come before.

        Raises:
            GoneError: it has, and its answer is not here any more.
            BadRequestError: it was made to another path.
        """
        client = self._clients.get((owner, name.client))
        if client is None:
            return None
        call = client.calls.get(name.number)
        if call is not None:
            if call.path != path:
                raise BadRequestError(f"{CALL}: expected a new number for {path}, got that of a call of {call.path}")
            return call
        if name.number <= client.answered or name.number in client.dropped:
            raise GoneError(
                f"call {name.number}: expected its answer to be here still, got one that is not: it has been received, "
                f"or was larger or older than what the server keeps (OPBOX_MAX_KEPT_BYTES, {KEPT_S:g} s); make a new "
                "session"
            )
        return None

    def begin(self, owner: str, name: CallName, path: str) -> NumberedCall:
        """Note a call that is to run now."""
        client = self._clients.get((owner, name.client))
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._forget_clients()
            client = self._clients[owner, name.client] = _Client()
        call = client.calls[name.number] = NumberedCall(path)
        return call

    def finish(self, owner: str, name: CallName, call: NumberedCall, response: RawResponse) -> RawResponse:
        """Keep the answer of a call, within the limits; return it for the connection that asked."""
        shared = call.finish(response)
        self._keep(owner, name, call)
        return shared

    def fail(self, owner: str, name: CallName, call: NumberedCall, error: BaseException) -> None:
        """Keep the error that a call ended with."""
        call.fail(error)
        self._keep(owner, name, call)

    def _keep(self, owner: str, name: CallName, call: NumberedCall) -> None:
        client = self._clients[owner, name.client]
        self._add(owner, call.size)
        if name.number <= client.answered:
            self._drop(owner, client, name.number)
            return
        self._drop_oldest(owner, self._limit(owner))
        if len(client.calls) > MAX_KEPT:
            oldest = min((other.since, number) for number, other in client.calls.items() if other.since)
            self._lose(owner, client, oldest[1])
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(KEPT_S, self._sweep)

    def make_place(self, owner: str | None, nbytes: int) -> None:
        """Drop answers of an owner, or of all owners, so that `nbytes` of transfer buffers become free."""
        for name in [owner] if owner is not None else list(self._bytes):
            used = self._bytes.get(name, 0)
            self._drop_oldest(name, max(0, used - nbytes))
            nbytes -= used - self._bytes.get(name, 0)
            if nbytes <= 0:
                return

    def _drop_oldest(self, owner: str, limit: int) -> None:
        if self._bytes.get(owner, 0) <= limit:
            return
        rows = [
            (call.since, number, client)
            for (name, _), client in self._clients.items()
            if name == owner
            for number, call in client.calls.items()
            if call.since and call.size
        ]
        for _, number, client in sorted(rows, key=lambda row: row[:2]):
            self._lose(owner, client, number)
            if self._bytes.get(owner, 0) <= limit:
                return

    def _lose(self, owner: str, client: _Client, number: int) -> None:
        """Drop an answer that the client may still ask for."""
        self._drop(owner, client, number)
        client.dropped.add(number)
        if len(client.dropped) > MAX_DROPPED:
            client.answered = max(client.answered, min(client.dropped))
            client.dropped.discard(client.answered)

    def _drop(self, owner: str, client: _Client, number: int) -> None:
        call = client.calls.pop(number)
        self._add(owner, -call.size)
        call.drop()

    def _add(self, owner: str, nbytes: int) -> None:
        if nbytes:
            self._count(owner, nbytes)
            total = self._bytes.get(owner, 0) + nbytes
            if total:
                self._bytes[owner] = total
            else:
                self._bytes.pop(owner, None)

    def _sweep(self) -> None:
        """Drop what is older than KEPT_S."""
        horizon, left = time.monotonic() - KEPT_S, False
        for (owner, _), client in self._clients.items():
            for number in [n for n, call in client.calls.items() if call.since and call.since < horizon]:
                self._lose(owner, client, number)
            left = left or bool(client.calls)
        self._sweeping = left
        if left:
            asyncio.get_running_loop().call_later(KEPT_S / 4, self._sweep)

    def _forget_clients(self) -> None:
        """Forget half of the clients, the oldest first, but for calls that are under way."""
        keys = [key for key, client in self._clients.items() if not client.calls] or list(self._clients)
        for key in keys[: MAX_CLIENTS // 2]:
            client = self._clients[key]
            for number in [number for number, call in client.calls.items() if call.since]:
                self._drop(key[0], client, number)
            if not client.calls:
                del self._clients[key]


def _read(text: bytes, header: str) -> CallName:
    match = _NAME.fullmatch(text)
    if match is None:
        raise BadRequestError(
            f"{header}: expected a client's name of letters, digits, - and _, a slash and a number, as in 3fb2c1/17, "
            f"got {text.decode('latin-1')[:80]!r}"
        )
    return CallName(match[1], int(match[2]))
