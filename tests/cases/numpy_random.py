"""mx.np's random numbers: shapes, types and gradients here, distributions in tests/client/test_numpy_random.py."""

from .case import Arg, Case


def _row(name, inputs, attrs, dtypes=("float32",), **more):
    return Case(f"_npi_{name}", inputs, attrs, dtypes=dtypes, random=True, numeric=False, zero_size=False, **more)


NUMBERS = {"loc": 0, "scale": 1}
ARRAYS = {"loc": None, "scale": None}
CASES = [
    row
    for name in ("normal", "logistic", "gumbel")
    for row in (
        _row(name, {}, {**NUMBERS, "size": (2, 3)}, grad=False),
        _row(name, {"input1": (2, 3), "input2": Arg((3,), 0.5, 2)}, ARRAYS),
        _row(name, {"input1": (3,)}, {"loc": None, "scale": 2, "size": (2, 3)}),
    )
]
CASES += [
    row
    for name in ("exponential", "rayleigh")
    for row in (
        _row(name, {}, {"scale": 2, "size": (2, 3)}, grad=False),
        _row(name, {"input1": Arg((3,), 0.5, 2)}, {"scale": None, "size": (2, 3)}),
        _row(name, {"input1": Arg((3,), 0.5, 2)}, {"scale": None}),
    )
]
CASES += [
    _row("normal", {}, {**NUMBERS, "size": (2, 3), "dtype": dtype}, (dtype,), grad=False)
    for dtype in ("float32", "float16", "float64")
]
CASES += [
    _row("uniform", {}, {"low": -1, "high": 2, "size": (2, 3), "dtype": dtype}, (dtype,), grad=False)
    for dtype in ("float32", "float16", "float64")
]
CASES += [
    _row("uniform", {"input1": (2, 3), "input2": Arg((3,), 1, 2)}, {"low": None, "high": None}),
    *(
        _row("gamma", {}, {"shape": 2, "scale": 3, "size": (2, 3), "dtype": dtype}, (dtype,), grad=False)
        for dtype in ("float32", "float16", "float64")
    ),
    _row("gamma", {}, {"shape": 2, "scale": 3}, grad=False),
    *(
        _row(
            "bernoulli", {}, {"prob": 0.3, "logit": None, "is_logit": False, "size": (2, 3), "dtype": dtype}, grad=False
        )
        for dtype in ("bool", "float16", "float32", "float64", "int32", "uint8")
    ),
    _row("bernoulli", {}, {"prob": None, "logit": 0.5, "is_logit": True, "size": (2, 3)}, grad=False),
    _row("bernoulli", {}, {"prob": 0.3, "logit": None, "is_logit": False}, grad=False),
]
