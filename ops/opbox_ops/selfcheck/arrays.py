"""Rows of order, sums, positions and quantized numbers, of matrices, and of updates of many weights."""

from __future__ import annotations

from collections.abc import Sequence

from .row import Drawn, Input, Row

__all__ = ["ROWS"]

_WHOLE_AND_FLOATS = ("float32", "float16", "float64")
_WIDE = ("float32", "float64")


def _sorted(op: str, **attrs: object) -> Row:
    """Rows that a block sorts, and rows that are longer than that."""
    return Row(op, [Input((37, 7), -1, 1, "distinct")], [Input((3, 2100), -1, 1, "distinct")], attrs)


def _matrix(op: str, kind: str, size: int = 70) -> Row:
    return Row(
        op,
        [Input((2, 3, 3), kind=kind)],
        [Input((3, size, size), kind=kind)],
        slack=100,
        types=_WIDE,
        why="Errors grow with the condition of the matrices.",
    )


def _weights(sizes: Sequence[tuple[int, ...]], *others: Input) -> list[Drawn]:
    """For each weight: itself, its gradient and what the optimizer keeps."""
    inputs: list[Drawn] = []
    for shape in sizes:
        inputs += [shape, Input(shape, -3, 3)]
        inputs += [Input(shape, one.low, one.high, dtype=one.dtype) for one in others]
    return inputs


def _updates(op: str, attrs: dict[str, object], mixed: bool, *last: Input) -> Row:
    states = [Input((), -0.1, 0.1), Input((), 0.2, 1.0)]
    if mixed:
        states = [Input((), one.low, one.high, dtype="float32") for one in (*states, Input(()))]
    small, large = [(3, 4), (5,)], [(70, 300), (1001,)]
    types = ("float16",) if mixed else _WHOLE_AND_FLOATS
    few, many = ([*_weights(sizes, *states), *last] for sizes in (small, large))
    return Row(op, few, many, attrs, slack=10, gradient=False, types=types)


_NUMPY_REDUCTIONS = (
    *("_np_sum", "_npi_mean", "_np_max", "_np_min", "_npi_norm", "_npi_var", "_npi_std", "_npi_argmax", "_npi_argmin"),
)
_ADAMW = {"lrs": (0.1, 0.2), "wds": (0.3, 0.0), "etas": (0.5, 1.0), "num_weights": 2}
_LAMB = {"learning_rates": (0.1, 0.2), "wds": (0.3, 0.0), "step_count": (2, 3), "num_tensors": 2}
_ONE = Input((1,), 0.5, 1.5, dtype="float32")


def _phase_two(op: str, mixed: bool) -> Row:
    dtype = "float32" if mixed else None

    def inputs(shape: tuple[int, ...]) -> list[Input]:
        norms = [Input((1,), 0.5, 1.5, dtype=dtype) for _ in range(2)]
        return [Input(shape), Input(shape, dtype=dtype), *norms, *([Input(shape, dtype=dtype)] if mixed else [])]

    types = ("float16",) if mixed else _WHOLE_AND_FLOATS
    return Row(op, inputs((3, 4)), inputs((70, 300)), {"lr": 0.1}, gradient=False, types=types)


_POSITIONS, _MANY_POSITIONS = Input((3, 5), 0, 6, "int"), Input((70, 90), 0, 40, "int")
"""Positions, and so many that the rows of one are added in pieces."""

