"""`fit` ends with a line that says what travelled, where something did."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from tests.contract.live import TOKENS, Live
from tests.link.proxy import Link, LinkProxy

LINE = re.compile(
    r"Link: (\d+) requests, ([\d.]+) (B|KiB|MiB) up, ([\d.]+) (B|KiB|MiB) down; the link took (\d+)% of their time"
)
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
STEPS = 12


def network() -> Any:
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")


def fit_module(train: Any) -> None:
    mx.mod.Module(network()).fit(train, num_epoch=1)


def fit_feed_forward(train: Any) -> None:
    with pytest.warns(DeprecationWarning, match="FeedForward"):
        model = mx.model.FeedForward(network(), num_epoch=1)
    model.fit(train)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live("none", tmp_path_factory.mktemp("report"))
    yield server
    assert server.stop() == 0


def logged(fit: Callable[[Any], None], caplog: pytest.LogCaptureFixture) -> list[str]:
    """The last two lines of a training's log."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        fit(mx.io.NDArrayIter(np.ones((10 * STEPS, 40)), np.zeros(10 * STEPS), batch_size=10))
    return [record.getMessage() for record in caplog.records][-2:]


@pytest.mark.parametrize("fit", [fit_module, fit_feed_forward])
def test_the_last_line_of_a_training(fit: Callable[[Any], None], live: Live, caplog: pytest.LogCaptureFixture) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with LinkProxy((host, int(port)), Link(0.02)) as proxy:
        connection.use(HttpTransport(proxy.url, TOKENS["ann"]))
        try:
            for _ in range(2):  # each training counts its own
                before = len(proxy.exchanges), proxy.up, proxy.down
                time_line, line = logged(fit, caplog)
                assert "Time cost" in time_line
                match = LINE.fullmatch(line)
                assert match is not None, line
                # The proxy sees the opening of sessions, and heads, beside the requests.
                assert STEPS < int(match[1]) <= len(proxy.exchanges) - before[0]
                assert 10 * 40 * 4 * STEPS < float(match[2]) * UNITS[match[3]] < proxy.up - before[1]
                assert 0 < float(match[4]) * UNITS[match[5]] < proxy.down - before[2]
                assert 0 < int(match[6]) <= 100
        finally:
            connection.use(None)


@pytest.mark.parametrize("fit", [fit_module, fit_feed_forward])
def test_an_engine_in_this_process_has_no_such_line(
    fit: Callable[[Any], None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(None)
    assert not any("Link" in line for line in logged(fit, caplog))
    connection.use(None)
