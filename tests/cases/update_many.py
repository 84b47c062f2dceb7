"""LAMB, and steps of many weights at once."""

from __future__ import annotations

from typing import Any

from .case import Arg, Case

DTYPES = ("float32", "float64", "float16")
HALF = ("float16",)
STATES = {"mom": (-1.0, 1.0), "mean": (-0.1, 0.1), "var": (0.2, 1.0), "weight32": (-1.0, 1.0)}
SHAPES = ((3, 4), (5,))


def _state(name: str, shape: tuple[int, ...], dtype: str | None = None) -> Arg:
    low, high = STATES[name]
    return Arg(shape, low, high, dtype=dtype)


def _many(op: str, states: tuple[str, ...], attrs: dict[str, Any], last: dict[str, Arg] | None = None, **more) -> Case:
    mixed = "_mp_" in op
    inputs: dict[str, Any] = {}
    for i, shape in enumerate(SHAPES):
        inputs[f"weight_{i}"] = shape
        inputs[f"grad_{i}"] = Arg(shape, -3, 3)
        for state in (*states, "weight32") if mixed else states:
            inputs[f"{state}_{i}"] = _state(state, shape, "float32" if mixed else None)
    inputs.update(last or {})
    return Case(
        op,
        inputs,
        attrs,
        **{"dtypes": HALF if mixed else DTYPES, "grad": False, "zero_size": False, "imperative": True, **more},
    )


def _both(op: str, *args, **more) -> list[Case]:
    return [_many(op.format(mp=mark), *args, **more) for mark in ("", "mp_")]


def _phases(mixed: bool) -> list[Case]:
    mark, dtypes = ("mp_", HALF) if mixed else ("", DTYPES)
    wide = "float32" if mixed else None
    copy = {"weight32": _state("weight32", (3, 4), "float32")} if mixed else {}
    first = {
        "weight": (3, 4),
        "grad": Arg((3, 4), -3, 3),
        "mean": _state("mean", (3, 4), wide),
        "var": _state("var", (3, 4), wide),
        **copy,
    }
    second = {
        "weight": (3, 4),
        "g": Arg((3, 4), dtype=wide),
        "r1": Arg((1,), values=[2.5], dtype=wide),
        "r2": Arg((1,), values=[1.5], dtype=wide),
        **copy,
    }
    zero = {**second, "r2": Arg((1,), values=[0], dtype=wide)}
    all_ = {"t": 3, "wd": 0.2, "rescale_grad": 0.7, "clip_gradient": 0.5, "beta1": 0.8, "beta2": 0.7, "epsilon": 1e-3}
    rows = [
        (f"{mark}lamb_update_phase1", first, {"t": 2, "wd": 0.1}),
        (f"{mark}lamb_update_phase1", first, all_),
        (f"{mark}lamb_update_phase1", first, {**all_, "bias_correction": False}),
        (f"{mark}lamb_update_phase2", second, {"lr": 0.1}),
        (f"{mark}lamb_update_phase2", second, {"lr": 0.1, "lower_bound": 3, "upper_bound": 4}),
        (f"{mark}lamb_update_phase2", second, {"lr": 0.1, "upper_bound": 2}),
        (f"{mark}lamb_update_phase2", zero, {"lr": 0.1}),
    ]
    stale = {"oracle": False, "why": "MXNet leaves weight32 as it was; test_many_updates has its new weights"}
    powers = {"unlike": ("float64",), "why": "MXNet has the powers of beta1 and beta2 in single precision"}
    notes = {"mp_lamb_update_phase2": stale, "lamb_update_phase1": powers}
    return [Case(op, inputs, attrs, dtypes=dtypes, grad=False, **notes.get(op, {})) for op, inputs, attrs in rows]


SGD = {"lrs": (0.1, 0.2), "wds": (0.3, 0.0), "num_weights": 2}
CLIP = {"rescale_grad": 0.7, "clip_gradient": 0.5}
LAMB = {"learning_rates": (0.1, 0.2), "wds": (0.3, 0.0), "step_count": (2, 3), "num_tensors": 2}
ADAM = {"beta1": 0.8, "beta2": 0.7, "epsilon": 1e-3}
ADAMW = {"lrs": (0.1, 0.2), "wds": (0.3, 0.0), "etas": (0.5, 1.0), "num_weights": 2}
RATES = {
    "lrs": Arg((2,), values=[0.125, 0.25], dtype="float32"),
    "wds": Arg((2,), values=[0.25, 0], dtype="float32"),
}
SCALE = {"rescale_grad": Arg((1,), values=[0.75], dtype="float32")}

CASES = [
    *_phases(False),
    *_phases(True),
    *_both("multi_{mp}sgd_update", (), SGD),
    *_both("multi_{mp}sgd_update", (), {**SGD, **CLIP}),
    *_both("multi_{mp}sgd_mom_update", ("mom",), {**SGD, "momentum": 0.9}),
    *_both("multi_{mp}sgd_mom_update", ("mom",), {**SGD, **CLIP, "momentum": 0.9}),
    *_both("preloaded_multi_{mp}sgd_update", (), {"num_weights": 2, **CLIP}, RATES),
    *_both("preloaded_multi_{mp}sgd_mom_update", ("mom",), {"num_weights": 2, "momentum": 0.9}, RATES),
    *_both("_multi_{mp}lamb_update", ("mean", "var"), LAMB),
    *_both("_multi_{mp}lamb_update", ("mean", "var"), {**LAMB, **ADAM, **CLIP, "lower_bound": 1, "upper_bound": 1.5}),
    *_both("_multi_{mp}lamb_update", ("mean", "var"), {**LAMB, "bias_correction": False}),
    *_both("_multi_{mp}adamw_update", ("mean", "var"), ADAMW, SCALE),
    *_both("_multi_{mp}adamw_update", ("mean", "var"), {**ADAMW, **ADAM, "clip_gradient": 0.5}, SCALE),
    *_both(
        "_multi_{mp}adamw_update",
        ("mean", "var"),
        ADAMW,
        {"rescale_grad": Arg((1,), values=[float("inf")], dtype="float32")},
        oracle=False,
        why="nothing changes, so that which inputs are states cannot be seen in MXNet",
    ),
    Case("multi_sum_sq", {"data_0": (3, 4), "data_1": (5,)}, {"num_arrays": 2}, dtypes=DTYPES, grad=False),
    Case(
        "multi_lars",
        {
            "lrs": Arg((3,), values=[0.125, 0.25, 0.5]),
            "weights_sum_sq": Arg((3,), values=[4, 0, 1]),
            "grads_sum_sq": Arg((3,), values=[9, 1, 0]),
            "wds": Arg((3,), values=[0.125, 0.25, 0.5]),
        },
        {"eta": 0.5, "eps": 0.1, "rescale_grad": 0.25},
        dtypes=("float32",),
        grad=False,
    ),
    Case(
        "reset_arrays",
        {"data_0": (3, 4), "data_1": (5,)},
        {"num_arrays": 2},
        grad=False,
        imperative=True,
        zero_size=False,
    ),
    Case(
        "_contrib_group_adagrad_update",
        {"weight": (3, 4), "grad": Arg((3, 4), -3, 3), "history": Arg((3, 1), 0.2, 1)},
        {"lr": 0.1, "rescale_grad": 0.5, "clip_gradient": 0.75, "epsilon": 1e-3},
        grad=False,
        oracle=False,
        why="MXNet has it for sparse gradients alone",
    ),
]
