"""Batching: requests of several clients become one run, and nobody sees it but in the figures."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from opbox_protocol.errors import BadRequestError, MXNetError, NotReadyError, QuotaError
from opbox_service.models.batch_runs import batch_sizes
from opbox_service.models.batching import SHORT_S, Batcher
from opbox_service.models.gathered_runs import GatheredRuns
from opbox_service.models.model_config import ModelConfig
from opbox_service.models.request_queue import NO_WISHES, QueueWishes, WaitingRequest
from opbox_service.task import Task, running
from opbox_service.turns import Job, Turn, Turns
from tests.contract.live import Live
from tests.models.folders import CLASSES, FEATURES, ROUNDING, expected


class Recording:
    """A model that records its runs, and waits in each for a word."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.error: Exception | None = None

    def run_together(self, entries: Sequence[WaitingRequest]) -> None:
        self.runs.append([entry.owner for entry in entries])
        self.begun.release()
        assert self.go_on.acquire(timeout=60)
        for entry in entries:
            if self.error is not None:
                entry.fail(self.error)
            else:
                entry.take({})


class Requests:
    """Requests for a batcher, each in a turn, as a worker has them."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.turns = Turns(3)
        self.answers: list[str] = []
        self.errors: list[Exception] = []
        self.answered = threading.Semaphore(0)
        self.clock = 0

    def send(
        self,
        owner: str,
        examples: int = 1,
        key: tuple[Any, ...] = (),
        task: Task | None = None,
        wishes: QueueWishes = NO_WISHES,
        name: str = "",
        begins: bool = False,
    ) -> None:
        """Send a request; one that `begins` a run does not come back before that ends, as the first one."""
        self.clock += 1

        def take(outputs: dict[str, Any]) -> None:
            self.answers.append(name or owner)
            self.answered.release()

        def fail(error: Exception) -> None:
            self.errors.append(error)
            self.answered.release()

        entry = WaitingRequest(owner, {}, examples, take, fail, [], task, key, float(self.clock), wishes)

        def work(turn: Turn) -> None:
            own = Task()
            own.turn = turn
            with running(own):
                try:
                    self.batcher.join(entry)
                except MXNetError as error:
                    fail(error)
            joined.set()

        joined = threading.Event()
        self.turns.start(Job(owner, "", work))
        if self.clock > 1 and not begins:
            assert joined.wait(60)

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.answered.acquire(timeout=60)


@pytest.fixture
def model() -> Recording:
    return Recording()


def begin(model: Recording, max_batch: int = 4, max_queue: int = 100, **options: Any) -> Requests:
    """A first request, whose run waits."""
    requests = Requests(Batcher(model, max_batch, 0.0, max_queue, "model 'm'", **options))
    requests.send("first")
    assert model.begun.acquire(timeout=60)
    return requests


def test_what_comes_during_a_run_runs_together_after_it(model: Recording) -> None:
    requests = begin(model)
    for _ in range(3):
        requests.send("ann")
    requests.send("ann")
    requests.send("ann")
    for _ in range(3):
        model.go_on.release()
    requests.wait(6)
    assert model.runs == [["first"], ["ann"] * 4, ["ann"]]


def test_owners_take_turns_in_a_batch(model: Recording) -> None:
    requests = begin(model)
    for owner in ("ann", "ann", "ann", "ann", "bob", "eve"):
        requests.send(owner)
    for _ in range(3):
        model.go_on.release()
    requests.wait(7)
    assert sorted(model.runs[1]) == ["ann", "ann", "bob", "eve"]
    assert model.runs[2] == ["ann", "ann"]


def test_other_shapes_run_apart_and_large_requests_wait_for_place(model: Recording) -> None:
    requests = begin(model)
    requests.send("ann", key=(1,))
    requests.send("bob", key=(2,))
    requests.send("eve", examples=3, key=(1,))
    requests.send("kim", examples=2, key=(1,))
    for _ in range(5):
        model.go_on.release()
    requests.wait(5)
    assert model.runs == [["first"], ["ann", "eve"], ["bob"], ["kim"]]


def test_a_priority_orders_the_requests_of_one_owner(model: Recording) -> None:
    requests = begin(model, max_batch=1)
    requests.send("bob")
    for number, priority in enumerate((0, 2, 1, 0, 2)):
        requests.send("ann", wishes=QueueWishes(priority), name=f"{priority} {number}")
    for _ in range(7):
        model.go_on.release()
    requests.wait(7)
    assert requests.answers == ["first", "bob", "1 2", "2 1", "2 4", "0 0", "0 3"], "it is nothing to other owners"


def test_a_request_that_has_waited_for_too_long_does_not_run(model: Recording) -> None:
    requests = begin(model)
    requests.send("ann", wishes=QueueWishes(timeout_us=1))  # came at second 2 of the clock that began with the machine
    requests.send("bob")
    requests.send("ann", wishes=QueueWishes(timeout_us=10**15))
    model.go_on.release()
    model.go_on.release()
    requests.wait(4)
    assert sorted(model.runs[1]) == ["ann", "bob"]
    (error,) = requests.errors
    assert isinstance(error, NotReadyError)
    assert str(error) == (
        "model 'm': expected a run within the 1 us of parameters.timeout, got none in that time: allow more, or try "
        "again in a moment"
    )


def test_a_full_queue_refuses(model: Recording) -> None:
    requests = begin(model, max_queue=2)
    for _ in range(3):
        requests.send("ann")
    requests.wait(1)
    (error,) = requests.errors
    assert isinstance(error, QuotaError)
    assert str(error) == "model 'm': expected at most 2 waiting requests, got one more: try again in a moment"
    model.go_on.release()
    model.go_on.release()
    requests.wait(3)
    assert model.runs == [["first"], ["ann", "ann"]]


def test_a_stopped_request_does_not_run(model: Recording) -> None:
    requests = begin(model)
    task = Task()
    requests.send("ann", task=task)
    requests.send("bob")
    task.stop(BadRequestError("gone"))
    model.go_on.release()
    model.go_on.release()
    requests.wait(3)
    assert model.runs == [["first"], ["bob"]]
    assert [str(error) for error in requests.errors] == ["gone"]


def long_run(model: Recording, requests: Requests) -> None:
    """A first run that takes so long that further ones may go on beside the next, and wait for its client."""
    time.sleep(2 * SHORT_S)
    model.go_on.release()
    requests.wait(1)


def test_long_runs_go_on_beside_each_other_and_share_what_waits(model: Recording) -> None:
    requests = begin(model, max_batch=8, at_once=2)
    for _ in range(8):
        requests.send("ann")
    long_run(model, requests)
    assert model.begun.acquire(timeout=60)
    requests.send("bob", begins=True)
    assert model.begun.acquire(timeout=60)
    assert sum(map(len, model.runs[1:])) in (8, 9)
    for run in model.runs[1:]:
        assert len(run) <= 5, "half of those that there are, and the one that has been answered"
    for _ in range(8):
        model.go_on.release()
    requests.wait(9)
    assert sum(map(len, model.runs)) == 10


def test_a_run_waits_for_the_clients_of_the_last_one(model: Recording) -> None:
    requests = begin(model, patience=1e6)
    requests.send("ann")
    requests.send("bob")
    long_run(model, requests)  # ann and bob wait for the first one, which comes again
    assert not model.begun.acquire(blocking=False)
    requests.send("first")
    model.go_on.release()
    requests.wait(3)
    assert sorted(model.runs[1]) == ["ann", "bob", "first"]


def test_a_run_is_a_smaller_one_rather_than_padding(model: Recording) -> None:
    requests = begin(model, max_batch=16, sizes=[1, 2, 4, 8, 16])
    for _ in range(5):
        requests.send("ann")
    model.go_on.release()
    assert model.begun.acquire(timeout=60)
    for _ in range(12):
        requests.send("ann")
    for _ in range(3):
        model.go_on.release()
    requests.wait(18)
    assert [len(run) for run in model.runs] == [1, 4, 13]


def test_requests_that_are_read_one_by_one_run_together(model: Recording) -> None:
    turns = Turns(3)
    batcher = Batcher(model, 4, 0.0, 100, "model 'm'")
    gathered, answers, ended = GatheredRuns(turns, lambda: ended.append(1)), [], []  # type: list[str], list[int]
    for quick in (False, True):
        for owner in ("ann", "bob", "ann"):
            batcher.add(
                WaitingRequest(owner, {}, 1, lambda _: answers.append("yes"), print, [], None, (), time.monotonic())
            )
            gathered.add(batcher)
        assert batcher.is_quick == quick
        model.go_on.release()
        run = gathered.run()
        if not quick:
            assert run is not None, "a turn is for another thread"
            assert not answers
            run()
        else:
            assert run is None
        batcher.quick.elsewhere = 0  # however long it took on this machine
        assert not gathered.any
        assert turns.idle
    assert len(ended) == len(model.runs) == 2
    assert [sorted(run) for run in model.runs] == [["ann", "ann", "bob"]] * 2
    assert len(answers) == 6


def test_a_gathered_request_that_a_run_cannot_take_yet_runs_after_it(model: Recording) -> None:
    requests = begin(model)
    batcher = requests.batcher
    gathered, answered = GatheredRuns(requests.turns), threading.Event()
    batcher.add(WaitingRequest("bob", {}, 1, lambda _: answered.set(), print, [], None, (), time.monotonic()))
    gathered.add(batcher)
    assert gathered.run() is None
    model.go_on.release()
    model.go_on.release()
    assert answered.wait(60)
    assert model.runs == [["first"], ["bob"]]


def test_a_run_that_fails_does_not_stop_the_next(model: Recording) -> None:
    requests = begin(model)
    requests.send("ann")
    model.error = BadRequestError("no")
    model.go_on.release()
    assert model.begun.acquire(timeout=60)
    model.error = None
    model.go_on.release()
    requests.wait(2)
    assert requests.answers == ["ann"]
    assert [str(error) for error in requests.errors] == ["no"]


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"max_batch": 1}, [1]),
        ({"max_batch": 8}, [1, 2, 4, 8]),
        ({"max_batch": 12}, [1, 2, 4, 8, 12]),
        ({"max_batch": 12, "batch_sizes": [3, 20]}, [3, 12]),
    ],
)
def test_sizes(fields: dict[str, Any], sizes: list[int]) -> None:
    assert batch_sizes(ModelConfig(**fields)) == sizes


def send(server: Live, owner: str, x: np.ndarray) -> httpx.Response:
    tensor = {"name": "data", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
    return server.clients[owner].post("/v2/models/batched/infer", json={"inputs": [tensor]})


def executions(server: Live) -> tuple[int, int]:
    (row,) = server.clients["ann"].get("/v2/models/batched/stats").json()["model_stats"]
    return row["inference_count"], row["execution_count"]


def test_clients_at_once_get_their_own_answers(server: Live) -> None:
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(1 + i % 3, FEATURES)).astype(np.float32) for i in range(96)]
    before = executions(server)
    with ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(send, server, ("ann", "py")[i % 2], x) for i, x in enumerate(inputs)]
        answers = [job.result() for job in jobs]
    after = executions(server)
    for x, answer in zip(inputs, answers, strict=True):
        assert answer.status_code == 200, answer.text
        values = np.array(answer.json()["outputs"][0]["data"], np.float32).reshape(len(x), CLASSES)
        np.testing.assert_allclose(values, expected(x), rtol=0, atol=ROUNDING)
    assert after[0] - before[0] == sum(map(len, inputs))
    assert after[1] - before[1] <= len(inputs)


def test_a_request_larger_than_a_batch_runs_alone(server: Live) -> None:
    x = np.random.default_rng(2).normal(size=(20, FEATURES)).astype(np.float32)
    values = np.array(send(server, "ann", x).json()["outputs"][0]["data"], np.float32).reshape(20, CLASSES)
    np.testing.assert_array_equal(values, expected(x))


def test_no_examples(server: Live) -> None:
    answer = send(server, "ann", np.zeros((0, FEATURES), np.float32))
    assert answer.status_code in (200, 400), answer.text
