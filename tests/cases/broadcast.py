"""Functions of two arrays whose shapes broadcast, and repeating to a shape."""

from .case import FLOATS, Arg, Case

WHOLE = ("int32", "int64", "int8")
ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum", "hypot")
TESTS = ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal")
LOGIC = ("logical_and", "logical_or", "logical_xor")
SHAPES = (((2, 3, 4), (2, 3, 4)), ((2, 1, 4), (1, 3, 1)), ((2, 3, 4), (1, 1, 4)), ((1,), (3, 4)), ((3, 4), (4,)))

CASES = [
    Case(f"broadcast_{name}", {"lhs": left, "rhs": Arg(right, 0.2, 2)}, zero_size=len(left) == len(right))
    for name in ARITHMETIC
    for left, right in SHAPES
]
CASES += [
    Case("broadcast_mod", {"lhs": Arg((2, 1, 3), 1.1, 1.9), "rhs": Arg((1, 2, 3), 0.55, 1.05)}),
    Case("broadcast_power", {"lhs": Arg((2, 1, 3), 0.3, 2), "rhs": (1, 2, 3)}),
]
CASES += [
    Case(
        f"broadcast_{name}",
        {"lhs": Arg((3, 1), 0, 2, kind="int"), "rhs": Arg((1, 4), 0, 2, kind="int")},
        dtypes=(*FLOATS, *WHOLE),
        numeric=False,
        why="Ties.",
    )
    for name in (*TESTS, *LOGIC)
]
CASES += [
    Case(
        f"broadcast_{name}",
        {"lhs": Arg((4, 1), values=[7, 1, 9, 4]), "rhs": Arg((1, 3), values=[3, 1, 2])},
        dtypes=(*WHOLE, "uint8") if name != "div" else WHOLE,
        numeric=False,
    )
    for name in (*ARITHMETIC, "mod", "power")
]
CASES += [
    Case("broadcast_to", {"data": (2, 1, 3)}, {"shape": (2, 4, 3)}, dtypes=(*FLOATS, *WHOLE), zero_size=False),
    Case("broadcast_to", {"data": (2, 1, 1)}, {"shape": (0, 4, 3)}),
    Case("broadcast_to", {"data": (1, 3)}, {"shape": (5, 0)}, zero_size=False),
    Case("broadcast_axis", {"data": (1, 3, 1)}, {"axis": (0, 2), "size": (2, 4)}, zero_size=False),
    Case("broadcast_axis", {"data": (2, 1)}, {"axis": 1, "size": 3}, dtypes=(*FLOATS, *WHOLE)),
    Case("broadcast_axis", {"data": (2, 3)}),
    Case("broadcast_like", {"lhs": (1, 3), "rhs": Arg((2, 3), grad=False)}, zero_size=False),
    Case(
        "broadcast_like",
        {"lhs": (2, 1, 3), "rhs": Arg((5, 4), dtype="float32", grad=False)},
        {"lhs_axes": (1,), "rhs_axes": (-1,)},
    ),
]
