"""Matrices of several blocks by kernels of our own: the CPU's values, on the emulator and as plans on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import Backend, backend_for
from opbox_ops.cuda import eigen
from opbox_ops.cuda.matrix_parts import BLOCK
from opbox_service.executor import bind
from opbox_service.graph.json import load
from tests.cases.case import Arg, Case

from .harness import Run
from .test_cuda_kernels import compare_with_the_reference

SIDES = (BLOCK, 2 * BLOCK + 5)


def regular(count: int, n: int) -> np.ndarray[Any, Any]:
    """Matrices whose condition is small, with rows that pivoting puts elsewhere."""
    rng = np.random.default_rng(n)
    matrices = rng.uniform(-1, 1, (count, n, n)) / n + np.eye(n)
    return np.stack([matrix[rng.permutation(n)] for matrix in matrices])


def dominant(count: int, n: int) -> np.ndarray[Any, Any]:
    """Matrices whose triangles are well-conditioned factors."""
    return np.random.default_rng(n).uniform(-1, 1, (count, n, n)) / n + np.diag(np.linspace(1, 2, n))


def symmetric(count: int, eigenvalues: Any) -> np.ndarray[Any, Any]:
    """Symmetric matrices with these eigenvalues."""
    n = len(eigenvalues)
    q = np.linalg.qr(np.random.default_rng(n).normal(size=(count, n, n)))[0]
    return np.asarray((q * eigenvalues) @ q.swapaxes(1, 2))


def positive(count: int, n: int) -> np.ndarray[Any, Any]:
    """Symmetric positive definite matrices, their eigenvalues apart."""
    return symmetric(count, np.linspace(1, 3, n))


def row(op: str, inputs: dict[str, np.ndarray[Any, Any]], **attrs: Any) -> Case:
    """A row of the operator table with these matrices."""
    args = {name: Arg(values.shape, values=values.tolist()) for name, values in inputs.items()}
    # Sums of as many products as a matrix has rows, in another order.
    return Case(op, args, attrs, dtypes=("float32", "float64"), rtol=1e-3, atol=2e-5)


def cases() -> list[Any]:
    rng = np.random.default_rng(0)
    listed = []
    for n in SIDES:
        listed += [row("_linalg_potrf", {"A": positive(2, n)}), row("_linalg_potri", {"A": dominant(2, n)})]
        listed += [row(f"_linalg_{name}", {"A": regular(2, n)}) for name in ("inverse", "det", "slogdet")]
        listed += [row("_linalg_gelqf", {"A": a}) for a in (positive(2, n), rng.normal(size=(2, n, n + 30)))]
        for attrs in (
            {"lower": True, "transpose": False, "rightside": False, "alpha": 0.5},
            {"lower": True, "transpose": True, "rightside": False, "alpha": 1.0},
            {"lower": False, "transpose": False, "rightside": True, "alpha": 2.0},
            {"lower": False, "transpose": True, "rightside": True, "alpha": 1.0},
        ):
            shape = (2, 5, n) if attrs["rightside"] else (2, n, 5)
            listed.append(row("_linalg_trsm", {"A": dominant(2, n), "B": rng.normal(size=shape)}, **attrs))
    # Two pairs of blocks, with an empty place; a gradient divides by how far eigenvalues are apart.
    listed.append(row("_linalg_syevd", {"A": symmetric(1, np.arange(BLOCK + 5) - 9.5)}))
    return [pytest.param(case, id=f"{case.op}-{case.inputs['A'].shape[-1]}-{i}") for i, case in enumerate(listed)]


@pytest.mark.compiler
@pytest.mark.parametrize("case", cases())
def test_matrices_of_several_blocks_have_the_references_values(case: Case, folder: Path) -> None:
    compare_with_the_reference(case, folder)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", cases())
def test_matrices_of_several_blocks_on_a_gpu(
    case: Case, dtype: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.op != "_linalg_inverse":  # its gradient is two products, which OPBOX_ALLOW_TF32 is for
        monkeypatch.setenv("OPBOX_ALLOW_TF32", "1")
    results = []
    for place in (backend_for("cpu"), backend):
        run = Run(case, dtype, place)
        run.forward()
        run.backward()
        results.append([place.get(out) for call in run.calls for out in call.outputs])
    close = {"rtol": case.rtol, "atol": case.atol} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-12}
    for expected, result in zip(*results, strict=True):
        np.testing.assert_allclose(result, expected, **close)


def output_of(op: str, values: Any, backend: Backend) -> Any:
    """What a plan of one operator on a device computes of one array; it runs twice, the second time as a graph."""
    symbol = getattr(mx.sym.linalg, op)(mx.sym.Variable("A"))
    args = {"A": backend.put(np.asarray(values, "f"))}
    executor = bind(load(symbol.tojson()), args=args, backend=backend, random=backend.random(0))
    for _ in range(2):
        executor.forward(is_train=False)
    return [backend.get(out) for out in executor.outputs]


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_matrix_that_has_no_factor_gives_nan_on_a_gpu_and_spoils_no_other(backend: Backend) -> None:
    [out] = output_of("potrf", [[[4, 2], [2, -5]], [[4, 2], [2, 5]]], backend)
    np.testing.assert_array_equal(out, [[[2, 0], [1, np.nan]], [[2, 0], [1, 2]]])
    large = positive(1, 2 * BLOCK)
    large[0, BLOCK, BLOCK] = -1
    [out] = output_of("potrf", large, backend)
    assert np.isnan(out[0, BLOCK:, BLOCK:][np.tril_indices(BLOCK)]).all()
    assert not np.isnan(out[0, :BLOCK]).any()


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_singular_matrix_has_determinant_0_and_no_finite_inverse_on_a_gpu(backend: Backend) -> None:
    singular = [[[1, 2], [2, 4]], [[0, 2], [1, 0]]]
    assert not np.isfinite(output_of("inverse", singular, backend)[0][0]).any()
    np.testing.assert_array_equal(output_of("inverse", singular, backend)[0][1], [[0, 1], [0.5, 0]])
    np.testing.assert_allclose(output_of("det", singular, backend)[0], [0, -2], rtol=1e-6)
    sign, logarithm = output_of("slogdet", singular, backend)
    assert sign.tolist() == [0, -1]
    np.testing.assert_allclose(logarithm, [-np.inf, np.log(2)], rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_rows_that_depend_on_others_and_tiny_ones_have_orthonormal_factors_on_a_gpu(backend: Backend) -> None:
    rows = np.random.default_rng(0).normal(size=(BLOCK + 8, BLOCK + 20))
    rows[5] = rows[3] + 2 * rows[4]
    rows[BLOCK + 2] = 0
    for scale in (1, 1e-25, 1e25):
        q, lower = output_of("gelqf", rows * scale, backend)
        np.testing.assert_allclose(q @ q.T, np.eye(len(q)), atol=1e-5)
        np.testing.assert_allclose(lower @ q / scale, rows, atol=1e-4)


EIGENVALUES = {
    "apart": np.linspace(-2, 3, 66),
    "equal": np.repeat([1.0, 2.0, 5.0], [15, 20, 5]),
    "one": np.ones(35),
    "tiny beside large": np.logspace(0, -12, 33),
    "none": np.zeros(33),
}


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("name", EIGENVALUES)
def test_eigenvectors_of_several_pairs_of_blocks_are_orthonormal_on_a_gpu(name: str, backend: Backend) -> None:
    values = EIGENVALUES[name]
    a = symmetric(1, values).astype("f")
    u, eigenvalues = output_of("syevd", a, backend)
    exact = np.linalg.eigvalsh(a.astype("d"))
    np.testing.assert_allclose(eigenvalues, exact, atol=1e-6 * max(np.abs(values).max(), 1))
    np.testing.assert_allclose(u @ u.swapaxes(1, 2), np.broadcast_to(np.eye(len(values)), a.shape), atol=2e-6)
    composed = u.swapaxes(1, 2) * eigenvalues[:, None, :] @ u
    np.testing.assert_allclose(composed, a, atol=4e-6 * max(np.abs(values).max(), 1))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_matrix_with_nan_has_no_eigenvalues_on_a_gpu_and_spoils_no_other(backend: Backend) -> None:
    for odd in (np.nan, np.inf):
        u, values = output_of("syevd", [[[1, 0], [odd, 2]], [[2, 0], [0, 1]]], backend)
        assert np.isnan(u[0]).all()
        assert np.isnan(values[0]).all()
        assert values[1].tolist() == [1, 2]
        assert u[1].tolist() == [[0, 1], [1, 0]]


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_more_rows_than_sweeps_are_for_are_the_librarys(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    a = symmetric(1, np.arange(4.0))
    expected = output_of("syevd", a, backend)
    monkeypatch.setattr(eigen, "LARGEST", 3)
    monkeypatch.setattr(eigen, "_diagonalised", None)
    for out, array in zip(output_of("syevd", a, backend), expected, strict=True):
        np.testing.assert_allclose(out, array, atol=1e-6)
