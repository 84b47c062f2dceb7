"""Reshape, reshape_like, expand_dims, squeeze, shape_array, size_array."""

from .case import Arg, Case

ALL = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8")

CASES = [
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (4, 6)}, dtypes=ALL, zero_size=False),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (0, -1)}),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (-1,)}),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (-2,)}),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (2, -2)}, zero_size=False),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (-2, 1, 1)}),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (-3, 4)}),
    Case("Reshape", {"data": (2, 3, 4, 5)}, {"shape": (-3, -3)}),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (0, -3)}),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (-4, 1, 2, -2)}, zero_size=False),
    Case("Reshape", {"data": (2, 3, 4)}, {"shape": (2, -4, -1, 3, -2)}, zero_size=False),
    Case("Reshape", {"data": (10, 5, 4)}, {"shape": (-1, 0), "reverse": True}),
    Case("Reshape", {"data": (10, 5, 4)}, {"shape": (-1, 0), "reverse": False}),
    Case("Reshape", {"data": (6,)}, {"shape": (3, 2, -4), "reverse": True}, zero_size=False),
    Case("Reshape", {"data": (2, 6, 3)}, {"shape": (0, 3, -1, -4, 0), "reverse": True}, zero_size=False),
    Case("Reshape", {"data": (2, 3, 4)}, {"target_shape": (2, 0)}, zero_size=False),
    Case("Reshape", {"data": (2, 3, 4)}, {"target_shape": (0, 0), "keep_highest": True}),
    Case("reshape_like", {"lhs": (2, 3, 4), "rhs": Arg((4, 6), grad=False)}, zero_size=False),
    Case(
        "reshape_like",
        {"lhs": (30, 7), "rhs": Arg((15, 2, 4), grad=False)},
        {"lhs_begin": 0, "lhs_end": 1, "rhs_begin": 0, "rhs_end": 2},
        zero_size=False,
    ),
    Case(
        "reshape_like",
        {"lhs": (2, 12), "rhs": Arg((3, 4, 5), grad=False)},
        {"lhs_begin": -1, "rhs_begin": 0, "rhs_end": -1},
        zero_size=False,
    ),
    Case("expand_dims", {"data": (2, 3)}, {"axis": 0}, dtypes=ALL),
    Case("expand_dims", {"data": (2, 3)}, {"axis": 2}),
    Case("expand_dims", {"data": (2, 3)}, {"axis": -2}),
    Case("squeeze", {"data": (2, 1, 3, 1)}, dtypes=ALL),
    Case("squeeze", {"data": (2, 1, 3, 1)}, {"axis": 1}),
    Case("squeeze", {"data": (2, 1, 3, 1)}, {"axis": (-1, 1)}),
    Case("squeeze", {"data": (1, 1)}, zero_size=False),
    Case("shape_array", {"data": (2, 3, 4)}, dtypes=ALL, numeric=False, why="a size has no derivative"),
    Case("size_array", {"data": (2, 3, 4)}, dtypes=ALL, numeric=False, why="a size has no derivative"),
    Case("reshape_like", {"lhs": (2, 3), "rhs": Arg((6,), dtype="int32", grad=False)}, zero_size=False),
]
