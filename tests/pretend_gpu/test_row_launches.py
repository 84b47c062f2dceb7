"""Operators that go along rows and channels: how many launches forward and backward are."""

from __future__ import annotations

from typing import Any

import pytest

from opbox_ops.backend import backend_for
from tests.cases import families
from tests.cases.case import Arg, Case
from tests.ops.harness import Run

from .spy import watched
from .test_plans import no_rubbish

_SMALL = {
    "softmax": (1, 1),
    "log_softmax": (1, 1),
    "SoftmaxActivation": (1, 1),
    "SoftmaxOutput": (1, 1),
    "softmax_cross_entropy": (2, 1),
    "pick": (1, 1),
    "BatchNorm": (1, 1),
    "_contrib_BatchNormWithReLU": (1, 1),
    "BatchNorm_v1": (1, 1),
    "_contrib_SyncBatchNorm": (1, 1),
    "LayerNorm": (1, 2),
    "GroupNorm": (1, 2),
    "InstanceNorm": (1, 2),
    "L2Normalization": (1, 1),
    "LRN": (1, 1),
    "CTCLoss": (4, None),
}
"""Of the first row of each in the operator table. CTCLoss reads its labels as doubles; its gradient is a product."""
_DATA = {"data": (3, 9000)}
_LONG = {
    "softmax": (Case("softmax", _DATA), (2, 2)),
    "softmax along the first axis": (Case("softmax", {"data": (4500, 2)}, {"axis": 0}), (2, 2)),
    "LayerNorm": (Case("LayerNorm", {**_DATA, "gamma": (9000,), "beta": (9000,)}), (2, 4)),
    "SoftmaxOutput": (
        Case("SoftmaxOutput", {"data": (900, 4), "label": Arg((900,), grad=False)}, {"normalization": "valid"}),
        (1, 2),
    ),
}


def launches(case: Case) -> list[int]:
    """Those of each call of a row, once it is warm: forward, and backward."""
    run = Run(case, "float32", backend_for("gpu:0"))
    run.forward()
    run.backward()
    counts = []
    for call in run.calls:
        with no_rubbish(call) as compute, watched() as watch:
            compute()
        counts.append(watch.calls["launch"])
    return counts


@pytest.mark.parametrize("name", _SMALL)
def test_a_row_of_the_table_is_few_launches(gpu: Any, name: str) -> None:
    tables = [cases for family, cases in families().items() if family != "parameter_values"]
    case = next(case for cases in tables for case in cases if case.op == name)
    forward, backward = _SMALL[name]
    counts = launches(case)
    assert counts[0] == forward
    assert backward in (None, counts[1])


@pytest.mark.parametrize("name", _LONG)
def test_few_long_rows_are_a_launch_more(gpu: Any, name: str) -> None:
    case, expected = _LONG[name]
    assert tuple(launches(case)) == expected
