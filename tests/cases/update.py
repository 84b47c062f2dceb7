"""The optimizers' steps."""

from typing import Any

from .case import Arg, Case

PLAIN = {"lr": 0.1}
ALL = {"lr": 0.1, "wd": 0.2, "rescale_grad": 0.7, "clip_gradient": 0.5}
GRAD = Arg((3, 4), -3, 3)
SQUARE = Arg((3, 4), 0.2, 1)


def _rows(op: str, states: dict[str, Any], *attrs: dict[str, Any], dtypes=("float32", "float64", "float16")):
    inputs = {"weight": (3, 4), "grad": GRAD, **states}
    return [Case(op, inputs, params, dtypes=dtypes, grad=False) for params in attrs]


def _mixed(op: str, states: tuple[str, ...], *attrs: dict[str, Any]):
    inputs = {name: Arg((3, 4), dtype="float32") for name in (*states, "weight32")}
    return _rows(op, inputs, *attrs, dtypes=("float32", "float16"))


MOMENTUM = {**ALL, "momentum": 0.9}
ADAM = {**ALL, "beta1": 0.8, "beta2": 0.7, "epsilon": 1e-3}
RMS = {**ALL, "gamma1": 0.9, "epsilon": 1e-3}
FTML = {"lr": 0.1, "t": 3, "beta2": 0.9, "epsilon": 1e-3}


def _adamw(master: dict[str, Arg]) -> list[Case]:
    state = {"dtype": "float32"} if master else {}
    inputs = {
        "weight": (3, 4),
        "grad": GRAD,
        "mean": Arg((3, 4), **state),
        "var": Arg((3, 4), 0.2, 1, **state),
        **master,
        "rescale_grad": Arg((1,), dtype="float32", values=[0.7]),
    }
    attrs = {"lr": 0.1, "eta": 0.5, "wd": 0.2, "clip_gradient": 0.5, "beta1": 0.8, "beta2": 0.7, "epsilon": 1e-3}
    return [Case("_mp_adamw_update" if master else "_adamw_update", inputs, attrs, grad=False, zero_size=False)]


CASES = [
    *_rows("sgd_update", {}, PLAIN, ALL, {**ALL, "lazy_update": False}),
    *_rows("sgd_mom_update", {"mom": (3, 4)}, PLAIN, MOMENTUM),
    *_rows("nag_mom_update", {"mom": (3, 4)}, MOMENTUM),
    *_rows("signsgd_update", {}, ALL),
    *_rows("signum_update", {"mom": (3, 4)}, {**MOMENTUM, "wd_lh": 0.3}, dtypes=("float32", "float64")),
    *_mixed("mp_sgd_update", (), ALL),
    *_mixed("mp_sgd_mom_update", ("mom",), MOMENTUM),
    *_mixed("mp_nag_mom_update", ("mom",), {**MOMENTUM, "wd": 0}),
    *_rows("adam_update", {"mean": (3, 4), "var": SQUARE}, PLAIN, ADAM),
    *_adamw({}),
    *_adamw({"weight32": Arg((3, 4), dtype="float32")}),
    *_rows("rmsprop_update", {"n": SQUARE}, PLAIN, {**RMS, "clip_weights": 0.6}),
    *_rows("rmspropalex_update", {"n": Arg((3, 4), 2, 3), "g": (3, 4), "delta": (3, 4)}, PLAIN, {**RMS, "gamma2": 0.8}),
    *_rows("ftrl_update", {"z": (3, 4), "n": SQUARE}, PLAIN, {**ALL, "lamda1": 0.3, "beta": 0.9}),
    *_rows(
        "ftml_update",
        {"d": SQUARE, "v": SQUARE, "z": (3, 4)},
        FTML,
        {**FTML, "wd": 0.2, "rescale_grad": 0.7, "clip_grad": 0.5},
        dtypes=("float32", "float64"),
    ),
]
