"""transpose, SwapAxis, Concat, stack, SliceChannel, _split_v2, depth_to_space, space_to_depth."""

from .case import Case

ALL = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8")

CASES = [
    Case("transpose", {"data": (2, 3)}, dtypes=ALL),
    Case("transpose", {"data": (2, 3, 4)}),
    Case("transpose", {"data": (2, 3, 4)}, {"axes": (1, 0, 2)}),
    Case("transpose", {"data": (2, 3, 4, 5)}, {"axes": (0, 2, 3, 1)}),
    Case("transpose", {"data": (2, 3, 4, 5)}, {"axes": (3, 0, 1, 2)}),
    Case("SwapAxis", {"data": (2, 3, 4)}, {"dim1": 0, "dim2": 2}),
    Case("SwapAxis", {"data": (2, 3, 4)}, {"dim1": 1, "dim2": 2}, dtypes=ALL),
    Case("Concat", {"arg0": (2, 3), "arg1": (2, 4)}, {"num_args": 2}, dtypes=ALL),
    Case("Concat", {"arg0": (2, 3), "arg1": (4, 3), "arg2": (1, 3)}, {"num_args": 3, "dim": 0}),
    Case("Concat", {"arg0": (2, 3, 4), "arg1": (2, 3, 1)}, {"num_args": 2, "dim": -1}),
    Case("Concat", {"arg0": (2, 3)}, {"num_args": 1, "dim": 1}),
    Case("stack", {"arg0": (2, 3), "arg1": (2, 3)}, {"num_args": 2}, dtypes=ALL),
    Case("stack", {"arg0": (2, 3), "arg1": (2, 3), "arg2": (2, 3)}, {"num_args": 3, "axis": 1}),
    Case("stack", {"arg0": (2, 3), "arg1": (2, 3)}, {"num_args": 2, "axis": -1}),
    Case("SliceChannel", {"data": (2, 6)}, {"num_outputs": 3}, dtypes=ALL),
    Case("SliceChannel", {"data": (4, 3, 2)}, {"num_outputs": 2, "axis": 0}),
    Case("SliceChannel", {"data": (2, 3, 4)}, {"num_outputs": 3, "axis": 1, "squeeze_axis": True}),
    Case("SliceChannel", {"data": (2, 3, 4)}, {"num_outputs": 2, "axis": -1}),
    Case("SliceChannel", {"data": (2, 3)}, {"num_outputs": 1}),
    Case("_split_v2", {"data": (2, 6)}, {"indices": (), "sections": 3}),
    Case("_split_v2", {"data": (6, 2)}, {"indices": (0, 1, 4), "axis": 0}, zero_size=False),
    Case("_split_v2", {"data": (2, 3)}, {"indices": (), "sections": 3, "axis": 1, "squeeze_axis": True}),
    Case("depth_to_space", {"data": (2, 8, 2, 3)}, {"block_size": 2}),
    Case("space_to_depth", {"data": (2, 2, 4, 6)}, {"block_size": 2}),
]
