"""Sums, means, products, extremes, norms and positions of extremes."""

from .case import FLOATS, Arg, Case

WHOLE = ("int32", "int64", "int8", "uint8")
NAN = float("nan")
AXES = (
    {},
    {"axis": 1},
    {"axis": (0, 2)},
    {"axis": -1, "keepdims": True},
    {"axis": (0, 1, 2)},
    {"axis": (), "keepdims": True},
    {"axis": 1, "exclude": True},
    {"axis": (0, 1, 2), "exclude": True},
)
TIE = "Ties share the gradient in full; NaN wins."
HOLES = Arg((5,), values=[1.5, NAN, 3, -2, 0.5])

CASES = [
    Case(name, {"data": Arg((2, 3, 4), 0.5, 1.5)}, attrs, zero_size=attrs == {"axis": 1} or name == "sum")
    for name in ("sum", "mean", "prod", "nansum", "nanprod")
    for attrs in AXES
]
CASES += [
    Case(name, {"data": Arg((2, 3, 4), -2, 2, kind="distinct")}, attrs, zero_size=attrs == {"axis": 1})
    for name in ("max", "min")
    for attrs in AXES
]
CASES += [
    Case(name, {"data": Arg((2, 3), 1, 3, kind="int")}, {"axis": 1}, dtypes=WHOLE, numeric=False)
    for name in ("sum", "mean", "prod", "nansum", "nanprod", "max", "min")
]
CASES += [
    Case(name, {"data": HOLES}, numeric=False, zero_size=False, why=TIE)
    for name in ("sum", "mean", "prod", "nansum", "nanprod", "max", "min", "norm")
]
CASES += [
    Case("max", {"data": Arg((4,), values=[2, 2, -3, 0])}, numeric=False, zero_size=False, why=TIE),
    Case("min", {"data": Arg((2, 2), values=[[0, 2], [0, 0]])}, {"axis": 1}, numeric=False, why=TIE),
    Case("prod", {"data": Arg((4,), values=[2, 0, -3, 1])}, numeric=False, zero_size=False, why="NaN at a zero."),
    Case("sum", {"data": (3, 2)}, {"axis": 0}, dtypes=("bool",), grad=False, zero_size=False),
    Case("sum", {"data": (40, 50)}, {"axis": 0}, atol=1e-5, zero_size=False, why="40 terms."),
]
CASES += [
    Case("norm", {"data": (2, 3, 4)}, {"ord": order, **attrs}, zero_size=attrs == {"axis": 1})
    for order in (1, 2)
    for attrs in AXES
    if "exclude" not in attrs
]
CASES += [
    Case(
        "norm",
        {"data": Arg((2, 2), values=values, dtype=dtype)},
        {"axis": axis},
        (dtype,),
        numeric=False,
        zero_size=False,
    )
    for dtype, large, small in (("float32", 1e20, 1e-23), ("float64", 1e200, 1e-200))
    for axis, values in ((0, [[large, small], [-large, small]]), (1, [[large, -small], [-small, small]]))
]
CASES += [
    Case("norm", {"data": Arg((2, 3), 1, 3, kind="int")}, {"axis": 1}, dtypes=WHOLE, numeric=False),
    Case(
        "norm",
        {"data": (2, 3)},
        {"axis": 1, "out_dtype": "float64"},
        oracle=False,
        why="MXNet 1.9.1 fails on any out_dtype but data's own.",
    ),
]
SEARCHES = ({}, {"axis": 1}, {"axis": -1, "keepdims": True}, {"keepdims": True})
CASES += [
    Case(name, {"data": Arg((2, 3, 4), -2, 2, kind="distinct")}, attrs, dtypes=FLOATS, zero_size=attrs == {"axis": 1})
    for name in ("argmax", "argmin")
    for attrs in SEARCHES
]
CASES += [
    Case(name, {"data": Arg((2, 4), values=[[2, 2, 1, 1], [1, NAN, 3, 0]])}, {"axis": 1}, numeric=False, why=TIE)
    for name in ("argmax", "argmin")
]
CASES += [
    Case(name, {"data": Arg((2, 3), 0, 9, kind="int")}, {"axis": 1}, dtypes=WHOLE) for name in ("argmax", "argmin")
]
CASES += [
    Case("argmax_channel", {"data": Arg((2, 3, 4), -2, 2, kind="distinct")}, grad=False),
    Case("argmax_channel", {"data": Arg((3, 5), -2, 2, kind="distinct")}, dtypes=(*FLOATS, "int32"), grad=False),
]
CASES += [
    *(Case("_np_cumsum", {"a": (2, 3, 4)}, attrs) for attrs in ({}, {"axis": 0}, {"axis": 1}, {"axis": 2})),
    Case("_np_cumsum", {"a": (3, 4)}, {"axis": 1, "dtype": "float64"}, dtypes=("float32",)),
    Case("_np_cumsum", {"a": Arg((2, 3), 1, 3, kind="int")}, {"axis": 1}, dtypes=WHOLE, numeric=False),
    Case("_np_cumsum", {"a": Arg((2, 3), 1, 3, kind="int")}, {"axis": 1, "dtype": "int8"}, dtypes=("uint8",)),
    Case("_np_cumsum", {"a": (2, 3)}, {"axis": 0}, dtypes=("bool",), grad=False),
    *(
        Case(
            "_np_cumsum",
            {"a": Arg((2, 3), 1, 3, kind="int")},
            {"axis": 1, "dtype": dtype},
            dtypes=("int8",),
            grad=False,
        )
        for dtype in ("float16", "float32", "int32", "int64")
    ),
]
