"""Matrix operators: products, factorisations, triangles and diagonals. MXNet has them in float32 and float64 only."""

from __future__ import annotations

from .case import Arg, Case

WIDE = ("float32", "float64")
SYMMETRIC = "its gradient is symmetric, as that of a symmetric matrix; a difference quotient moves one side alone"


def _positive(*batch: int, n: int = 3) -> Arg:
    """Symmetric, with a dominant diagonal and eigenvalues well apart."""
    count = 1
    for size in batch:
        count *= size
    matrices = [
        [[3.0 + 2 * i + b if i == j else 0.5 - 0.25 * abs(i - j) for j in range(n)] for i in range(n)]
        for b in range(count)
    ]
    return Arg((*batch, n, n), values=matrices)


def _regular(*batch: int, n: int = 3) -> Arg:
    """Neither symmetric nor near a singular matrix; every second one has a negative determinant."""
    count = 1
    for size in batch:
        count *= size
    matrices = [
        [
            [(2.0 + i if b % 2 or i else -2.0) if i == j else 0.25 * ((3 * i + 5 * j + b) % 7) - 0.75 for j in range(n)]
            for i in range(n)
        ]
        for b in range(count)
    ]
    return Arg((*batch, n, n), values=matrices)


def _row(op: str, inputs: dict, attrs: dict | None = None, **more) -> Case:
    first = next(iter(inputs.values()))
    shape = first.shape if isinstance(first, Arg) else first
    return Case(op, inputs, attrs or {}, dtypes=WIDE, **{"zero_size": len(shape) > 2, **more})


def _gemm(op: str, third: bool) -> list[Case]:
    both = {"transpose_a": True, "transpose_b": True}
    more = {"alpha": 0.5, **({"beta": 2.0} if third else {})}
    rows = [
        ((3, 4), (4, 5), (3, 5), {}),
        ((2, 3, 4), (2, 4, 5), (2, 3, 5), more),
        ((2, 4, 3), (2, 4, 5), (2, 3, 5), {"transpose_a": True}),
        ((2, 3, 4), (2, 5, 4), (2, 3, 5), {"transpose_b": True, **more}),
        ((2, 2, 4, 3), (2, 2, 5, 4), (2, 2, 3, 5), both),
        ((2, 3, 2, 4), (2, 4, 2, 5), (2, 3, 2, 5), {"axis": 1}),
        ((3, 2, 2, 4), (5, 2, 2, 4), (3, 2, 2, 5), {"axis": -4, "transpose_b": True, **more}),
    ]
    return [
        _row(op, {"A": a, "B": b, **({"C": c} if third else {})}, attrs, zero_size=len(a) == 3)
        for a, b, c, attrs in rows
    ]


def _triangular(op: str) -> list[Case]:
    rows = []
    for transpose in (False, True):
        for rightside in (False, True):
            for lower in (False, True):
                attrs = {"transpose": transpose, "rightside": rightside, "lower": lower, "alpha": 0.5}
                other = (2, 4, 3) if rightside else (2, 3, 4)
                rows.append(_row(op, {"A": _regular(2), "B": other}, attrs))
    rows.append(_row(op, {"A": _regular(), "B": (3, 4)}))
    rows.append(_row(op, {"A": _regular(), "B": (4, 3)}, {"rightside": True, "transpose": True, "lower": False}))
    rows.append(_row(op, {"A": _regular(2, 2), "B": (2, 2, 3, 1)}))
    return rows


SINGULAR = Arg((2, 2, 2), values=[[[1, 2], [2, 4]], [[1, 2], [3, 4]]])

