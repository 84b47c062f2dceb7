"""`"batch": true` of /v1/forward: calls of one graph and equal weights become one run, and all others run alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import BadRequestError, LimitError, MXNetError
from opbox_service.carriers import AnswerLimit
from opbox_service.engine import Engine
from opbox_service.graph.json import load
from opbox_service.settings import Settings
from opbox_service.stateless.graph_batches import MAX_EXAMPLES, GraphBatches, GraphCall, batched_inputs

Arrays = dict[str, np.ndarray]
DATA = mx.sym.Variable("data")
NET = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(DATA, num_hidden=3, name="fc"), name="softmax")
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(3, 4)).astype(np.float32)


def inputs(examples: int, weight: np.ndarray = WEIGHT) -> Arrays:
    return {
        "data": RNG.normal(size=(examples, 4)).astype(np.float32),
        "softmax_label": np.zeros(examples, np.float32),
        "fc_weight": weight.copy(),
        "fc_bias": np.zeros(3, np.float32),
    }


def call(tensors: Arrays, net: mx.sym.Symbol = NET, owner: str = "ann", **fields: Any) -> GraphCall:
    return GraphCall(owner, "key", load(net.tojson()), "cpu", tensors, 1 << 30, **fields)


class Runs:
    """Runs that wait in each for a word, and answer data x weight^T.

    Attributes:
        examples: of each run.
        answers: by call, in the order of `send`; an error where it ended with one.
    """

    def __init__(self) -> None:
        self.batches = GraphBatches(self._run)
        self.examples: list[int] = []
        self.answers: dict[int, Any] = {}
        self.begun, self.go_on, self.answered = threading.Semaphore(0), threading.Semaphore(0), threading.Semaphore(0)
        self.error: Exception | None = None

    def _run(self, of: GraphCall, take: Callable[[Arrays], None]) -> None:
        self.examples.append(len(of.tensors["data"]))
        self.begun.release()
        assert self.go_on.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        take({"out": of.tensors["data"] @ of.tensors["fc_weight"].T})

    def send(self, number: int, of: GraphCall, limit: AnswerLimit | None = None) -> bool:
        def answer(value: Any) -> None:
            self.answers[number] = value
            self.answered.release()

        return self.batches.join(of, answer, answer, limit or AnswerLimit())

    def begin(self) -> threading.Thread:
        """Send a first call, whose run waits."""
        thread = threading.Thread(target=self.send, args=(0, call(inputs(1))))
        thread.start()
        assert self.begun.acquire(timeout=60)
        return thread

    def finish(self, thread: threading.Thread, runs: int, answers: int) -> None:
        for _ in range(runs):
            self.go_on.release()
        for _ in range(answers):
            assert self.answered.acquire(timeout=60)
        thread.join(60)


def test_waiting_calls_of_equal_weights_run_together() -> None:
    runs = Runs()
    first = runs.begin()
    calls = [call(inputs(examples)) for examples in (2, 1, 2)]
    for number, of in enumerate(calls, 1):
        assert runs.send(number, of)
    runs.finish(first, 2, 4)
    assert runs.examples == [1, 8]  # 5 examples, padded
    for number, of in enumerate(calls, 1):
        # float32: four products each, which a larger product may add in another order
        np.testing.assert_allclose(runs.answers[number]["out"], of.tensors["data"] @ WEIGHT.T, rtol=1e-5, atol=1e-6)


def test_other_weights_and_other_owners_run_apart() -> None:
    runs = Runs()
    first = runs.begin()
    assert runs.send(1, call(inputs(1, WEIGHT + 1)))
    assert runs.send(2, call(inputs(1)))
    bob = threading.Thread(target=runs.send, args=(3, call(inputs(1), owner="bob")))
    bob.start()
    assert runs.begun.acquire(timeout=60)  # while ann's first call still runs
    runs.finish(first, 4, 4)
    bob.join(60)
    assert runs.examples == [1, 1, 1, 1]
    assert len(runs.answers) == 4


def test_errors_are_each_calls_own() -> None:
    runs = Runs()
    first = runs.begin()
    assert runs.send(1, call(inputs(2)), AnswerLimit(nbytes=8))
    assert runs.send(2, call(inputs(2)))
    runs.finish(first, 2, 3)
    assert isinstance(runs.answers[1], LimitError)
    assert runs.answers[2]["out"].shape == (2, 3)
    runs.error = BadRequestError("no")
    runs.go_on.release()
    assert runs.send(3, call(inputs(1)))
    assert runs.answers[3] is runs.error


@pytest.mark.parametrize(
    ("net", "fields"),
    [
        (NET, {"is_train": True}),
        (mx.sym.mean(DATA, axis=0, name="mean"), {}),
        (mx.sym.Dropout(DATA, mode="always", name="drop"), {}),
        (mx.sym.elemwise_add(mx.sym.Variable("lhs"), mx.sym.Variable("rhs"), name="sum"), {}),
    ],
)
def test_what_cannot_share_a_run_runs_alone(net: mx.sym.Symbol, fields: dict[str, Any]) -> None:
    runs = Runs()
    names = net.list_arguments()
    tensors = inputs(2) | {"lhs": np.ones((2, 4), np.float32), "rhs": np.ones((2, 4), np.float32)}
    assert not runs.send(1, call({name: tensors[name] for name in names}, net, **fields))


@pytest.mark.parametrize("examples", [0, MAX_EXAMPLES, 100])
def test_no_examples_or_many_run_alone(examples: int) -> None:
    assert not Runs().send(1, call(inputs(examples)))
    other = inputs(2) | {"softmax_label": np.zeros(3, np.float32)}
    assert not Runs().send(1, call(other))


def test_batched_inputs() -> None:
    assert batched_inputs(load(NET.tojson())) == {"data", "softmax_label"}
    table = mx.sym.take(mx.sym.Variable("table"), mx.sym.Variable("rows"))
    assert batched_inputs(load(table.tojson())) == frozenset()


def test_answers_of_an_engine() -> None:
    engine = Engine(Settings())
    graph = {"graph": json.loads(NET.tojson())}
    sent = [inputs(1 + i % 3) for i in range(24)]

    def forward(tensors: Arrays, batch: bool) -> np.ndarray:
        body = {**graph, "parameters": {"batch": batch}}
        return engine.call("POST", "/v1/forward", body, tensors)[1]["softmax_output"]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda tensors: forward(tensors, True), sent))
    for tensors, output in zip(sent, together, strict=True):
        # float32: a product of more rows may add in another order
        np.testing.assert_allclose(output, forward(tensors, False), rtol=1e-5, atol=1e-6)
    with pytest.raises(MXNetError, match="unknown field 'batch'"):
        engine.call("POST", "/v1/backward", {**graph, "parameters": {"batch": True}}, sent[0])
    engine.close()
