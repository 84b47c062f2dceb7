"""softmax, softmin, log_softmax, SoftmaxActivation."""

from .case import Arg, Case

_DATA = Arg((3, 4, 5), low=-3.0, high=3.0)
_ULP = {"rtol": 1e-4, "atol": 2e-6, "why": "exp, and sums of five of them, differ by some ulp"}

CASES = [
    *[
        Case(op, {"data": _DATA}, attrs, **_ULP)
        for op in ("softmax", "softmin", "log_softmax")
        for attrs in ({}, {"axis": 1}, {"axis": 0, "temperature": 2.5})
    ],
    # A difference quotient needs float64 throughout.
    *[
        Case(op, {"data": _DATA}, {"dtype": "float32"}, numeric=False, **_ULP)
        for op in ("softmax", "softmin", "log_softmax")
    ],
    Case("softmax", {"data": _DATA}, {"dtype": "float64"}, ("float32", "float16"), **_ULP),
    *[
        Case(
            "softmax",
            {"data": _DATA, "length": Arg(shape, low=1, high=4, kind="int", dtype="int32", grad=False)},
            {"use_length": True, "axis": axis},
            **_ULP,
        )
        for axis, shape in ((-1, (3, 4)), (1, (3, 5)))
    ],
    Case(
        "softmax",
        {"data": (3, 4), "length": Arg((3,), values=[0, 2, 4], dtype="int32", grad=False)},
        {"use_length": True},
        zero_size=False,
        **_ULP,
    ),
    Case(
        "softmax",
        {"data": (4,), "length": Arg((1,), values=[2], dtype="int32", grad=False)},
        {"use_length": True},
        zero_size=False,
        **_ULP,
    ),
    *[
        Case(op, {"data": ()}, zero_size=False, oracle=False, why="MXNet takes it in numpy mode: 1, the logarithm 0.")
        for op in ("softmax", "softmin", "log_softmax")
    ],
    Case("SoftmaxActivation", {"data": Arg((3, 5), low=-3.0, high=3.0)}, **_ULP),
    # MXNet computes it over the last axis, and its gradient over axis 1.
    Case("SoftmaxActivation", {"data": Arg((2, 3, 4), low=-3.0, high=3.0)}, grad=False, **_ULP),
    Case("SoftmaxActivation", {"data": _DATA}, {"mode": "channel"}, **_ULP),
]
