"""Answers that the API process keeps: whom they are released by, and how a call ends that nobody asks for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from opbox_protocol.errors import GoneError, NotReadyError
from opbox_service.api.kept_answers import CallName, KeptAnswers, NumberedCall
from opbox_service.carriers import RawResponse

PATH = "/v1/sessions/s/commands"


class Store:
    """Kept answers of one owner, with what they count and release."""

    def __init__(self, limit: int = 1000) -> None:
        self.bytes = 0
        self.released: list[int] = []
        self.answers = KeptAnswers(lambda owner: limit, self._count)

    def _count(self, owner: str, nbytes: int) -> None:
        self.bytes += nbytes

    def answer(self, number: int, size: int = 100) -> RawResponse:
        """Run a call; its answer as the connection that asked gets it."""
        name = CallName(b"me", number)
        assert self.answers.find("ann", name, PATH) is None
        call = self.answers.begin("ann", name, PATH)
        response = RawResponse(200, [bytes(size)], release=lambda: self.released.append(number))
        return self.answers.finish("ann", name, call, response)

    def find(self, number: int) -> NumberedCall | None:
        return self.answers.find("ann", CallName(b"me", number), PATH)

    def acknowledge(self, number: int) -> None:
        self.answers.acknowledge("ann", {b"opbox-answered": b"me/%d" % number})


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    async def bounded() -> Any:
        return await asyncio.wait_for(test(), 30)

    def run() -> None:
        asyncio.run(bounded())

    run.__name__ = test.__name__
    return run


@on_loop
async def test_an_answer_is_released_by_the_last_that_needs_it() -> None:
    store = Store()
    first = store.answer(1)
    call = store.find(1)
    assert call is not None
    again = await call.answer()
    first.release()
    store.acknowledge(1)
    assert (store.bytes, store.released) == (0, [])
    again.release()
    assert store.released == [1]
    with pytest.raises(GoneError):
        store.find(1)


@on_loop
async def test_the_oldest_answers_go_beyond_the_limit() -> None:
    store = Store(limit=250)
    for number in range(1, 5):
        store.answer(number).release()
    assert store.bytes == 200
    assert store.released == [1, 2]
    store.answers.make_place("ann", 150)
    assert (store.bytes, store.released) == (0, [1, 2, 3, 4])
    with pytest.raises(GoneError, match="OPBOX_MAX_KEPT_BYTES"):
        store.find(4)
    store.answer(5, size=1000).release()  # never kept
    assert (store.bytes, store.released[-1]) == (0, 5)


@on_loop
async def test_a_client_that_never_acknowledges_has_so_many_answers() -> None:
    store = Store(limit=1 << 30)
    for number in range(1, 201):
        store.answer(number).release()
    assert store.bytes == 64 * 100
    assert store.released == list(range(1, 137))


@on_loop
async def test_a_call_goes_on_while_a_connection_may_come_back() -> None:
    ended = asyncio.Event()
    call = NumberedCall(PATH, abandoned_s=0.0)
    call.cancel_by(ended.set)
    call.join()
    call.join()
    call.leave()
    await asyncio.sleep(0.01)
    assert not ended.is_set()  # one waits still
    call.leave()
    await ended.wait()
    patient = NumberedCall(PATH, abandoned_s=1e6)
    patient.cancel_by(lambda: pytest.fail("it was asked for again"))
    patient.join()
    patient.leave()
    patient.join()
    waiting = asyncio.create_task(patient.answer())
    await asyncio.sleep(0)
    patient.fail(NotReadyError("in a moment"))
    with pytest.raises(NotReadyError):
        await waiting
