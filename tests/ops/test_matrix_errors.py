"""What matrix operators refuse: shapes and types before they run, matrices that have no such factor when they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.errors import BadRequestError, MXNetError
from tests.cases.case import Arg, Case

from .harness import Run
from .one_call import call_graph, run_call

SHAPES: list[tuple[str, dict[str, Any], list[Any], str]] = [
    ("_linalg_gemm2", {}, [(2, 3), (2, 3, 4)], "one number of dimensions, got (2, 3), (2, 3, 4)"),
    ("_linalg_gemm2", {}, [(2, 3), (4, 5)], "expected (3, 5), got (4, 5)"),
    ("_linalg_gemm2", {}, [(3,), (3, 2)], "expected at least 2 dimensions, got (3,)"),
    ("_linalg_gemm2", {"axis": 2}, [(2, 3, 4), (2, 4, 5)], "axis: expected an axis before the last"),
    ("_linalg_gemm2", {"axis": -4}, [(2, 3, 4), (2, 4, 5)], "axis: expected between -3 and 2 for 3 dimensions, got -4"),
    ("_linalg_gemm", {}, [(2, 3), (3, 4), (2, 5)], "expected (2, 4), got (2, 5)"),
    ("_linalg_syrk", {}, [(3,)], "expected at least 2 dimensions, got (3,)"),
    ("_linalg_trmm", {}, [(2, 3), (3, 4)], "expected square matrices, got (2, 3)"),
    ("_linalg_trsm", {"rightside": True}, [(3, 3), (3, 4)], "expected (?, 3), got (3, 4)"),
    ("_linalg_potrf", {}, [(2, 3)], "expected square matrices, got (2, 3)"),
    ("_linalg_gelqf", {}, [(3, 2)], "expected matrices of at least as many columns as rows, got (3, 2)"),
    ("_linalg_syevd", {}, [(3, 2)], "expected square matrices, got (3, 2)"),
    ("_linalg_det", {}, [(3,)], "expected at least 2 dimensions, got (3,)"),
    ("_linalg_extractdiag", {"offset": 3}, [(3, 3)], "offset: expected between -2 and 2 for (3, 3), got 3"),
    ("_linalg_extracttrian", {"offset": -4}, [(3, 3)], "offset: expected between -2 and 2 for (3, 3), got -4"),
    ("_linalg_maketrian", {}, [(2, 5)], "expected 1, 3, 6, 10, … numbers, as a triangle has, got 5"),
    ("diag", {"axis1": 1, "axis2": -1}, [(2, 3)], "expected two axes, got 1 and -1, which are one"),
    ("diag", {"axis2": 2}, [(2, 3)], "axis2: expected between -2 and 1 for 2 dimensions, got 2"),
    ("khatri_rao", {"num_args": 2}, [(2, 3), (2, 4)], "expected (2, 3), got (2, 4)"),
    ("khatri_rao", {"num_args": 1}, [(2, 3, 4)], "expected 2 dimensions, got (2, 3, 4)"),
]

VALUES: list[tuple[str, Any, str]] = [
    ("_linalg_potrf", [[1, 2], [2, 1]], "A: expected symmetric positive definite matrices, got one that is not"),
    ("_linalg_inverse", [[1, 2], [2, 4]], "A: expected invertible matrices, got one that is not"),
    ("_linalg_potri", [[1, 0], [2, 0]], "A: expected triangular matrices without 0 on the diagonal"),
    ("_linalg_potri", [[[1, 0], [2, 0]]], "A: expected triangular matrices without 0 on the diagonal"),
]


def _case(name: str, attrs: dict[str, Any], shapes: list[Any]) -> Case:
    return Case(name, {f"in{i}": tuple(shape) for i, shape in enumerate(shapes)}, attrs)


@pytest.mark.parametrize(("name", "attrs", "shapes", "sentence"), SHAPES)
def test_shapes_that_do_not_fit(name: str, attrs: dict[str, Any], shapes: list[Any], sentence: str) -> None:
    with pytest.raises(MXNetError) as caught:
        Run(_case(name, attrs, shapes), "float32", backend_for("cpu")).forward()
    assert sentence in str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_types_without_a_factorisation(dtype: str) -> None:
    with pytest.raises(MXNetError, match=f"expected float32 or float64, got {dtype}"):
        Run(_case("_linalg_inverse", {}, [(2, 2)]), dtype, backend_for("cpu")).forward()


@pytest.mark.parametrize(("name", "values", "sentence"), VALUES)
def test_matrices_without_such_a_factor(name: str, values: Any, sentence: str) -> None:
    case = Case(name, {"A": Arg(np.shape(values), values=values)})
    with pytest.raises(BadRequestError) as caught:
        Run(case, "float64", backend_for("cpu")).forward()
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("offset", "side"), [(1, 1), (-2, 2), (0, 0)])
def test_a_diagonal_of_nothing_is_laid_in_zeros(offset, side):
    graph = call_graph("_linalg_makediag", {"offset": offset}, ["A"])
    outputs = run_call(graph, {"A": np.zeros((0,), np.float32)}, [], None, is_train=False)
    assert np.array_equal(outputs["out:0"], np.zeros((side, side), np.float32))
