"""Callbacks: MXNet's lines, and what triggers them."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

import opbox as mx


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def metric():
    one = mx.metric.create(["acc", "mse"])
    one.metrics[0].update([np.array([0.0, 1.0])], [np.array([[0.9, 0.1], [0.9, 0.1]])])
    one.metrics[1].update([np.array([1.0])], [np.array([3.0])])
    return one


def param(nbatch, eval_metric=None, epoch=2):
    return mx.model.BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=eval_metric, locals=None)


def test_speedometer_reports_and_resets(lines):
    speed, values = mx.callback.Speedometer(10, 2), metric()
    for nbatch in range(4):
        speed(param(nbatch, values))
    assert len(lines()) == 1
    assert re.fullmatch(
        r"Epoch\[2\] Batch \[0-2\]\tSpeed: \d+\.\d\d samples/sec\taccuracy=0\.500000\tmse=4\.000000", lines()[0]
    )
    assert np.isnan(values.get()[1][0])
    assert values.get_global()[1] == [0.5, 4.0]


def test_speedometer_without_reset_and_without_metric(lines):
    values = metric()
    speed = mx.callback.Speedometer(10, 2, auto_reset=False)
    for nbatch in range(5):
        speed(param(nbatch, values))
    assert lines()[1].startswith("Epoch[2] Batch [0-4]\tSpeed: ")
    assert values.get()[1] == [0.5, 4.0]
    speed = mx.callback.Speedometer(10, 1)
    for nbatch in (0, 1, 0, 1):  # a new epoch begins: the clock starts anew
        speed(param(nbatch))
    reports = [line for line in lines() if line.startswith("Iter[2] Batch [1]\tSpeed: ")]
    assert len(reports) == 2


def test_progress_bar(lines):
    bar = mx.callback.ProgressBar(total=10, length=20)
    bar(param(3))
    assert lines() == ["[======--------------] 30%\r"]


def test_metrics_in_the_log(lines):
    log = mx.callback.log_train_metric(2, auto_reset=True)
    values = metric()
    log(param(1, values))
    log(param(2, values))
    mx.callback.LogValidationMetricsCallback()(param(0, values))
    assert lines()[:2] == ["Iter[2] Batch[2] Train-accuracy=0.500000", "Iter[2] Batch[2] Train-mse=4.000000"]
    assert lines()[2] == "Epoch[2] Validation-accuracy=nan"


def test_checkpoints_come_every_period(tmp_path):
    class Saved:
        calls: list[tuple[str, int, bool]] = []

        def save_checkpoint(self, *arguments):
            self.calls.append(arguments)

    callback = mx.callback.module_checkpoint(Saved(), "x", period=2, save_optimizer_states=True)
    for epoch in range(4):
        callback(epoch)
    assert Saved.calls == [("x", 2, True), ("x", 4, True)]
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    prefix = str(tmp_path / "net")
    callback = mx.callback.do_checkpoint(prefix, period=2)
    for epoch in range(3):
        callback(epoch, net, {"fc_weight": mx.nd.ones((2, 3))}, {})
    symbol, args, aux = mx.model.load_checkpoint(prefix, 2)
    assert symbol.list_arguments() == ["data", "fc_weight", "fc_bias"]
    assert args["fc_weight"].asnumpy().tolist() == [[1.0] * 3] * 2
    assert aux == {}
    assert len(list(tmp_path.iterdir())) == 2