CASES = [
    *_gemm("_linalg_gemm", True),
    *_gemm("_linalg_gemm2", False),
    _row("_linalg_syrk", {"A": (3, 4)}),
    _row("_linalg_syrk", {"A": (2, 3, 4)}, {"alpha": 0.5}),
    _row("_linalg_syrk", {"A": (2, 3, 4)}, {"transpose": True, "alpha": 2}),
    *_triangular("_linalg_trmm"),
    *_triangular("_linalg_trsm"),
    *[
        _row(op, {"A": arg}, numeric=False, why=SYMMETRIC)
        for op in ("_linalg_potrf", "_linalg_syevd")
        for arg in (_positive(), _positive(2), _positive(2, 2, n=2), _positive(1, n=1))
    ],
    *[_row("_linalg_potri", {"A": arg}) for arg in (_regular(), _regular(2), _regular(2, 2, n=2))],
    *[_row("_linalg_sumlogdiag", {"A": arg}) for arg in (_positive(), _positive(2), _positive(2, 3))],
    _row("_linalg_gelqf", {"A": (3, 4)}, rtol=1e-4, atol=1e-5, why="an orthonormal basis of small random rows"),
    _row("_linalg_gelqf", {"A": _regular(2)}),
    _row("_linalg_gelqf", {"A": (2, 2, 2, 5)}, rtol=1e-4, atol=1e-5, why="an orthonormal basis of small random rows"),
    *[
        _row(op, {"A": a})
        for op in ("_linalg_inverse", "_linalg_det")
        for a in (_regular(), _regular(2), _regular(2, 2))
    ],
    _row("_linalg_slogdet", {"A": _regular()}),
    _row("_linalg_slogdet", {"A": _regular(2)}),
    _row("_linalg_slogdet", {"A": _regular(2, 2, n=2)}),
    _row("_linalg_det", {"A": SINGULAR}, numeric=False, why="the gradient of a singular matrix is 0 by definition"),
    _row("_linalg_slogdet", {"A": SINGULAR}, numeric=False, why="the gradient of a singular matrix is 0 by definition"),
    *[_row("_linalg_extractdiag", {"A": (2, 4, 4)}, {"offset": k}) for k in (0, 1, -3)],
    _row("_linalg_extractdiag", {"A": (4, 4)}),
    *[_row("_linalg_makediag", {"A": (2, 2, 3)}, {"offset": k}) for k in (0, 2, -1)],
    _row("_linalg_makediag", {"A": (3,)}),
    *[
        _row("_linalg_extracttrian", {"A": (2, 4, 4)}, {"offset": k, "lower": lower})
        for k in (0, 1, -2)
        for lower in (True, False)
    ],
    _row("_linalg_extracttrian", {"A": (3, 3)}),
    *[
        _row("_linalg_maketrian", {"A": (2, 2, 6)}, {"offset": k, "lower": lower})
        for k in (0, 1, -2)
        for lower in (True, False)
    ],
    _row("_linalg_maketrian", {"A": (10,)}),
    *[Case("diag", {"data": (4,)}, {"k": k}, zero_size=False) for k in (0, 2, -1)],
    *[Case("diag", {"data": (3, 4)}, {"k": k}, zero_size=k == 0) for k in (0, 1, -1, 3)],
    Case("diag", {"data": (3, 5)}, dtypes=("float32", "int32", "int64", "int8", "uint8"), zero_size=False),
    Case("diag", {"data": (2, 3, 4)}, {"axis1": 1, "axis2": 2}),
    Case("diag", {"data": (2, 3, 4, 3)}, {"k": -1, "axis1": -1, "axis2": 1}),
    Case("diag", {"data": (4, 3, 4)}, {"k": 1, "axis1": 2, "axis2": 0}, zero_size=False),
    _row("khatri_rao", {"a": (2, 3)}, {"num_args": 1}, grad=False),
    _row("khatri_rao", {"a": (2, 3), "b": (4, 3)}, {"num_args": 2}, grad=False),
    _row("khatri_rao", {"a": (2, 3), "b": (4, 3), "c": (3, 3)}, {"num_args": 3}, grad=False),
    _row("khatri_rao", {"a": (3, 2)}, {"num_args": 1}, oracle=False, why="MXNet has no gradient"),
    _row("khatri_rao", {"a": (2, 2), "b": (3, 2), "c": (4, 2)}, {"num_args": 3}, oracle=False, why="no gradient there"),
]
