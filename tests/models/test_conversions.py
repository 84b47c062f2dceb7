"""Conversions of ONNX files by many owners at a time: who waits, who is refused, and whose memory they take."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import opbox as mx
from opbox_protocol.errors import NotReadyError, QuotaError
from opbox_service.models.conversions import MAX_CONVERSIONS, ConversionQueue, Conversions, conversion_bytes
from opbox_service.quota import Budget
from tests.contract.live import Live
from tests.models.folders import FEATURES, expected
from tests.models.test_onnx_models import write

X = np.ones((2, FEATURES), np.float32)
PROGRAM = "opbox_service.worker.onnx_process"
OWNERS = ("ann", "bob", "cat", "dan")
TOKENS = {owner: f"{owner}-secret-of-22-characters" for owner in OWNERS}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_conversions_begin_in_order_and_one_of_an_owner() -> None:
    async def work() -> None:
        queue = ConversionQueue(limit=2)
        begun: list[str] = []
        ends = {name: asyncio.Event() for name in ("ann 1", "ann 2", "bob 1", "cat 1")}

        async def convert(name: str) -> None:
            async with queue.turn(name.split()[0], None):
                begun.append(name)
                await ends[name].wait()

        tasks = [asyncio.create_task(convert(name)) for name in ends]

        async def until(*names: str) -> None:
            while begun != list(names):
                await asyncio.sleep(0)

        await until("ann 1", "bob 1")
        with pytest.raises(NotReadyError, match=r"expected to begin within 0\.01 s"):
            async with queue.turn("dan", 0.01):
                pass
        ends["bob 1"].set()
        await until("ann 1", "bob 1", "cat 1")
        ends["ann 1"].set()
        await until("ann 1", "bob 1", "cat 1", "ann 2")
        for end in ends.values():
            end.set()
        await asyncio.gather(*tasks)
        async with queue.turn("dan", 0.01), queue.turn("ann", 0.01):  # who gave up keeps nothing
            pass

    run(work())


def test_a_process_refuses_what_is_one_too_many_or_beyond_its_owners_memory() -> None:
    conversions, memory = Conversions(limit=2), Budget(1000)
    with ExitStack() as stack:
        stack.enter_context(conversions.running("ann", memory, 600))
        assert memory.used == 600
        with pytest.raises(NotReadyError, match="one of an owner"), conversions.running("ann", memory, 1):
            pass
        with pytest.raises(QuotaError, match="600 in use and 600 more"), conversions.running("bob", memory, 600):
            pass
        stack.enter_context(conversions.running("bob", memory, 100))
        with pytest.raises(NotReadyError, match="2 of all"), conversions.running("cat", memory, 1):
            pass
    assert memory.used == 0


def test_a_conversion_may_take_as_much_as_its_file_asks_for() -> None:
    assert conversion_bytes(1000, 1 << 40) < conversion_bytes(1 << 30, 1 << 40) < 16 << 30
    assert conversion_bytes(1 << 30, 1 << 20) == 1 << 20


class Watch:
    """Notes which conversions run at a time, until it is closed."""

    def __init__(self, server: Live) -> None:
        self.most = 0
        self._server = psutil.Process(server.process.pid)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._closed.wait(0.02):
            number = 0
            for process in self._server.children(recursive=True):
                try:
                    number += PROGRAM in process.cmdline()
                except psutil.Error:  # it has just ended
                    continue
            self.most = max(self.most, number)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Any:
    tokens = [{"name": owner, "token": token, "scopes": ["run"]} for owner, token in TOKENS.items()]
    live = Live(
        "process", tmp_path, OPBOX_TOKENS=json.dumps(tokens), OPBOX_STATE_DIR=str(tmp_path / "state"), OPBOX_THREADS="3"
    )
    yield live
    assert live.stop() == 0


def test_owners_who_publish_at_a_time_wait_and_stop_no_step_of_others(server: Live, tmp_path: Path) -> None:
    network = write(tmp_path / "model.onnx").read_bytes()
    answers: dict[str, np.ndarray] = {}

    def publish(owner: str) -> None:
        with mx.serve.Client(server.url, TOKENS[owner]) as client:
            client.publish("net", {"model.onnx": network})
            (answers[owner],) = client.model("net")(data=X).values()

    watch = Watch(server)
    threads = [threading.Thread(target=publish, args=(owner,)) for owner in OWNERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watch.close()
    assert set(answers) == set(OWNERS)
    for output in answers.values():
        np.testing.assert_allclose(output, expected(X), rtol=1e-6, atol=1e-7)
    assert 1 <= watch.most <= MAX_CONVERSIONS


def test_a_file_whose_conversion_takes_more_memory_than_its_owner_has_is_refused(tmp_path: Path) -> None:
    live = Live("process", tmp_path, OPBOX_MAX_OWNER_BYTES=str(256 << 20), OPBOX_STATE_DIR=str(tmp_path / "state"))
    try:
        with (
            mx.serve.Client(live.url, TOKENS["ann"]) as client,
            pytest.raises(QuotaError, match=f"expected at most {256 << 20} bytes"),
        ):
            client.publish("net", {"model.onnx": write(tmp_path / "model.onnx").read_bytes()})
    finally:
        assert live.stop() == 0
