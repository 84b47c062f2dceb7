"""The examples whose operators are CUDA kernels train, on the engine embedded and through a live server."""

from __future__ import annotations

import pytest

from .programs import EXAMPLES, run

pytestmark = pytest.mark.compiler


@pytest.fixture(params=["embedded", "server"])
def where(request: pytest.FixtureRequest) -> dict[str, str]:
    return request.getfixturevalue("server") if request.param == "server" else {}


def accuracy(printed: str) -> float:
    return float(printed.rpartition("validation accuracy: ")[2].split()[0])


def test_softmax_of_two_kernels_reaches_0_95(where: dict[str, str]) -> None:
    assert accuracy(run(EXAMPLES / "ndarray_softmax_cuda.py", env=where)) >= 0.95


def test_reorg_of_two_kernels_inside_lenet(where: dict[str, str]) -> None:
    printed = run(EXAMPLES / "reorg_op.py", "--epochs", "1", env=where)
    assert "[(50, 10)]" in printed
    assert accuracy(printed) > 0.8
