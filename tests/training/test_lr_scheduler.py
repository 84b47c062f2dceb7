"""Schedules against MXNet's rates."""

from __future__ import annotations

import pytest

import opbox as mx
from tests.training.recorded import VALUES


@pytest.mark.parametrize("row", VALUES["schedules"], ids=lambda row: f"{row['name']}{row['options']}")
def test_rates_are_mxnets(row):
    schedule = getattr(mx.lr_scheduler, row["name"])(**row["options"])
    assert [schedule(t) for t in range(1, 15)] == pytest.approx(row["rates"], rel=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.FactorScheduler(0), "expected 1 update or more"),
        (lambda s: s.FactorScheduler(2, factor=1.5), "expected at most 1"),
        (lambda s: s.MultiFactorScheduler([3, 2]), "rising"),
        (lambda s: s.PolyScheduler(0), "max_update: expected 1 or more"),
        (lambda s: s.CosineScheduler(5, warmup_steps=2, warmup_mode="odd"), "linear or constant"),
        (lambda s: s.CosineScheduler(5, base_lr=0.1, warmup_begin_lr=1.0), "expected at most base_lr"),
    ],
)
def test_what_makes_no_schedule(make, message):
    with pytest.raises(ValueError, match=message):
        make(mx.lr_scheduler)
