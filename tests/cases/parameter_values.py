"""Values of parameters that the other files leave out: element types, layouts, None, numbers beside the defaults.

`tests/ops/test_parameter_values.py` counts which values the rows of an operator use.
"""

from typing import Any

from .case import FLOATS, Arg, Case
from .convolution import _row as _convolution

ONE = ("float32",)
SUMS: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
DISTINCT = Arg((3, 4), -3, 3, kind="distinct")
REFUSED = "MXNet 1.9.1 refuses it on the CPU"


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with its channels moved behind."""
    return (shape[0], *shape[2:], shape[1])


# -- element types ----------------------------------------------------------------------------------------------------

CASES = [
    *(
        Case(name, {}, {**attrs, "dtype": dtype}, dtypes=ONE, grad=False)
        for name, attrs, types in (
            ("_zeros", {"shape": (2, 3)}, "float64 uint8 int8 int64"),
            ("_ones", {"shape": (2, 3)}, "float64 uint8 int8 int64"),
            ("_full", {"shape": (2, 3), "value": 3}, "float64 float16 uint8 int8 int32 bool"),
            ("_eye", {"N": 3, "k": 1}, "float64 float16 uint8 int8 int64"),
            ("_arange", {"start": 1, "stop": 9, "step": 2}, "float16 uint8 int8"),
        )
        for dtype in types.split()
    ),
    *(
        Case(name, {}, {**attrs, "dtype": dtype}, dtypes=ONE, grad=False, oracle=False, why=REFUSED)
        for name, attrs, types in (
            ("_eye", {"N": 3, "k": 1}, "bool"),
            ("_arange", {"start": 0, "stop": 2}, "bool"),
            ("_linspace", {"start": 0, "stop": 6, "num": 4}, "float64 float16 uint8 int8 int32 int64 bool"),
        )
        for dtype in types.split()
    ),
    *(
        Case("one_hot", {"indices": Arg((2, 3), 0, 3, kind="int")}, {"depth": 4, "dtype": dtype}, ONE, grad=False)
        for dtype in ["float64", "float16", "uint8", "int8", "int64"]
    ),
    Case(
        "one_hot",
        {"indices": Arg((2, 3), 0, 3, kind="int")},
        {"depth": 4, "dtype": "bool"},
        ONE,
        grad=False,
        oracle=False,
        why=REFUSED,
    ),
    *(
        Case(
            "Embedding",
            {"data": Arg((2, 3), 0, 4, kind="int", grad=False), "weight": (5, 4)},
            {"input_dim": 5, "output_dim": 4, "dtype": dtype},
            ONE,
            zero_size=False,
            assumed=("weight",),
            why="weight is taken to have this type where nothing else tells its own",
        )
        for dtype in ["float64", "float16", "uint8", "int8", "int32", "int64"]
    ),
    *(
        Case("argsort", {"data": DISTINCT}, {"dtype": dtype}, grad=False)
        for dtype in ["float16", "float64", "int64", "uint8"]
    ),
    *(
        Case("topk", {"data": DISTINCT}, {"k": 2, "dtype": dtype}, grad=False)
        for dtype in ["float16", "float64", "int32", "int64", "uint8"]
    ),
    *(
        Case(
            name,
            {"data": Arg((3, 4), -3, 3)},
            {"dtype": dtype},
            ("float32", "float64"),
            numeric=False,
            rtol=1e-3,
            atol=1e-3,
        )
        for name in ("softmax", "log_softmax", "softmin")
        for dtype in ("float16", "float64")
    ),
    *(
        Case(name, {"data": (3, 4)}, {"use_length": None}, oracle=False, why="MXNet's process ends", **SUMS)
        for name in ("softmax", "log_softmax", "softmin")
    ),
    *(
        Case("amp_cast", {"data": Arg((3, 4), 0, 9, kind="int")}, {"dtype": dtype}, ("float32", "int32"), grad=False)
        for dtype in ("int32", "uint8")
    ),
    *(
        Case(
            "amp_cast",
            {"data": Arg((3, 4), 0, 9, kind="int")},
            {"dtype": dtype},
            ("float32", "int32"),
            grad=False,
            oracle=False,
            why="MXNet's oneDNN does not have the type",
        )
        for dtype in ("float64", "int64")
    ),
    *(
        Case(
            "norm",
            {"data": Arg((2, 3), 1, 3, kind="int")},
            {"out_dtype": dtype},
            (dtype,),
            numeric=False,
            oracle=dtype.startswith("f"),
            why="MXNet cuts off what is no integer at every step of its sum",
        )
        for dtype in ("float16", "float32", "int8", "int32", "int64")
    ),
    *(
        Case(
            "_sample_multinomial",
            {"data": Arg((2, 3), values=[[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])},
            {"shape": 4, "dtype": dtype},
            ONE,
            grad=False,
            random=True,
        )
        for dtype in ["float16", "float32", "float64", "uint8"]
    ),
]

# -- random numbers ---------------------------------------------------------------------------------------------------

_CHANCE = Arg((2, 3), 0.2, 0.8, grad=False)
_DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "uniform": ("low", "high"),
    "normal": ("mu", "sigma"),
    "gamma": ("alpha", "beta"),
    "exponential": ("lam",),
    "poisson": ("lam",),
    "negative_binomial": ("k", "p"),
    "generalized_negative_binomial": ("mu", "alpha"),
}
CASES += [
    Case(f"_random_{name}", {}, {"shape": (3, 2), "dtype": dtype}, ONE, grad=False, random=True)
    for name in _DISTRIBUTIONS
    for dtype in ("None", "float16", "float32", "float64")
]
CASES += [
    Case("_random_randint", {}, {"low": 0, "high": 9, "shape": (2, 3), "dtype": dtype}, ONE, grad=False, random=True)
    for dtype in ("int32", "None")
]
CASES += [
    Case(f"_sample_{name}", dict.fromkeys(inputs, _CHANCE), {"shape": 2, "dtype": dtype}, ONE, grad=False, random=True)
    for name, inputs in _DISTRIBUTIONS.items()
    for dtype in ("None", "float16", "float32", "float64")
]
CASES += [
    Case(f"_random_{name}_like", {"data": (2, 3)}, attrs, FLOATS, grad=False, random=True)
    for name, attrs in (
        ("normal", {"loc": 2, "scale": 0.5}),
        ("gamma", {"alpha": 2, "beta": 0.5}),
        ("exponential", {"lam": 3}),
        ("poisson", {"lam": 4}),
        ("generalized_negative_binomial", {"mu": 2, "alpha": 0.5}),
    )
]
CASES += [
    Case("Dropout", {"data": (30, 40)}, {"p": 0.5, "mode": "always"}, random=True, is_train=False, grad=False),
    Case(
        "LeakyReLU",
        {"data": (3, 4, 5)},
        {"act_type": "rrelu", "lower_bound": 0.2, "upper_bound": 0.6},
        random=True,
        oracle=False,
        why="MXNet's draws differ",
    ),
]

# -- layouts ----------------------------------------------------------------------------------------------------------


def _channels_last(op: str, data: tuple[int, ...], weight: tuple[int, ...], layout: str, **attrs: Any) -> Case:
    inputs = {"data": _last(data), "weight": _last(weight)}
    params = {"kernel": weight[2:], "layout": layout, "no_bias": True, **attrs}
    return Case(op, inputs, params, FLOATS, oracle=False, why=REFUSED, **SUMS)


CASES += [
    _convolution((2, 3, 7), 4, (3,), layout="NCW"),
    _convolution((2, 2, 4, 4, 5), 2, (2, 3, 2), layout="NCDHW"),
    _channels_last("Convolution", (2, 3, 5, 6), (4, 3, 3, 2), "NHWC", num_filter=4),
    _channels_last("Convolution", (2, 2, 4, 3, 5), (3, 2, 2, 2, 2), "NDHWC", num_filter=3),
    _channels_last("Deconvolution", (2, 3, 4, 5), (3, 4, 3, 2), "NHWC", num_filter=4),
    _channels_last("Deconvolution", (2, 2, 3, 2, 3), (2, 3, 2, 2, 2), "NDHWC", num_filter=3),
    # How cuDNN is to choose, and that it is not to run: no value differs.
    *(
        Case(
            name,
            {"data": (2, 2, 4, 5), "weight": (2, 2, 3, 2)},
            {"kernel": (3, 2), "num_filter": 2, "no_bias": True, key: value},
            ONE,
            **SUMS,
        )
        for name in ("Convolution", "Convolution_v1", "Deconvolution")
        for key, value in (
            ("cudnn_tune", "fastest"),
            ("cudnn_tune", "limited_workspace"),
            ("cudnn_tune", "off"),
            ("cudnn_off", True),
        )
    ),
    Case(
        "Deconvolution",
        {"data": (2, 3, 5), "weight": (3, 4, 3)},
        {"kernel": (3,), "num_filter": 4, "layout": "NCW"},
        FLOATS,
        **SUMS,
    ),
    Case(
        "Deconvolution",
        {"data": (1, 2, 3, 2, 3), "weight": (2, 3, 2, 2, 2)},
        {"kernel": (2, 2, 2), "num_filter": 3, "layout": "NCDHW"},
        FLOATS,
        **SUMS,
    ),
    *(
        Case(
            "Pooling",
            {"data": Arg(shape, kind="distinct")},
            {"kernel": (2,) * (len(shape) - 2), "layout": layout, "pool_type": "max"},
            ("float32", "float64"),
        )
        for layout, shape in (
            ("NCW", (2, 3, 7)),
            ("NCHW", (2, 3, 5, 6)),
            ("NCDHW", (1, 2, 3, 4, 5)),
            ("NWC", (2, 7, 3)),
            ("NDHWC", (1, 3, 4, 5, 2)),
        )
    ),
    Case(
        "Pooling",
        {"data": (2, 3, 5, 6)},
        {"kernel": (3, 3), "pad": (1, 1), "pool_type": "avg", "count_include_pad": True},
        FLOATS,
    ),
    *(
        Case(
            "Pooling",
            {"data": Arg((2, 3, 5, 6), 0.2, 1, kind="distinct")},
            {"kernel": (3, 2), "stride": (2, 2), "pool_type": kind, "pooling_convention": "same"},
            FLOATS,
            oracle=False,
            why="MXNet 1.9.1 always fails",
        )
        for kind in ("max", "avg", "sum")
    ),
]

# -- numbers beside the defaults, and None ----------------------------------------------------------------------------

_SCALARS = {
    True: "minus rminus mul div rdiv power rpower hypot mod rmod maximum minimum",
    False: "equal not_equal greater greater_equal lesser lesser_equal logical_and logical_or logical_xor",
}
CASES += [
    Case(
        f"_{name}_scalar",
        {"data": Arg((4,), values=[1, 2, 7, 9])},
        {"scalar": 2.5, "is_int": False},
        ("int32", "uint8", "float32"),
        grad=False,
        why="of integers the output is float64",
    )
    for names in _SCALARS.values()
    for name in names.split()
]
CASES += [
    Case(name, {"data": (3, 4)}, {"scalar": 2.5, "is_int": False}, grad=False)
    for name in ("_scatter_plus_scalar", "_scatter_minus_scalar")
]
_STATE = Arg((3, 4), 0.2, 1)
CASES += [
    Case(
        "_slice_assign_scalar",
        {"data": (4, 5)},
        {"scalar": 7, "begin": (0, 4), "end": (4, 0), "step": (2, -2)},
        grad=False,
        zero_size=False,
    ),
    Case("argsort", {"data": DISTINCT}, {"axis": None}, grad=False, zero_size=False),
    Case(
        "rmspropalex_update",
        {"weight": (3, 4), "grad": (3, 4), "n": Arg((3, 4), 2, 3), "g": (3, 4), "delta": (3, 4)},
        {"lr": 0.1, "clip_weights": 0.6},
        grad=False,
    ),
    Case(
        "ftml_update",
        {"weight": (3, 4), "grad": (3, 4), "d": _STATE, "v": _STATE, "z": (3, 4)},
        {"lr": 0.1, "t": 3, "beta1": 0.8},
        ("float32", "float64"),
        grad=False,
        **SUMS,
    ),
    *(
        Case(
            f"preloaded_multi_{mixed}sgd_mom_update",
            {
                f"{part}_{k}": Arg(shape, dtype="float32" if part in wide else None)
                for k, shape in enumerate(((3, 4), (5,)))
                for part in ("weight", "grad", "mom", *(("weight32",) if mixed else ()))
            }
            | {name: Arg((2,), values=[0.125, 0.25], dtype="float32") for name in ("lrs", "wds")},
            {"num_weights": 2, "momentum": 0.9, "rescale_grad": 0.7, "clip_gradient": 0.5},
            ("float16",) if mixed else ("float32", "float64"),
            grad=False,
            oracle=False,
            why="MXNet reads the parameters of another operator",
        )
        for mixed, wide in (("", ()), ("mp_", ("mom", "weight32")))
    ),
    Case(
        "mp_nag_mom_update",
        {
            "weight": (3, 4),
            "grad": (3, 4),
            "mom": Arg((3, 4), dtype="float32"),
            "weight32": Arg((3, 4), dtype="float32"),
        },
        {"lr": 0.1, "momentum": 0.9, "wd": 0.2},
        ("float16",),
        grad=False,
        oracle=False,
        why="MXNet's momentum decays with the new weight",
    ),
    Case(
        "Convolution_v1",
        {"data": (1, 2, 3, 4, 3), "weight": (2, 2, 2, 2, 2)},
        {"kernel": (2, 2, 2), "num_filter": 2, "no_bias": True, "layout": "NCDHW"},
        FLOATS,
        oracle=False,
        why="MXNet has it in two dimensions",
        **SUMS,
    ),
    _channels_last("Convolution_v1", (2, 3, 5, 6), (4, 3, 3, 2), "NHWC", num_filter=4),
    _channels_last("Convolution_v1", (2, 2, 4, 3, 5), (3, 2, 2, 2, 2), "NDHWC", num_filter=3),
]
