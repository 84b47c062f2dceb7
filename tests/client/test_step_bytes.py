"""A step's request from the second epoch on: under 2 KB, however many weights share an optimizer's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from examples.networks import lenet, lstm, resnet

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import BadRequestError
from tests.contract.live import TOKENS, Live

BATCH, STEPS = 8, 5
LIMIT = 2000
"""Bytes of a request with all its commands and the numbers of its rows."""


@pytest.fixture
def remote(live: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(HttpTransport(live.url, TOKENS["ann"]))
    yield
    connection.use(None)


def resnet18(dtype: str = "float32") -> Any:
    """ResNet-18 with few channels, which has as many parameters as the wide one; float16 up to the loss, or float32."""
    net = resnet.build(mx, 10, resnet.RESNET18, width=4, bottleneck=False)
    if dtype == "float32":
        return net
    inner = net.get_internals()["fc1_output"]
    inner = inner(data=mx.sym.Cast(mx.sym.Variable("data"), dtype=dtype))
    return mx.sym.SoftmaxOutput(mx.sym.Cast(inner, dtype="float32"), name="softmax")


def scheduled() -> dict[str, Any]:
    return {"momentum": 0.9, "wd": 1e-4, "lr_scheduler": mx.lr_scheduler.FactorScheduler(3, 0.9)}


CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...], str, Callable[[], dict[str, Any]]]] = {
    "lenet": (lambda: lenet.build(mx), (1, 28, 28), "adam", dict),
    "lstm": (lambda: lstm.build_with_cell(mx), lstm.shapes(BATCH)["data"][1:], "sgd", scheduled),
    "resnet18-sgd": (resnet18, (3, 33, 33), "sgd", scheduled),
    "resnet18-adam": (resnet18, (3, 33, 33), "adam", lambda: {"wd": 1e-4}),
    "resnet18-float16": (
        lambda: resnet18("float16"),
        (3, 33, 33),
        "sgd",
        lambda: {"momentum": 0.9, "multi_precision": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_later_step_is_small(remote: None, case: str) -> None:
    symbol, shape, optimizer, settings = CASES[case]
    rng = np.random.RandomState(1)
    images = rng.rand(BATCH * STEPS, *shape).astype(np.float32)
    images = np.concatenate([images] * (1 + (1 << 18) // images.nbytes))
    batches = mx.io.NDArrayIter(images, np.zeros(len(images), np.float32), BATCH, shuffle=True)
    mod = mx.mod.Module(symbol())
    mod.bind(batches.provide_data, batches.provide_label)
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(optimizer=optimizer, optimizer_params=settings())
    metric = mx.metric.create("acc")
    sent = []
    for _ in range(2):
        for batch in batches:
            mod.forward_backward(batch)
            mod.update()
            mod.update_metric(metric, batch.label)
            mx.nd.waitall()
            sent.append(mx.cpu().session.stats["bytes_up"])
        batches.reset()
    steps = np.diff(sent)[-STEPS:]
    assert steps.max() < LIMIT, steps


def test_an_update_by_inputs(engine: str) -> None:
    """The short form of `update` is the long one, and wrong ones are refused before anything changes."""
    session = mx.cpu().session
    values = [np.full((2,), number, np.float32) for number in (1, 2, 3, 10, 20, 30)]

    def run(**fields: Any) -> list[list[float]]:
        arrays = [mx.nd.array(value) for value in values]
        ids = [array._id for array in arrays]
        update = {"do": "update", "op": "sgd_update", "attrs": {"lr": "0.1"}, **fields}
        if "inputs" in fields:
            update["inputs"] = [[ids[number] for number in row] for row in fields["inputs"]]
        if "calls" in fields:
            update["calls"] = [
                {**call, "inputs": [ids[number] for number in call["inputs"]]} for call in fields["calls"]
            ]
        mx.nd.waitall()
        session.record(update)  # type: ignore[arg-type]
        try:
            mx.nd.waitall()
        except BadRequestError:
            assert [array.asnumpy().tolist() for array in arrays] == [value.tolist() for value in values]
            raise
        return [array.asnumpy().tolist() for array in arrays]

    other = {"calls": [1], "attrs": {"lr": "0.5"}}
    short = run(inputs=[[0, 1, 2], [3, 4, 5]], other_attrs=[other])
    assert short == run(calls=[{"inputs": [0, 3]}, {"inputs": [1, 4], "attrs": {"lr": "0.5"}}, {"inputs": [2, 5]}])
    assert short[:3] == [[0, 0], [-8, -8], [0, 0]]
    for fields, sentence in (
        ({}, "expected either calls, or inputs"),
        ({"inputs": []}, "expected either calls, or inputs"),
        ({"inputs": [[0], [3]], "calls": [{"inputs": [0, 3]}]}, "expected either calls, or inputs"),
        ({"calls": [{"inputs": [0, 3]}], "other_attrs": [other]}, "expected either calls, or inputs"),
        ({"inputs": [[0, 1], [3]]}, "inputs: expected equally many arrays of each, got 2, 1"),
        ({"inputs": [[0], [3]], "other_attrs": [other]}, "other_attrs: calls: expected numbers below 1, got 1"),
        ({"inputs": [[0], [3]], "other_attrs": [{**other, "calls": [-1]}]}, "calls"),
    ):
        with pytest.raises(BadRequestError, match=sentence):
            run(**fields)
