"""Functions of two arrays of one shape, and of an array and a number."""

from .case import FLOATS, Arg, Case

WHOLE = ("int32", "int64", "int8")
NAN, INF = float("nan"), float("inf")
# Every sign of both, ties, zeros on either side, NaN on either side, infinity.
LEFT = Arg((11,), values=[-7, -7, 7, 7, 0, 3, NAN, 1, -5.5, INF, 2])
RIGHT = Arg((11,), values=[3, -3, 3, -3, 5, 0, 1, NAN, 2, 2, 2])
WHOLE_LEFT = Arg((7,), values=[-7, -7, 7, 7, 1, 3, 9])
WHOLE_RIGHT = Arg((7,), values=[3, -3, 3, -3, 5, 1, 2])

ARITHMETIC = ("elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div", "_maximum", "_minimum", "_hypot")
COMPARISONS = ("_equal", "_not_equal", "_greater", "_greater_equal", "_lesser", "_lesser_equal")
LOGIC = ("_logical_and", "_logical_or", "_logical_xor")

CASES = [Case(name, {"lhs": (2, 3, 4), "rhs": Arg((2, 3, 4), 0.2, 2)}) for name in ARITHMETIC]
CASES += [
    Case("_grad_add", {"lhs": (2, 3, 4), "rhs": (2, 3, 4)}, grad=False, why="MXNet gives it no gradient."),
    Case("_grad_add", {"lhs": (3, 4), "rhs": (3, 4)}, oracle=False, why="Its gradient, which MXNet lacks."),
]
CASES += [
    Case("_mod", {"lhs": Arg((2, 3), 1.1, 1.9), "rhs": Arg((2, 3), 0.55, 1.05)}),
    Case("_power", {"lhs": Arg((2, 3), 0.3, 2), "rhs": (2, 3)}),
]
CASES += [
    Case(
        name,
        {"lhs": Arg((3, 4), 0, 2, kind="int"), "rhs": Arg((3, 4), 0, 2, kind="int")},
        dtypes=(*FLOATS, *WHOLE),
        numeric=False,
        why="Ties.",
    )
    for name in (*COMPARISONS, *LOGIC)
]
CASES += [
    Case(name, {"lhs": LEFT, "rhs": RIGHT}, numeric=False, why="Every special value, in one pair of arrays.")
    for name in (*ARITHMETIC, "_mod", "_power", *COMPARISONS, *LOGIC)
]
CASES += [
    Case(name, {"lhs": WHOLE_LEFT, "rhs": WHOLE_RIGHT}, dtypes=WHOLE, numeric=False, zero_size=False)
    for name in (*ARITHMETIC, "_mod")
]
CASES += [
    Case(
        "_power",
        {"lhs": Arg((4,), values=[2, 1, 7, 3]), "rhs": Arg((4,), values=[3, -1, 2, 0])},
        dtypes=WHOLE[:2],
        numeric=False,
    )
]

# -- an array and a number ----------------------------------------------------------------------------------------

PLAIN = ("_plus_scalar", "_minus_scalar", "_rminus_scalar", "_mul_scalar", "_div_scalar", "_hypot_scalar")
POSITIVE = ("_rdiv_scalar", "_power_scalar", "_rpower_scalar")
KINKED = ("_maximum_scalar", "_minimum_scalar")
TESTS = (
    *(f"_{test}_scalar" for test in ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal")),
    *(f"_logical_{test}_scalar" for test in ("and", "or", "xor")),
)
SPECIAL = Arg((9,), values=[-3, -0.5, 0, 1, 2.5, 7, NAN, INF, -2])

CASES += [Case(name, {"data": (2, 3, 4)}, {"scalar": 1.7}) for name in (*PLAIN, *KINKED)]
CASES += [Case(name, {"data": Arg((2, 3, 4), 0.3, 2)}, {"scalar": 1.7}) for name in POSITIVE]
CASES += [
    Case("_mod_scalar", {"data": Arg((2, 3), 1.8, 3.3)}, {"scalar": 1.7}),
    Case("_rmod_scalar", {"data": Arg((2, 3), 0.9, 1.6)}, {"scalar": 1.7}),
    Case("_mod_scalar", {"data": SPECIAL}, {"scalar": -1.5}, numeric=False),
    Case("_mod_scalar", {"data": SPECIAL}, {"scalar": 0}, numeric=False),
]
CASES += [
    Case(name, {"data": SPECIAL}, {"scalar": 2.5}, numeric=False, why="Special values, a tie among them.")
    for name in (*PLAIN, *KINKED, *POSITIVE, "_mod_scalar", "_rmod_scalar", *TESTS)
]
CASES += [
    Case(name, {"data": Arg((4,), values=[1, 2, 7, 9])}, {"scalar": 2}, dtypes=(*WHOLE, "uint8"), numeric=False)
    for name in (*PLAIN, *KINKED, "_power_scalar", "_mod_scalar", "_rmod_scalar", *TESTS)
]
CASES += [
    Case("_rdiv_scalar", {"data": WHOLE_LEFT}, {"scalar": 20}, dtypes=WHOLE, numeric=False, zero_size=False),
    Case("_rpower_scalar", {"data": Arg((4,), values=[-1, 0, 2, 5])}, {"scalar": 2}, dtypes=WHOLE, numeric=False),
    Case("_mul_scalar", {"data": Arg((4,), values=[-3, 0, 2, 5])}, {"scalar": 2.5}, dtypes=WHOLE, numeric=False),
    Case(
        "_plus_scalar",
        {"data": Arg((4,), values=[-3, 0, 2, 5])},
        {"scalar": 2.5, "is_int": False},
        dtypes=WHOLE,
        grad=False,
        why="The output is float64.",
    ),
    Case("_plus_scalar", {"data": Arg((2,), values=[1, 0])}, {"scalar": 2}, dtypes=("bool",), grad=False),
]
