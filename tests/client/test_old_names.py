"""Small modules and names that MXNet's programs use: mx.engine, mx.misc, environment variables, set_lr_scale."""

from __future__ import annotations

import pytest

import opbox as mx


def test_a_bulk_size_is_noted_and_changes_nothing() -> None:
    before = mx.engine.set_bulk_size(4)
    try:
        with mx.engine.bulk(10):
            x = mx.nd.zeros((2,))
            for _ in range(3):
                x += 1
            assert mx.engine.set_bulk_size(11) == 10
        assert mx.engine.set_bulk_size(4) == 4
        assert x.asnumpy().tolist() == [3, 3]
    finally:
        assert mx.engine.set_bulk_size(before) == 4


def test_the_old_schedule_trains(caplog: pytest.LogCaptureFixture) -> None:
    schedule = mx.misc.FactorScheduler(step=2, factor=0.5)
    schedule.base_lr = 0.8
    with caplog.at_level("INFO"):
        assert [schedule(update) for update in range(5)] == [0.8, 0.8, 0.4, 0.4, 0.2]
    assert [record.getMessage() for record in caplog.records] == [
        "FactorScheduler: update 2: the rate is 0.40000 from here on",
        "FactorScheduler: update 4: the rate is 0.20000 from here on",
    ]
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(lr_scheduler=schedule))
    weight = mx.nd.zeros((1,))
    updater(0, mx.nd.ones((1,)), weight)
    assert weight.asnumpy().tolist() == pytest.approx([-0.8])


def test_wrong_schedules_are_refused() -> None:
    with pytest.raises(ValueError, match="step: expected at least 1 update, got 0"):
        mx.misc.FactorScheduler(0)
    with pytest.raises(ValueError, match="factor: expected less than 1, got 2"):
        mx.misc.FactorScheduler(1, 2)
    with pytest.raises(NotImplementedError, match="LearningRateScheduler must define"):
        mx.misc.LearningRateScheduler()(1)


def test_environment_variables_are_this_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_NO_SUCH", raising=False)
    assert mx.util.getenv("OPBOX_NO_SUCH") is None
    mx.util.setenv("OPBOX_NO_SUCH", "1")
    assert mx.util.getenv("OPBOX_NO_SUCH") == "1"
    mx.util.setenv("OPBOX_NO_SUCH", None)
    assert mx.util.getenv("OPBOX_NO_SUCH") is None
    assert mx.util.is_np_array() is False


def test_set_lr_scale_says_what_has_taken_its_place() -> None:
    with pytest.raises(DeprecationWarning, match="expected set_lr_mult"):
        mx.optimizer.SGD().set_lr_scale({})
