"""A training that becomes NaN says so once, with epoch and batch, and with check_nan the node that was the first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from tests.contract.live import TOKENS, Live


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live("none", tmp_path_factory.mktemp("nan"))
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["embedded", "http"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    over_http = request.param == "http"
    connection.use(HttpTransport(request.getfixturevalue("live").url, TOKENS["ann"]) if over_http else None)
    yield request.param
    connection.use(None)


def network() -> Any:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    net = mx.sym.log(net * net, name="logged")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def samples(bad: int | None = None, value: float = np.nan) -> Any:
    """Ten batches of four; from the batch `bad` on the data begin with `value`."""
    data = np.random.RandomState(3).rand(40, 6).astype("float32") + 1
    if bad is not None:
        data[4 * bad] = value
    return mx.io.NDArrayIter(data, np.arange(40) % 3, 4)


def said_in(train: Any, caplog: pytest.LogCaptureFixture, net: Any = None, **options: Any) -> list[str]:
    caplog.set_level(logging.WARNING)
    mod = mx.mod.Module(network() if net is None else net)
    options = {"initializer": mx.init.Xavier(), "optimizer_params": {"learning_rate": 0.01}, "num_epoch": 2, **options}
    mod.fit(train, **options)
    return [record.getMessage() for record in caplog.records if "become NaN" in record.getMessage()]


def test_a_training_that_is_well_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert said_in(samples(), caplog) == []
    assert said_in(samples(), caplog, check_nan=True) == []


def test_nan_is_said_once_with_epoch_and_batch(caplog: pytest.LogCaptureFixture) -> None:
    assert said_in(samples(6), caplog) == [
        "Epoch[0] Batch[6]: the network has become NaN: output 'softmax_output' is NaN; fit(check_nan=True) names the "
        "node that it comes from"
    ]


@pytest.mark.parametrize(
    ("bad", "value", "place", "source"),
    [
        (6, np.nan, "Epoch[0] Batch[6]", "argument 'data'"),
        (0, 0.0, "Epoch[0] Batch[0]", "the output of node 'logged' (log)"),
        (2, 1e30, "Epoch[0] Batch[2]", "the output of node"),
    ],
    ids=["data", "log of 0", "overflow"],
)
def test_check_nan_names_the_first_that_is_not_finite(
    bad: int, value: float, place: str, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    [sentence] = said_in(
        samples(bad, value), caplog, check_nan=True, initializer=mx.init.One() if value else mx.init.Zero()
    )
    assert sentence.startswith(f"{place}: the network has become NaN: {source}")
    assert "is the first that is not finite" in sentence


def test_check_nan_names_a_gradient(caplog: pytest.LogCaptureFixture) -> None:
    root = mx.sym.sqrt(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, no_bias=True, name="fc"), name="root"
    )
    net = mx.sym.SoftmaxOutput(root * 0, name="softmax")
    [sentence] = said_in(samples(), caplog, net, check_nan=True, initializer=mx.init.Zero())
    what = "what backward computes as 'root_backward_output'"
    assert sentence.startswith(f"Epoch[0] Batch[0]: the network has become NaN: {what} is the first")


def test_no_request_is_added(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for watches in (True, False):
        if not watches:
            monkeypatch.setattr("opbox.module.nan_watch.OutputWatch.take", lambda *_: None)
        session = mx.cpu().session
        before = session.requests
        said_in(samples(), caplog)
        counts.append(session.requests - before)
    assert counts[0] == counts[1]


def test_a_monitor_watches_alone() -> None:
    with pytest.raises(ValueError, match="fit: check_nan: expected no monitor beside it"):
        mx.mod.Module(network()).fit(samples(), num_epoch=1, monitor=mx.mon.Monitor(1), check_nan=True)


def test_buckets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    mod = mx.mod.BucketingModule(lambda key: (network(), ("data",), ("softmax_label",)), 4)
    train = samples(5)

    def with_key(batch: Any) -> Any:
        batch.bucket_key, batch.provide_data, batch.provide_label = 4, train.provide_data, train.provide_label
        return batch

    class Keyed(mx.io.DataIter):
        provide_data, provide_label = train.provide_data, train.provide_label

        def next(self) -> Any:
            return with_key(train.next())

        def reset(self) -> None:
            train.reset()

    mod.fit(Keyed(), num_epoch=1, check_nan=True, initializer=mx.init.Xavier())
    assert any("Epoch[0] Batch[5]" in record.getMessage() for record in caplog.records)
