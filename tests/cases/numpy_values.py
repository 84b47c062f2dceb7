"""mx.np's where, tests of values and rounding, and its reductions."""

from .case import Arg, Case

INF = float("inf")
SPECIAL = Arg((5,), values=[float("nan"), INF, -INF, 1.0, -2.0])
TENTHS = Arg((6,), values=[0.24, 0.37, -0.26, 1.44, 2.5, -15.0])  # no halves but of whole numbers
HALVES = Arg((8,), values=[0.25, 0.35, -0.25, 1.45, 2.5, -2.5, 0.5, 15.0])
CONDITION = Arg((2, 3), 0, 1, kind="int", grad=False)
TRUTH = Arg((2, 3), 0, 1, kind="int")
ZERO = "MXNet 1.9.1 has zeros for the gradients of var and std."

CASES = [
    Case("_npi_where", {"condition": CONDITION, "x": (2, 3), "y": (3,)}, zero_size=False),
    Case(
        "_npi_where",
        {"condition": Arg((2, 3), 0, 1, kind="int", dtype="bool", grad=False), "x": (4, 1, 3), "y": (2, 1)},
        zero_size=False,
    ),
    Case(
        "_npi_where_lscalar",
        {"condition": CONDITION, "x": (2, 3)},
        {"scalar": 5},
        oracle=False,
        why="MXNet 1.9.1 lets the gradient through where scalar is taken.",
    ),
    Case("_npi_where_rscalar", {"condition": CONDITION, "y": (1, 3)}, {"scalar": -2.5}, zero_size=False),
    Case("_npi_where_scalar2", {"condition": TRUTH}, {"x": 3, "y": 4}, numeric=False),
    Case(
        "_npi_where_lscalar",
        {"condition": CONDITION, "x": Arg((2, 3), 1, 3, kind="int")},
        {"scalar": 2.5},
        dtypes=("int32",),
        grad=False,
    ),
    *(
        Case(f"_npi_{name}", {"x": SPECIAL}, numeric=False, why="What is tested has no derivative.")
        for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf")
    ),
    Case("_npi_isnan", {"x": Arg((3,), 0, 3, kind="int")}, dtypes=("int32",), grad=False),
    Case("_npi_nan_to_num", {"data": (2, 3)}),
    Case("_npi_nan_to_num", {"data": Arg((5,), values=SPECIAL.values)}, numeric=False, dtypes=("float32",)),
    Case(
        "_npi_nan_to_num",
        {"data": Arg((5,), values=SPECIAL.values)},
        {"copy": False, "nan": 2, "posinf": 3, "neginf": 4},
        numeric=False,
    ),
    Case("_npi_around", {"x": TENTHS}, {"decimals": 1}, numeric=False, dtypes=("float32", "float64")),
    Case("_npi_around", {"x": HALVES}, numeric=False),
    Case("_npi_around", {"x": HALVES}, {"decimals": -1}, numeric=False),
    Case("_npi_around", {"x": Arg((4,), values=[15, 25, -14, -15])}, {"decimals": -1}, dtypes=("int32",), grad=False),
]
CASES += [
    Case(f"_np_{name}", {"data": TRUTH}, attrs, dtypes=("float32", "int32", "bool"), numeric=False, zero_size=False)
    for name in ("any", "all")
    for attrs in ({}, {"axis": 1}, {"axis": (0, 1), "keepdims": True}, {"axis": ()})
]
SUM_ALONE = {"numeric": False, "why": "The sum of the weights has no gradient."}
SPREADS = (
    {},
    {"axis": 1},
    {"axis": (0, 2), "keepdims": True},
    {"axis": -1, "ddof": 1},
)
CASES += [
    Case(f"_npi_{name}", {"a": (2, 3, 4)}, attrs, oracle=False, zero_size=False, why=ZERO)
    for name in ("var", "std")
    for attrs in SPREADS
]
CASES += [
    Case(f"_npi_{name}", {"a": Arg((2, 3, 4), -0.5, 1)}, attrs, grad=False, zero_size=False)
    for name in ("var", "std")
    for attrs in SPREADS
]
CASES += [
    Case(f"_npi_{name}", {"a": Arg((2, 3), -2, 3)}, {"axis": 1, "dtype": dtype}, dtypes=("float32",), grad=False)
    for name in ("var", "std")
    for dtype in ("float16", "float32", "float64", "int8", "int32", "int64")
]
CASES += [
    Case(f"_npi_{name}", {"a": Arg((2, 3), -3, 3, kind="int")}, {"axis": 1}, dtypes=("int32", "int64"), grad=False)
    for name in ("var", "std")
]
CASES += [
    *(
        Case("_npi_norm", {"data": (2, 3)}, attrs, zero_size=False)
        for attrs in (
            {"ord": 2, "flag": -2},
            {"ord": 2, "axis": (1,), "flag": 1, "keepdims": True},
            {"ord": 2, "axis": (0, 1), "flag": 1},
            {"ord": 1, "axis": (0,), "flag": -1},
            {"ord": 2, "axis": (0,)},
        )
    ),
    Case("_npi_average", {"a": (2, 3)}, {"axis": 1, "weighted": False}, zero_size=False),
    Case("_npi_average", {"a": (2, 3)}, {"weighted": False, "returned": True}, zero_size=False, **SUM_ALONE),
    Case("_npi_average", {"a": (2, 3), "weights": Arg((3,), 0.5, 2)}, {"axis": 1}, zero_size=False),
    Case(
        "_npi_average", {"a": (2, 3), "weights": Arg((2, 3), 0.5, 2)}, {"returned": True}, zero_size=False, **SUM_ALONE
    ),
    Case("_npi_diff", {"a": (2, 4)}),
    Case("_npi_diff", {"a": (4, 3)}, {"n": 2, "axis": 0}, zero_size=False),
    Case("_npi_diff", {"a": (2, 4)}, {"n": 5}),
    Case("_npi_diff", {"a": Arg((2, 4), -3, 3, kind="int")}, dtypes=("int32",), grad=False),
]
_NONE = "MXNet 1.9.1 fails where this gradient is asked for."
WRONG = {"copysign": _NONE, "rcopysign": _NONE, "rarctan2": "MXNet 1.9.1 has the derivative by the number."}
BITS = {"dtypes": ("int32", "int8", "uint8", "int64", "bool"), "grad": False}
CASES += [
    case
    for word in ("and", "or", "xor")
    for case in (
        Case(
            f"_npi_bitwise_{word}",
            {"lhs": Arg((2, 1, 3), 0, 5, kind="int"), "rhs": Arg((4, 3), 0, 5, kind="int")},
            zero_size=False,
            **{**BITS, "dtypes": ("int32", "int8", "uint8", "int64")},
        ),
        Case(f"_npi_bitwise_{word}_scalar", {"data": Arg((2, 3), 0, 5, kind="int")}, {"scalar": 3}, **BITS),
        Case(
            f"_npi_bitwise_{word}_scalar",
            {"data": Arg((2, 3), 0, 5, kind="int")},
            {"scalar": 3, "is_int": False},
            **{**BITS, "dtypes": ("int32",)},
        ),
    )
]
CASES += [Case("_npi_bitwise_not", {"x": Arg((2, 3), 0, 5, kind="int")}, **BITS)]

CASES += [
    case
    for name, names in (("arctan2", ("x1", "x2")), ("copysign", ("lhs", "rhs")), ("ldexp", ("lhs", "rhs")))
    for case in (
        Case(f"_npi_{name}", {names[0]: Arg((2, 1, 3), 0.5, 2), names[1]: Arg((4, 3), -2, -0.5)}, zero_size=False),
        *(
            Case(
                f"_npi_{prefix}{name}_scalar",
                {"data": Arg((2, 3), low, low + 1.5)},
                attrs,
                oracle=f"{prefix}{name}" not in WRONG,
                why=WRONG.get(f"{prefix}{name}", ""),
            )
            for prefix, low in (("", 0.5), ("r", -2))
            for attrs in ({"scalar": -1.5, "is_int": False}, {"scalar": 3})
        ),
    )
]
