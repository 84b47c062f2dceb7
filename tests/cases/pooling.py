"""Pooling."""

from typing import Any

from .case import FLOATS, Arg, Case

_WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7), {"kernel": (3,), "stride": (2,)}),
    ((2, 3, 7, 8), {"kernel": (2, 2), "stride": (2, 2)}),
    ((2, 3, 7, 8), {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}),
    ((2, 3, 6, 6), {"kernel": (3, 2), "stride": (2, 1), "pooling_convention": "full"}),
    ((2, 2, 5, 6, 7), {"kernel": (2, 3, 2), "stride": (2, 2, 2), "pad": (1, 1, 0)}),
    ((2, 3, 4, 5), {"global_pool": True}),
    ((2, 3, 5), {"global_pool": True}),
    ((2, 3, 4, 5), {"global_pool": True, "kernel": (2, 2), "pad": (1, 1)}),
    ((2, 3, 4, 5), {"kernel": (6, 7), "pad": (1, 1)}),
]


def _row(pool_type: str, shape: tuple[int, ...], attrs: dict[str, Any], **options: Any) -> Case:
    if pool_type == "avg" and attrs.get("pooling_convention") == "full":
        options = {
            "dtypes": ("float64", "float32", "float16"),
            "unlike": ("float32",),
            "why": "MXNet's float32 gradient divides by the whole window where the output was divided by less",
        }
    arg = Arg(shape, kind="distinct") if pool_type == "max" else Arg(shape, low=0.2)
    return Case("Pooling", {"data": arg}, {"pool_type": pool_type, **attrs}, options.pop("dtypes", FLOATS), **options)


_TIES = [[[[1, 1, 0, 2], [1, 1, 2, 2], [0, 0, 0, 0], [0, 3, 0, 3]]]]

CASES = [
    *[_row(pool_type, *window) for pool_type in ("max", "avg", "sum") for window in _WINDOWS],
    *[_row("lp", data, {**attrs, "p_value": 2}, rtol=1e-4, why="roots") for data, attrs in _WINDOWS[:6]],
    *[_row("lp", (2, 3, 7, 8), {"kernel": (2, 2), "p_value": p}, rtol=1e-4, why="roots") for p in (1, 3)],
    _row("avg", (2, 3, 7, 8), {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "count_include_pad": False}),
    _row("avg", (2, 3, 8), {"kernel": (3,), "stride": (2,), "pad": (1,), "pooling_convention": "full"}),
    # The gradient goes to the first maximum.
    Case(
        "Pooling",
        {"data": Arg((1, 1, 4, 4), values=_TIES)},
        {"kernel": (2, 2), "stride": (1, 1)},
        numeric=False,
        zero_size=False,
        why="the maximum has no derivative at a tie",
    ),
    *[
        Case(
            "Pooling",
            {"data": Arg((2, 5, 6, 3), kind="distinct")},
            {"layout": "NHWC", "pool_type": t, **w},
            ("float32", "float64"),
        )
        for t, w in (
            ("max", {"kernel": (2, 3), "stride": (2, 2)}),
            ("avg", {"kernel": (2, 3), "stride": (2, 2), "pad": (1, 1)}),
        )
    ],
]
