"""Large answers: others have their turn meanwhile, and who has gone away gets no more of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from opbox_service.api.request_context import Disconnected, RequestContext
from opbox_service.api.sending import TURN, send_answer
from opbox_service.carriers import RawResponse

SIZE = 32 * TURN


class Connection:
    """A client that takes all at once, and goes away after so many messages; it is a transport as well."""

    def get_extra_info(self, name: str) -> None:
        """It speaks no TLS."""

    def __init__(self, messages: int = 1 << 30) -> None:
        self.sizes: list[int] = []
        self.aborted = False
        self._messages = messages

    async def send(self, message: dict[str, Any]) -> None:
        self.sizes.append(len(message.get("body", b"")))

    def is_closing(self) -> bool:
        return len(self.sizes) >= self._messages

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        """It lets nothing wait; a transport of uvloop's that is closed has no limits to set."""
        if self.is_closing():
            raise RuntimeError("unable to perform operation on a closed transport")


async def answer_to(connection: Connection) -> int:
    """Send an answer; how many turns another task had meanwhile."""
    turns, ended = 0, False

    async def other() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    context = RequestContext.__new__(RequestContext)
    context.request_id, context.last, context.since = "id", False, 0.0
    context.transport = cast(Any, connection)
    try:
        await send_answer(context, RawResponse(200, [memoryview(bytearray(SIZE))], 64), cast(Any, connection.send), 60)
    finally:
        ended = True
        await task
    return turns


def test_others_have_their_turn_while_a_large_answer_is_sent() -> None:
    connection = Connection()
    assert asyncio.run(answer_to(connection)) >= SIZE // TURN - 1
    assert sum(connection.sizes) == SIZE
    assert not connection.aborted


def test_who_has_gone_away_is_sent_no_more() -> None:
    connection = Connection(messages=4)
    with pytest.raises(Disconnected):
        asyncio.run(answer_to(connection))
    assert sum(connection.sizes) == 3 * TURN
    assert connection.aborted
