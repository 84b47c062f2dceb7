"""slice, slice_axis, slice_like, the slice assignments, tile, repeat, reverse, Pad."""

from .case import Arg, Case

ALL = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8")

CASES = [
    Case("slice", {"data": (5, 6)}, {"begin": (1, 2), "end": (3, 5)}, dtypes=ALL, zero_size=False),
    Case("slice", {"data": (5, 6, 2)}, {"begin": (None, 1), "end": (None, None)}),
    Case("slice", {"data": (5, 6)}, {"begin": (1, 0), "end": (5, 6), "step": (2, 3)}, zero_size=False),
    Case("slice", {"data": (5, 6)}, {"begin": (None, 4), "end": (None, None), "step": (-1, -2)}),
    Case("slice", {"data": (5, 6)}, {"begin": (-3, -4), "end": (-1, 100)}, zero_size=False),
    Case("slice", {"data": (5,)}, {"begin": (1,), "end": (4,), "step": (None,)}, zero_size=False),
    Case("slice_axis", {"data": (5, 6)}, {"axis": 1, "begin": 1, "end": 4}, dtypes=ALL),
    Case("slice_axis", {"data": (5, 6)}, {"axis": 0, "begin": 2, "end": None}, zero_size=False),
    Case("slice_axis", {"data": (5, 6)}, {"axis": -1, "begin": -3, "end": -1}),
    Case("slice_like", {"data": (5, 6), "shape_like": Arg((2, 3), grad=False)}, zero_size=False),
    Case("slice_like", {"data": (4, 3), "shape_like": Arg((2, 3), dtype="int64", grad=False)}, zero_size=False),
    Case(
        "slice_like",
        {"data": (5, 6, 7), "shape_like": Arg((2, 3, 4), grad=False)},
        {"axes": (0, -1)},
        zero_size=False,
    ),
    Case(
        "_slice_assign", {"lhs": (4, 5), "rhs": (2, 3)}, {"begin": (1, 1), "end": (3, 4)}, grad=False, zero_size=False
    ),
    Case(
        "_slice_assign",
        {"lhs": (4, 5), "rhs": (4, 3)},
        {"begin": (None, None), "end": (None, None), "step": (-1, 2)},
        dtypes=ALL,
        grad=False,
        zero_size=False,
    ),
    Case(
        "_slice_assign_scalar",
        {"data": (4, 5)},
        {"scalar": 7, "begin": (1, None), "end": (3, 4)},
        dtypes=ALL,
        grad=False,
    ),
    Case("tile", {"data": (2, 3)}, {"reps": (2, 3)}, dtypes=ALL),
    Case("tile", {"data": (2, 3)}, {"reps": (2,)}),
    Case("tile", {"data": (3,)}, {"reps": (2, 1, 2)}),
    Case("repeat", {"data": (2, 3)}, {"repeats": 2}, dtypes=ALL),
    Case("repeat", {"data": (2, 3)}, {"repeats": 3, "axis": 0}),
    Case("repeat", {"data": (2, 3, 2)}, {"repeats": 2, "axis": -2}),
    Case("reverse", {"data": (2, 3)}, {"axis": 1}, dtypes=ALL),
    Case("reverse", {"data": (2, 3, 4)}, {"axis": (0, 2)}),
    Case("reverse", {"data": (2, 3, 4)}, {"axis": (0, 2, 0)}),
    Case(
        "Pad", {"data": (1, 2, 3, 4)}, {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 2, 3, 1), "constant_value": 2}
    ),
    Case("Pad", {"data": (1, 2, 3, 4)}, {"mode": "edge", "pad_width": (0, 0, 0, 0, 1, 2, 3, 1)}),
    Case("Pad", {"data": (1, 2, 3, 4)}, {"mode": "reflect", "pad_width": (0, 0, 0, 0, 1, 2, 3, 1)}),
    Case("Pad", {"data": (1, 2, 3, 4, 5)}, {"mode": "edge", "pad_width": (0, 0, 0, 0, 1, 1, 0, 2, 3, 0)}),
    Case("Pad", {"data": (1, 1, 3, 4, 5)}, {"mode": "reflect", "pad_width": (0, 0, 0, 0, 1, 1, 0, 2, 3, 0)}),
]
