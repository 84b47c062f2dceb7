"""Embedding, take, one_hot, pick, batch_take, gather_nd, scatter_nd, sort, argsort, topk."""

from .case import Arg, Case

ALL = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8")
WORDS = Arg((2, 3), dtype="float32", values=[[0, 3, 1], [3, 3, 9]], grad=False)
INDICES = Arg((2, 3), dtype="float32", values=[[0, 1, 2], [2, -1, 7]], grad=False)
PLACES = Arg((2, 3), dtype="int64", values=[[0, 1, 0], [1, 2, 1]], grad=False)
ROWS = Arg((1, 2), dtype="int32", values=[[2, 0]], grad=False)

CASES = [
    Case("Embedding", {"data": WORDS, "weight": (5, 4)}, {"input_dim": 5, "output_dim": 4}, zero_size=False),
    Case(
        "Embedding",
        {"data": Arg((4,), dtype="int32", values=[4, 0, 2, 2], grad=False), "weight": (5, 3)},
        {"input_dim": 5, "output_dim": 3},
        zero_size=False,
    ),
    Case("take", {"a": (3, 4), "indices": INDICES}, dtypes=ALL, zero_size=False),
    Case("take", {"a": (2, 3, 4), "indices": INDICES}, {"axis": 1}),
    Case("take", {"a": (2, 3), "indices": INDICES}, {"axis": -1, "mode": "wrap"}),
    Case(
        "take",
        {"a": (4, 2), "indices": Arg((3,), dtype="int64", values=[3, 0, 3], grad=False)},
        {"mode": "raise"},
        zero_size=False,
    ),
    Case(
        "one_hot",
        {"indices": Arg((2, 3), 0, 3, kind="int")},
        {"depth": 4},
        dtypes=ALL,
        numeric=False,
        why="It jumps at its inputs.",
    ),
    Case(
        "one_hot",
        {"indices": Arg((3,), dtype="float32", values=[0, -1, 5])},
        {"depth": 3, "on_value": 2, "off_value": -1, "dtype": "int32"},
        dtypes=("float32",),
        grad=False,
    ),
    Case(
        "pick",
        {"data": (4,), "index": Arg((), dtype="float32", values=[2], grad=False)},
        zero_size=False,
        assumed=("index",),
        oracle=False,
        why="MXNet takes it in numpy mode.",
    ),
    Case("pick", {"data": (3, 4), "index": Arg((3,), dtype="float32", values=[0, 9, -1], grad=False)}),
    Case(
        "pick",
        {"data": (2, 3, 4), "index": Arg((2, 1, 4), 0, 5, kind="int", dtype="int32", grad=False)},
        {"axis": 1, "keepdims": True, "mode": "wrap"},
        assumed=("index",),
    ),
    Case(
        "batch_take",
        {"a": (3, 4), "indices": Arg((3,), dtype="int32", values=[1, 0, 3], grad=False)},
        grad=False,
    ),
    Case(
        "batch_take",
        {"a": (4, 3), "indices": Arg((4,), dtype="int32", values=[1, 0, 2, 2], grad=False)},
        oracle=False,
        why="MXNet has no gradient of batch_take",
    ),
    Case("gather_nd", {"data": (2, 3, 4), "indices": PLACES}, zero_size=False),
    Case("gather_nd", {"data": (3, 4), "indices": ROWS}, dtypes=ALL[:5], zero_size=False),
    Case("scatter_nd", {"data": (2, 4), "indices": ROWS}, {"shape": (3, 4)}, zero_size=False),
    Case(
        "scatter_nd",
        {"data": (3,), "indices": Arg((2, 3), dtype="int64", values=[[0, 1, 1], [1, 2, 0]], grad=False)},
        {"shape": (2, 3)},
        zero_size=False,
    ),
    Case(
        "_scatter_set_nd",
        {"lhs": (3, 4), "rhs": (2, 4), "indices": ROWS},
        {"shape": (3, 4)},
        grad=False,
        oracle=False,
        why="MXNet's runs only where lhs and the output are one array",
        zero_size=False,
    ),
    Case("sort", {"data": Arg((3, 4), kind="distinct")}, {"axis": -1}),
    Case("sort", {"data": Arg((3, 4), kind="distinct")}, {"axis": 0, "is_ascend": False}),
    Case("sort", {"data": Arg((3, 4), kind="distinct")}, {"axis": None}),
    Case("argsort", {"data": Arg((3, 4), kind="distinct")}, {"axis": -1}),
    Case("argsort", {"data": Arg((3, 4), kind="distinct")}, {"is_ascend": False, "dtype": "int32"}, grad=False),
    Case("topk", {"data": Arg((3, 4), kind="distinct")}, {"k": 2}, grad=False),
    Case("topk", {"data": Arg((3, 4), kind="distinct")}, {"k": 2, "ret_typ": "value"}),
    Case("topk", {"data": Arg((3, 4), kind="distinct")}, {"k": 2, "ret_typ": "both", "axis": 0}, zero_size=False),
    Case("topk", {"data": Arg((3, 4), kind="distinct")}, {"k": 3, "ret_typ": "value", "axis": None}, zero_size=False),
    Case("topk", {"data": Arg((3, 4), kind="distinct")}, {"k": 2, "ret_typ": "mask", "is_ascend": True}, grad=False),
]
