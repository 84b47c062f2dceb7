"""The operator table, every row in every type, live against MXNet 1.9.1; and its registry's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases import all_cases
from tests.cases.case import Case
from tests.cases.values import is_float
from tests.ops.checks import tolerance

from .comparing import NEAR, compare
from .mxnet import Oracle

pytestmark = pytest.mark.conformance

ROWS: list[Any] = [
    pytest.param(case, dtype, id=f"{dtype}-{case.id}")
    for case in all_cases()
    if case.oracle and not case.random and not case.imperative
    for dtype in case.dtypes
    if dtype not in case.unlike
]


@pytest.mark.parametrize(("case", "dtype"), ROWS)
def test_row(oracle: Oracle, case: Case, dtype: str) -> None:
    near, gradient = tolerance(case, dtype), tolerance(case, dtype, gradient=True)
    if dtype in NEAR and case.rtol is None:
        near = gradient = NEAR[dtype]
    if compare(oracle, case, dtype, near, gradient) == "refused":
        assert dtype != case.dtypes[0], "MXNet does not take this row: set oracle=False"
        assert is_float(dtype), f"MXNet does not take this row in {dtype}"
        pytest.skip(f"MXNet does not take this row in {dtype}")
