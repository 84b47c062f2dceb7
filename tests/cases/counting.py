"""Histograms, and positions in arrays as numbers and back."""

from __future__ import annotations

from .case import Arg, Case

NUMBERS = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8")
DATA = Arg((3, 4), 0, 8)
EDGES = Arg((5,), values=[0, 1, 3, 4, 8])
POSITIONS = Arg((2, 4), values=[[3, 6, 0, 5], [4, 5, 0, 1]])
WHOLE = "positions are whole numbers: the gradient is zero"
FLAT = Arg((5,), values=[22, 41, 37, 0, 6])

CASES = [
    Case("_histogram", {"data": DATA}, {"bin_cnt": 4, "range": (0, 8)}, dtypes=NUMBERS, grad=False),
    Case("_histogram", {"data": DATA}, {"bin_cnt": 3, "range": (1, 6.5)}, dtypes=("float32", "float64"), grad=False),
    Case("_histogram", {"data": DATA}, {"bin_cnt": 2, "range": (3, 3)}, dtypes=("float32", "float64"), grad=False),
    Case("_histogram", {"data": DATA, "bins": EDGES}, {}, dtypes=NUMBERS, grad=False),
    Case(
        "_histogram",
        {"data": Arg((6,), values=[-1, 0, 3, 8, 9, 4]), "bins": Arg((4,), values=[0, 3, 3, 8])},
        {},
        dtypes=("float32", "int32"),
        grad=False,
        why="numbers on edges, outside, and a bin of no width",
    ),
    Case(
        "_ravel_multi_index",
        {"data": POSITIONS},
        {"shape": (7, 6)},
        dtypes=NUMBERS,
        zero_size=False,
        numeric=False,
        why=WHOLE,
    ),
    Case("_ravel_multi_index", {"data": POSITIONS}, {"shape": (-1, 6)}, zero_size=False, numeric=False, why=WHOLE),
    Case(
        "_ravel_multi_index",
        {"data": Arg((3, 4), 0, 2, kind="int")},
        {"shape": (3, 4, 5)},
        zero_size=False,
        numeric=False,
        why=WHOLE,
    ),
    Case("_unravel_index", {"data": FLAT}, {"shape": (7, 6)}, dtypes=NUMBERS, numeric=False, why=WHOLE),
    Case("_unravel_index", {"data": FLAT}, {"shape": (-1, 3, 2)}, numeric=False, why=WHOLE),
    Case(
        "_unravel_index",
        {"data": Arg((3,), values=[-1, -8, 50])},
        {"shape": (7, 6)},
        dtypes=("float32", "int32"),
        grad=False,
    ),
    Case(
        "_unravel_index",
        {"data": Arg((2, 3), 0, 41, kind="int")},
        {"shape": (7, 6)},
        grad=False,
        oracle=False,
        why="MXNet gives an output of another shape that holds the first positions only",
    ),
]
