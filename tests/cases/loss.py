"""SoftmaxOutput, the regression outputs, MakeLoss, SVMOutput, softmax_cross_entropy."""

from typing import Any

from .case import Arg, Case

_WHY = "a loss: its gradient is not that of its output"


def _row(op: str, data: tuple[int, ...], label: Arg, attrs: dict[str, Any], **options: Any) -> Case:
    inputs = {"data": Arg(data, low=-2.0, high=2.0), "label": label}
    tolerance = {"rtol": 1e-4, "atol": 2e-6, "numeric": False, "why": _WHY}
    return Case(op, inputs, attrs, **{**tolerance, **options})


def _classes(*shape: int) -> Arg:
    # -1 and 4 are no classes of four.
    return Arg(shape, low=-1, high=4, kind="int", grad=False)


def _softmax(data: tuple[int, ...], label: Arg, settled: bool = True, **attrs: Any) -> Case:
    return _row("SoftmaxOutput", data, label, attrs, settled=settled)


_OPTIONS: list[dict[str, Any]] = [
    {},
    {"grad_scale": 3.0},
    {"use_ignore": True},
    {"use_ignore": True, "ignore_label": 1, "normalization": "valid"},
    {"normalization": "valid"},
    {"normalization": "batch"},
    {"smooth_alpha": 0.1},
    {"smooth_alpha": 0.2, "use_ignore": True, "normalization": "batch"},
]
_PROBABILITIES = Arg((5, 4), low=0.0, grad=False)

CASES = [
    *[_softmax((5, 4), _classes(5), **attrs) for attrs in _OPTIONS],
    *[_softmax((3, 2, 4), _classes(3, 2), preserve_shape=True, **attrs) for attrs in _OPTIONS],
    *[_softmax((3, 4, 2, 3), _classes(3, 6), multi_output=True, **attrs) for attrs in _OPTIONS],
    _row(
        "SoftmaxOutput",
        (5, 4),
        _classes(5),
        {"out_grad": True},
        oracle=False,
        why="MXNet 1.9.1 multiplies by out; the gradient has a test of its own",
    ),
    _softmax((3, 4, 2, 3), _classes(3, 2, 3), settled=False, multi_output=True),
    _softmax((3, 4), _classes(3), settled=False, multi_output=True),
    _softmax((3, 4), _classes(3, 1), multi_output=True),
    _softmax((3, 2, 4), _classes(3, 2)),
    *[_softmax((5, 4), _PROBABILITIES, settled=False, **attrs) for attrs in _OPTIONS[:6]],
    _softmax((3, 4, 2), Arg((3, 4, 2), low=0.0, grad=False), settled=False, multi_output=True),
    *[
        _row(f"{kind}RegressionOutput", data, Arg(label, grad=False), attrs, settled=label != (4, 6))
        for kind in ("Linear", "Logistic", "MAE")
        for data, label, attrs in (
            ((4, 3), (4, 3), {}),
            ((4, 3, 2), (4, 6), {"grad_scale": 0.3}),
            ((4, 1), (4,), {}),
            ((4,), (4,), {}),
        )
    ],
    Case(
        "MAERegressionOutput",
        {"data": Arg((3,), values=[1, 2, 3]), "label": Arg((3,), values=[1, 3, 1], grad=False)},
        zero_size=False,
        numeric=False,
        why="where data is the label",
    ),
    *[
        Case("MakeLoss", {"data": shape}, attrs, numeric=False, why=_WHY)
        for shape, attrs in (
            ((4, 3), {}),
            ((4, 3), {"grad_scale": 3.0, "normalization": "batch"}),
            ((8,), {"normalization": "batch"}),
            ((4, 3, 2), {"normalization": "batch"}),
            ((4, 3), {"normalization": "valid", "valid_thresh": 0.3}),
        )
    ],
    *[
        _row("SVMOutput", data, _classes(*data[:-1]), attrs)
        for data in ((5, 4), (2, 3, 4))
        for attrs in ({}, {"use_linear": True, "margin": 0.5}, {"margin": 0.5, "regularization_coefficient": 0.7})
    ],
    Case(
        "softmax_cross_entropy",
        {"data": Arg((5, 4), low=-2.0, high=2.0), "label": Arg((5,), low=0, high=3, kind="int", grad=False)},
        rtol=1e-4,
        atol=1e-5,
        why="logarithms, and a sum of them",
    ),
]
