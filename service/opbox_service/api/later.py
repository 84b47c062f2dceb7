"""Later: answers 202 for a numbered call that still runs, before a gateway in between gives up waiting for its answer.

The client says how long it waits (`Prefer: wait=45`), and then asks for the answer by the call's number.
"""

from __future__ import annotations

import asyncio
import json
import re

from opbox_protocol.wire import PREFER, RECEIVED, RUNNING

from ..carriers import RawResponse
from .kept_answers import CallName
from .request_context import RequestContext, Send
from .sending import send_answer

__all__ = ["Later", "received", "still_running", "wait_of"]

_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,9})", re.IGNORECASE)
_HEADER = PREFER.lower().encode()


def wait_of(headers: dict[bytes, bytes]) -> float | None:
    """Return the seconds that a client waits for an answer; None where it waits for as long as it takes."""
    text = headers.get(_HEADER)
    match = None if text is None else _WAIT.search(text)
    return None if match is None else float(match[1])


def still_running(name: CallName) -> RawResponse:
    """Return the answer that a call still runs."""
    return RawResponse(202, [json.dumps({RUNNING: name.number}).encode()])


def received(nbytes: int) -> RawResponse:
    """Return the answer that so many bytes of a body have come."""
    return RawResponse(202, [json.dumps({RECEIVED: nbytes}).encode()])


class Later:
    """Answers the request of a numbered call while the call runs on, once its client has waited for long enough.

    Args:
        context: of the request.
        name: of the call.
        wait_s: seconds that the client waits; None for as long as it takes.
        send, stall_s: see `send_answer`.

    Attributes:
        context, name, wait_s: those.
    """

    __slots__ = ("_answered", "_send", "_sending", "_stall_s", "_timer", "context", "name", "wait_s")

    def __init__(
        self, context: RequestContext, name: CallName, wait_s: float | None, send: Send, stall_s: float
    ) -> None:
        self.context, self.name, self.wait_s = context, name, wait_s
        self._send, self._stall_s = send, stall_s
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def start(self, waited_s: float) -> None:
        """Answer when the client has waited for long enough, of which some has passed."""
        if self.wait_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self.wait_s - waited_s), self._answer)

    def _answer(self) -> None:
        self._answered = self.context.started = True
        answer = send_answer(self.context, still_running(self.name), self._send, self._stall_s)
        self._sending = asyncio.create_task(answer)

    async def end(self) -> bool:
        """Note that the call has ended; return whether the request had been answered before."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self.context.status = 202
            await self._sending
        return self._answered