ROWS = [
    Row(
        "Embedding",
        [_POSITIONS, (7, 3)],
        [_MANY_POSITIONS, (41, 33)],
        {"input_dim": 7, "output_dim": 3},
        {"input_dim": 41, "output_dim": 33},
        slack=10,
    ),
    Row("take", [(7, 3), _POSITIONS], [(41, 33), _MANY_POSITIONS], slack=10),
    Row("gather_nd", [(3, 4, 2), Input((2, 5), 0, 2, "int")], [(41, 30, 5), Input((2, 900), 0, 3, "int")], slack=10),
    *(Row(op, [(3, 7)], [(300, 130)], attrs) for op in ("sum", "argmax") for attrs in ({}, {"axis": 0}, {"axis": 1})),
    *(Row(op, [(3, 7)], [(300, 130)]) for op in ("mean", "nansum", "max", "min", "norm", "argmin")),
    *(
        Row(op, [Input((3, 7), 0.5, 1.5)], [Input((700, 13), 0.9, 1.1)], {"axis": 1})
        for op in ("prod", "nanprod", "_np_prod")
    ),
    *(Row(op, [(3, 7)], [(700, 33)], {"axis": 0}) for op in _NUMPY_REDUCTIONS),
    *(Row(op, [(3, 7)], [(700, 33)], {"axis": 0}, gradient=False) for op in ("_np_any", "_np_all")),
    Row("argmax_channel", [(3, 7)], [(30, 700)], gradient=False),
    Row("moments", [(3, 4, 5)], [(6, 3, 2048)], {"axes": (0, 2)}),
    _sorted("sort"),
    _sorted("argsort"),
    _sorted("topk", k=3, ret_typ="both"),
    Row("pick", [(3, 7), Input((3,), 0, 6, "int")], [(700, 33), Input((700,), 0, 32, "int")]),
    Row("batch_take", [(3, 7), Input((3,), 0, 6, "int", "int32")], [(700, 33), Input((700,), 0, 32, "int", "int32")]),
    Row("_np_cumsum", [(2, 3, 4)], [(5, 70, 33)], {"axis": 1}),
    Row(
        "_np_cumsum",
        [(3, 7)],
        [(1, 17_000)],
        {"axis": 1},
        slack=100,
        types=_WIDE,
        why="Errors of 17,000 sums add up, in another order.",
    ),
    Row("multi_sum_sq", [(3, 4), (5,)], [(70, 300), (1001,)], {"num_arrays": 2}, gradient=False),
    Row("all_finite", [(7,)], [(70, 300)], gradient=False),
    Row("multi_all_finite", [(7,), (3,)], [(70, 300), (1001,)], {"num_arrays": 2}, gradient=False),
    Row("_histogram", [Input((3, 5), 0, 8)], [Input((70, 300), 0, 8)], {"bin_cnt": 5, "range": (0, 8)}, gradient=False),
    Row(
        "_contrib_index_copy",
        [(5, 3), Input((2,), 0, 4, "distinct"), (2, 3)],
        [(300, 65), Input((128,), 0, 128, "distinct"), (128, 65)],
    ),
    *(
        Row(
            "_contrib_quantize",
            [Input((3, 5), -2, 2), *ranges],
            [Input((70, 300), -2, 2), *ranges],
            {"out_type": kind},
            gradient=False,
            types=("float32",),
        )
        for kind in ("int8", "uint8")
        for ranges in [[Input((1,), -2, -2, dtype="float32"), Input((1,), 2, 2, dtype="float32")]]
    ),
    *(
        Row(
            "_contrib_dequantize",
            [Input((7,), low, low + 255, "int", kind), *ranges],
            [Input((70, 300), low, low + 255, "int", kind), *ranges],
            gradient=False,
            types=("float32",),
        )
        for kind, low in (("int8", -128), ("uint8", 0))
        for ranges in [[Input((1,), -2, -2, dtype="float32"), Input((1,), 2, 2, dtype="float32")]]
    ),
    *(_matrix(op, "dominant") for op in ("_linalg_inverse", "_linalg_det", "_linalg_slogdet")),
    *(_matrix(op, "definite") for op in ("_linalg_potrf", "_linalg_potri")),
    _matrix("_linalg_syevd", "definite", 40),
    Row("_linalg_gelqf", [(2, 3, 5)], [(3, 40, 70)], slack=100, types=_WIDE, why="Errors grow with the condition."),
    Row(
        "_linalg_trsm",
        [Input((2, 3, 3), kind="dominant"), (2, 3, 4)],
        [Input((3, 70, 70), kind="dominant"), (3, 70, 33)],
        {"alpha": 0.5},
        slack=100,
        types=_WIDE,
        why="Errors grow with the condition.",
    ),
    Row("_contrib_fft", [(3, 5)], [(140, 33)], types=("float32",)),
    Row("_contrib_ifft", [(3, 10)], [(140, 66)], types=("float32",), slack=10),
    _updates("_multi_adamw_update", _ADAMW, False, _ONE),
    _updates("_multi_mp_adamw_update", _ADAMW, True, _ONE),
    _updates("_multi_lamb_update", _LAMB, False),
    _updates("_multi_mp_lamb_update", _LAMB, True),
    _phase_two("lamb_update_phase2", False),
    _phase_two("mp_lamb_update_phase2", True),
]
