"""Operators of mx.np that are not those of the older interface under another name."""

from .case import Arg, Case

WHOLE = ("int32", "int64", "int8", "uint8")
AXES = (
    {},
    {"axis": 1},
    {"axis": (0, 2)},
    {"axis": -1, "keepdims": True},
    {"axis": (), "keepdims": True},
    {"axis": (0, 1, 2)},
)
TIES = "Whole numbers, of which some are equal."
SCALARS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")

CASES = [
    Case(name, {"a": Arg((2, 3, 4), 0.5, 1.5, kind=kind)}, attrs, zero_size=False)
    for name, kind in (
        ("_np_sum", "float"),
        ("_npi_mean", "float"),
        ("_np_prod", "float"),
        ("_np_max", "distinct"),
        ("_np_min", "distinct"),
    )
    for attrs in AXES
]
CASES += [
    Case(name, {"a": Arg((2, 3), 1, 3, kind="int")}, {"axis": 1}, dtypes=WHOLE, numeric=False)
    for name in ("_np_sum", "_np_prod", "_np_max", "_np_min")
]
CASES += [
    Case("_npi_mean", {"a": Arg((2, 3), 1, 3, kind="int")}, {"axis": 1}, dtypes=("int32",), numeric=False),
    Case("_np_sum", {"a": (2, 3)}, {"axis": 1, "dtype": "float64"}, dtypes=("float32",)),
]
CASES += [
    Case(name, {"a": Arg((2, 3), 0.5, 2.5)}, {"axis": 1, "dtype": dtype}, dtypes=("float32",), grad=False)
    for name in ("_np_sum", "_npi_mean", "_np_prod")
    for dtype in ("bool", "float16", "float32", "float64", "int8", "int32", "int64")
]
CASES += [
    Case(name, {"data": Arg((2, 3, 4), kind="distinct")}, attrs, numeric=False, zero_size=False)
    for name in ("_npi_argmax", "_npi_argmin")
    for attrs in ({}, {"axis": 1}, {"axis": -1, "keepdims": True})
]
CASES += [
    Case(
        f"_npi_{name}",
        {"lhs": Arg((2, 1, 3), 0, 2, kind="int"), "rhs": Arg((4, 3), 0, 2, kind="int")},
        dtypes=("float32", "float64", "int32"),
        numeric=False,
        zero_size=False,
        why=TIES,
    )
    for name in SCALARS
]
CASES += [
    Case(
        f"_npi_{name}_scalar",
        {"data": Arg((2, 3), 0, 2, kind="int")},
        attrs,
        dtypes=("float32", "float64", "int32"),
        numeric=False,
        why=TIES,
    )
    for name in SCALARS
    for attrs in ({"scalar": 1}, {"scalar": 2.0, "is_int": False})
]
CASES += [
    Case(f"_npi_{name}", {"lhs": Arg((2, 1, 3), 0.5, 2), "rhs": Arg((4, 3), 0.5, 2)}, zero_size=False)
    for name in ("add", "subtract", "multiply", "mod", "power")
]
CASES += [
    Case(
        f"_npi_{name}",
        {"lhs": Arg((2, 3), 0, 1, kind="int", dtype=kind, grad=False), "rhs": Arg((2, 3), 0.5, 2)},
        dtypes=("float32",),
        assumed=("lhs", "rhs"),
        zero_size=False,
    )
    for name in ("add", "multiply")
    for kind in ("bool", "int32")
]
CASES += [
    Case(
        "_npi_logical_not", {"x": Arg((2, 3), 0, 1, kind="int")}, dtypes=("float32", "int32"), numeric=False, why=TIES
    ),
    Case("_npi_true_divide", {"lhs": (2, 1, 3), "rhs": Arg((4, 3), 0.5, 2)}, zero_size=False),
    Case(
        "_npi_true_divide",
        {"lhs": Arg((2, 3), 1, 5, kind="int"), "rhs": Arg((2, 3), 1, 5, kind="int")},
        dtypes=("int32",),
        grad=False,
    ),
    Case("_npi_true_divide_scalar", {"data": (2, 3)}, {"scalar": 1.5, "is_int": False}),
    Case(
        "_npi_true_divide_scalar", {"data": Arg((2, 3), 1, 5, kind="int")}, {"scalar": 2}, dtypes=("int32",), grad=False
    ),
    Case("_npi_rtrue_divide_scalar", {"data": Arg((2, 3), 0.5, 2)}, {"scalar": 1.5, "is_int": False}),
    Case(
        "_npi_rtrue_divide_scalar",
        {"data": Arg((2, 3), 1, 5, kind="int")},
        {"scalar": 2},
        dtypes=("int32",),
        grad=False,
    ),
    Case("_np_reshape", {"a": (2, 3, 4)}, {"newshape": (4, -1)}, zero_size=False),
    Case("_np_reshape", {"a": (1, 1)}, {"newshape": ()}, zero_size=False),
    Case("_np_squeeze", {"a": (1, 3, 1)}, zero_size=False),
    Case("_np_squeeze", {"a": (1, 1)}, {"axis": (0, 1)}, zero_size=False),
    Case("_np_dot", {"a": (2, 3, 4), "b": (4, 5)}, rtol=1e-4, why="Sums of 4 products."),
    Case("_np_dot", {"a": (4,), "b": (4,)}, rtol=1e-4, zero_size=False, why="Sums of 4 products."),
    Case("_npi_concatenate", {"data0": (2, 3), "data1": (2, 1)}, {"num_args": 2, "axis": 1}),
]
CASES += [
    Case("_npx_reshape", {"a": (2, 1, 3, 4)}, {"newshape": codes, "reverse": reverse}, zero_size=False)
    for codes, reverse in (
        ((-2, -1), False),
        ((-2, -3, -4), False),
        ((-2, -2, -5), False),
        ((-6, 1, 2, -4), False),
        ((-1, 12), True),
        ((-4, -5), True),
    )
]
