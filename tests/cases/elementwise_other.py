"""Identity and its kin, Cast, clip, hard_sigmoid, smooth_l1, add_n, where."""

from .case import FLOATS, Arg, Case

WHOLE = ("int32", "int64", "int8", "uint8")
NAN, INF = float("nan"), float("inf")
DEFINED = "The gradient is what the operator defines, not the derivative."

CASES = [
    Case("_copy", {"data": (2, 3)}, dtypes=(*FLOATS, *WHOLE, "bool")),
    Case("BlockGrad", {"data": (2, 3)}, dtypes=(*FLOATS, *WHOLE), numeric=False, why=DEFINED),
    Case("make_loss", {"data": (2, 3)}, dtypes=(*FLOATS, *WHOLE), numeric=False, why=DEFINED),
    Case(
        "_identity_with_attr_like_rhs",
        {"lhs": (2, 3), "rhs": (2, 3)},
        dtypes=(*FLOATS, "int32"),
    ),
    Case("clip", {"data": Arg((2, 3, 4), -2, 2)}, {"a_min": -1.0, "a_max": 1.25}),
    Case(
        "clip",
        {"data": Arg((7,), values=[-3, -1, 0, 2, 5, NAN, INF])},
        {"a_min": -1.0, "a_max": 2.0},
        numeric=False,
        why="The bounds themselves pass the gradient on.",
    ),
    Case("clip", {"data": Arg((2, 3, 4), -3, 3, kind="distinct")}, {"a_min": 1.25, "a_max": -1.0}),
    Case("clip", {"data": Arg((2, 3))}, {"a_min": -1.5, "a_max": 2.7}, dtypes=WHOLE[:3], numeric=False),
    Case("clip", {"data": Arg((2, 3), 0, 9, kind="int")}, {"a_min": -1, "a_max": 4}, dtypes=("uint8",), numeric=False),
    Case("hard_sigmoid", {"data": Arg((2, 3, 4), -4, 4)}),
    Case("hard_sigmoid", {"data": Arg((2, 3), -4, 4)}, {"alpha": 0.3, "beta": 0.4}),
    Case("hard_sigmoid", {"data": Arg((4,), values=[-INF, NAN, INF, 0])}, numeric=False),
    Case("smooth_l1", {"data": Arg((2, 3, 4), -3, 3)}),
    Case("smooth_l1", {"data": Arg((2, 3, 4), -1, 1)}, {"scalar": 1.3}),
    Case("smooth_l1", {"data": Arg((6,), values=[-1, -0.0, 1, NAN, INF, -INF])}, numeric=False),
    Case("add_n", {"arg0": (2, 3), "arg1": (2, 3), "arg2": (2, 3)}, {"num_args": 3}, dtypes=(*FLOATS, *WHOLE)),
    Case("add_n", {"arg0": (2, 3)}, {"num_args": 1}),
    Case("add_n", {f"arg{i}": (4,) for i in range(6)}, {"num_args": 6}),
    Case("where", {"condition": Arg((2, 3), 0, 1, kind="int", grad=False), "x": (2, 3), "y": (2, 3)}),
    *(
        Case(
            "where",
            {"condition": Arg(shape, 0, 1, kind="int", grad=False, dtype="bool"), "x": (2, 3), "y": (2, 3)},
            oracle=False,
            why="MXNet 1.9.1 has no booleans here",
        )
        for shape in ((2, 3), (2,))
    ),
    *[
        Case(
            "where",
            {"condition": Arg(condition, values=[0, 1, 1], grad=False), "x": shape, "y": shape},
            settled=False,
            zero_size=False,
            why="of the shapes that a condition may have inference supposes one",
        )
        for condition, shape in (((3, 1), (3, 4)), ((3, 1), (3, 4, 2)), ((3, 1, 1), (3, 4, 2)))
    ],
    Case(
        "where",
        {"condition": Arg((2,), dtype="int32", values=[1, 0], grad=False), "x": (2, 3, 2), "y": (2, 3, 2)},
        dtypes=(*FLOATS, "int32"),
    ),
    Case(
        "where",
        {"condition": Arg((4,), dtype="float32", values=[0, NAN, -1, 0], grad=False), "x": (4,), "y": (4,)},
    ),
]
CASES += [
    Case("Cast", {"data": Arg((2, 3), -3, 3)}, {"dtype": target}, dtypes=(*FLOATS, "int32"), numeric=False)
    for target in ("float16", "float32", "float64", "int32", "int8", "int64")
]
CASES += [
    Case("Cast", {"data": Arg((2, 3), 0, 5)}, {"dtype": "uint8"}, numeric=False),
    Case("Cast", {"data": Arg((4,), values=[0, 1, -0.5, NAN])}, {"dtype": "bool"}, grad=False),
    Case("Cast", {"data": Arg((4,), values=[1e5, -1e5, 1, NAN])}, {"dtype": "float16"}, dtypes=("float32",)),
]
