"""bfloat16 on a GPU: the operator table has no column for it, as NumPy has no such type of its own."""

from __future__ import annotations

from typing import Any

import pytest

from opbox_ops.backend import backend_for
from tests.cases import all_cases
from tests.cases.case import Case
from tests.ops.checks import NEAR, NEAR_GRADIENT, close
from tests.ops.harness import Run

OPERATORS = [
    *("Convolution", "Embedding", "FullyConnected", "LayerNorm", "Pooling", "argsort", "broadcast_add", "dot", "exp"),
    *("sort", "sum", "take", "topk"),
]


def first_rows() -> dict[str, Case]:
    rows: dict[str, Case] = {}
    for case in all_cases():
        if case.op in OPERATORS:
            rows.setdefault(case.op, case)
    return rows


ROWS = first_rows()


def values(case: Case, device: str, level: str | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Outputs and gradients of a row in bfloat16."""
    backend = backend_for(device)
    run = Run(case, "bfloat16", backend, level=level)
    outputs = [backend.get(array) for array in run.forward()]
    gradients = run.backward() if case.grad and run.wanted() else {}
    return outputs, {name: backend.get(array) for name, array in gradients.items()}


@pytest.mark.parametrize("op", OPERATORS)
def test_a_row_in_bfloat16_has_the_cpus_values(gpu: Any, op: str) -> None:
    outputs, gradients = values(ROWS[op], "gpu:0")
    expected, expected_gradients = values(ROWS[op], "cpu", "reference")
    for result, array in zip(outputs, expected, strict=True):
        close(result, array, NEAR["bfloat16"], op)
    assert gradients.keys() == expected_gradients.keys()
    for name, array in expected_gradients.items():
        close(gradients[name], array, NEAR_GRADIENT["bfloat16"], f"{op}, gradient of {name}")
