"""Random shapes and parameters by family, in MXNet and here: values, gradients, and who refuses what.

OPBOX_GENERATED sets how many blocks of rows a family gets (each of ROWS); the rows of a block never change.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.ops.checks import tolerance

from . import generate_layers  # noqa: F401  registers its families
from .comparing import compare
from .generate import FAMILIES
from .mxnet import Oracle

pytestmark = pytest.mark.conformance

BLOCKS = int(os.environ.get("OPBOX_GENERATED", "3"))
ROWS = 25


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("family", FAMILIES)
def test_generated(oracle: Oracle, family: str, block: int) -> None:
    seen: dict[str, int] = {}
    wrong: list[str] = []
    for number in range(ROWS):
        case = FAMILIES[family](Random(f"{family} {block} {number}"))
        near, gradient = tolerance(case, "float32"), tolerance(case, "float32", gradient=True)
        try:
            outcome = compare(oracle, case, "float32", near, gradient)
        except AssertionError as error:
            wrong.append(f"{case.id}: {' '.join(str(error).split())[:400]}")
            continue
        seen[outcome] = seen.get(outcome, 0) + 1
    assert not wrong, f"{len(wrong)} of {ROWS}:\n" + "\n".join(wrong)
    assert seen.get("same", 0) >= ROWS // 3, f"too few rows that MXNet takes: {seen}"
