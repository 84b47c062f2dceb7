"""bfloat16 on a GPU: the operator table has no column for it, as NumPy has no such type of its own."""

from __future__ import annotations

import os
from typing import Any

import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.errors import DTypeError
from tests.cases import all_cases
from tests.cases.case import Case
from tests.ops.checks import NEAR, NEAR_GRADIENT, close
from tests.ops.harness import Run

OPERATORS = [
    *(
        "BatchNorm",
        "Convolution",
        "Embedding",
        "FullyConnected",
        "LayerNorm",
        "Pooling",
        "argsort",
        "broadcast_add",
        "dot",
        "exp",
    ),
    *("sort", "sum", "take", "topk"),
]


"""Those of everyday tests; with OPBOX_PRETEND_GPU=whole it is all of ROWS."""
REFUSED = {
    *(f"_contrib_interleaved_matmul_{name}" for name in ("encdec_qk", "encdec_valatt", "selfatt_qk", "selfatt_valatt")),
    *(f"_random_pdf_{name}" for name in ("dirichlet", "exponential", "gamma", "generalized_negative_binomial")),
    *(f"_random_pdf_{name}" for name in ("negative_binomial", "normal", "poisson", "uniform")),
}
"""Operators whose rule of types takes float16 and not bfloat16, on every device."""


def first_rows() -> dict[str, Case]:
    """The first row of each operator that takes float16, but of those that draw."""
    rows: dict[str, Case] = {}
    for case in all_cases():
        if "float16" in case.dtypes and not case.random:
            rows.setdefault(case.op, case)
    return rows


ROWS = first_rows()
TRIED = [*ROWS.keys() - REFUSED] if os.environ.get("OPBOX_PRETEND_GPU") == "whole" else OPERATORS


def values(case: Case, device: str, level: str | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Outputs and gradients of a row in bfloat16."""
    backend = backend_for(device)
    run = Run(case, "bfloat16", backend, level=level)
    outputs = [backend.get(array) for array in run.forward()]
    gradients = run.backward() if case.grad and run.wanted() else {}
    return outputs, {name: backend.get(array) for name, array in gradients.items()}


@pytest.mark.parametrize("op", sorted(TRIED))
def test_a_row_in_bfloat16_has_the_cpus_values(gpu: Any, op: str) -> None:
    outputs, gradients = values(ROWS[op], "gpu:0")
    expected, expected_gradients = values(ROWS[op], "cpu", "reference")
    for result, array in zip(outputs, expected, strict=True):
        close(result, array, NEAR["bfloat16"], op)
    assert gradients.keys() == expected_gradients.keys()
    for name, array in expected_gradients.items():
        close(gradients[name], array, NEAR_GRADIENT["bfloat16"], f"{op}, gradient of {name}")


@pytest.mark.parametrize("op", sorted(REFUSED))
def test_what_refuses_bfloat16_does_so_on_a_device_too(gpu: Any, op: str) -> None:
    for device in ("cpu", "gpu:0"):
        with pytest.raises(DTypeError, match="expected float16 or float32 or float64, got bfloat16"):
            values(ROWS[op], device)
