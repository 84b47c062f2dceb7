"""The checks, one function each: a check raises AssertionError with what is wrong, or returns a Verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .cases import Case, values_of
from .comparing import close, same
from .gradient import gradient
from .report import Verdict
from .requests import requests
from .running import SEED, Bound, Trial

__all__ = ["CHECKS"]

PASS = Verdict("pass")


def shapes(trial: Trial) -> Verdict:
    """Outputs have the inferred shapes and types, and every element is written, in both modes."""
    for is_train in (False, True):
        bound = trial.bind()
        one, other = bound.forward(is_train, 77), bound.forward(is_train, 99)
        types = trial.output_types(trial.types(np.float32))
        for name, dtype, first, second in zip(trial.outputs, types, one, other, strict=True):
            want = trial.output_shapes[name]
            assert first.shape == want, f"{name}: expected {want}, as inferred, got {first.shape}"
            assert first.dtype == np.dtype(dtype), f"{name}: expected {np.dtype(dtype)}, got {first.dtype}"
            left = (first == 77) & (second == 99)
            assert not left.any(), (
                f"{name}: forward leaves {int(left.sum())} of {left.size} elements unwritten: write in place, with "
                "assign, out_data[i][:] = … or a kernel"
            )
    return Verdict("pass", ", ".join(f"{name} {shape}" for name, shape in trial.output_shapes.items()))


def states(trial: Trial) -> Verdict:
    """Auxiliary states are left alone by inference, and hold numbers after training."""
    if not trial.states:
        return Verdict("skip", "there are none")
    bound, before = trial.bind(), trial.state_values()
    bound.forward(is_train=False)
    for name, value in bound.states_now().items():
        same(f"{name}: a run that does not train changes it", value, before[name].astype(value.dtype))
    bound.forward(is_train=True)
    after = bound.states_now()
    for name, value in after.items():
        assert np.isfinite(value).all(), f"{name}: a training run leaves {value[~np.isfinite(value)][0]} in it"
    changed = [name for name, value in after.items() if not np.array_equal(value, before[name])]
    bound.backward()
    changed += [name for name, value in bound.states_now().items() if not np.array_equal(value, after[name])]
    idle = [name for name in after if name not in changed]
    if idle:
        return Verdict("warn", f"training never changes {', '.join(idle)}; states are written by aux[i][:] = …")
    return Verdict("pass", f"training changes {', '.join(sorted(set(changed)))}")


def non_contiguous(trial: Trial) -> Verdict:
    """Inputs that are parts of larger arrays (a NumpyOp's with another order in memory) give the same outputs."""
    plain, padded = trial.bind(), trial.bind(padded=True)
    for name, got, want in zip(trial.outputs, padded.forward(), plain.forward(), strict=True):
        close(f"{name}: other values for inputs that are rows of larger arrays", got, want)
    slopes = plain.backward()
    for name, got in padded.backward().items():
        close(f"gradient of {name}: other values for inputs that are rows of larger arrays", got, slopes[name])
    around = padded.edges()
    assert not around, f"{around[0]}: what lies around it is written to"
    if trial.subject.kind == "NumpyOp":
        _strided(trial, plain.forward())
    return PASS


def _strided(trial: Trial, want: Sequence[np.ndarray[Any, Any]]) -> None:
    assert trial.subject.instance is not None
    strided = [np.asfortranarray(value.astype(np.float32)) for value in trial.values.values()]
    outputs = [np.full(array.shape, 3, array.dtype, order="F") for array in want]
    trial.subject.instance(trial.case.params).forward(in_data=strided, out_data=outputs)
    for name, got, expected in zip(trial.outputs, outputs, want, strict=True):
        close(f"{name}: other values for arrays in column order", got, expected)


def batch_one(trial: Trial) -> Verdict:
    """Check that the operator runs on a batch of one."""
    return _batch(trial, 1)


def batch_zero(trial: Trial) -> Verdict:
    """Check that the operator runs on an empty batch."""
    return _batch(trial, 0)


def _batch(trial: Trial, count: int) -> Verdict:
    """Run on `count` rows, where the first argument's first dimension is the batch."""
    first = next(iter(trial.shapes.values()), ())
    if not first:
        return Verdict("skip", "no argument has a batch")
    shapes = {name: shape for name, shape in trial.case.shapes().items() if name in trial.arguments}
    # What follows the batch is what changes with it.
    probe = first[0] + 1 if count == 0 else count
    changed = {n: (probe, *s[1:]) if s and s[0] == first[0] else s for n, s in shapes.items()}
    try:
        arguments, outputs, _ = trial.infer(changed)
    except Exception as error:
        raise AssertionError(f"infer_shape for {changed}: {error}") from None
    if count == 0:
        arguments, outputs = _emptied(trial.shapes, arguments), _emptied(trial.output_shapes, outputs)
    for name, shape in outputs.items():
        assert len(shape) == len(trial.output_shapes[name]), (
            f"infer_shape: {name}: expected as many axes as for more rows, {trial.output_shapes[name]}, got {shape}"
        )
    values = values_of(Case(arguments), trial.arguments, list(arguments.values()), trial.whole)
    bound = trial.bind(values=values)
    for name, got in zip(trial.outputs, bound.forward(), strict=True):
        assert got.shape == outputs[name], f"{name}: expected {outputs[name]}, got {got.shape}"
    for name, grad in bound.backward().items():
        assert grad.shape == arguments[name], f"gradient of {name}: expected {arguments[name]}, got {grad.shape}"
    return PASS


def _emptied(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes with 0 in place of the dimensions in which `after` differs from `before`."""
    return {
        name: tuple(0 if now != then else now for now, then in zip(shape, before[name], strict=True))
        for name, shape in after.items()
    }


def determinism(trial: Trial) -> Verdict:
    """The same inputs and seed give the same bits, in a new executor and in one that has run before."""
    runs = []
    for _ in range(2):
        bound = trial.bind()
        outputs = bound.forward()
        runs.append({**dict(zip(trial.outputs, outputs, strict=True)), **bound.backward()})
    for name, value in runs[0].items():
        what = name if name in trial.outputs else f"gradient of {name}"
        same(f"{what}: two runs with the same inputs and seed differ", value, runs[1][name])
    again = bound.backward()
    for name in again:
        same(f"gradient of {name}: a second backward gives another than the first", again[name], runs[1][name])
    if not trial.case.keeps:
        _afresh(trial, bound)
    return PASS


def _afresh(trial: Trial, used: Bound) -> None:
    """Check that an executor computes anew when its inputs change: no result of an earlier run shows."""
    values = values_of(trial.case, trial.arguments, list(trial.shapes.values()), trial.whole, seed=1)
    fresh = trial.bind(values=values)
    for name, value in fresh.values.items():
        used.arguments[name][:] = value
    hint = (
        'depends on the runs before: something stays on the instance (if it is meant to: "keeps": True in lint_cases)'
    )
    for name, got, want in zip(trial.outputs, used.forward(), fresh.forward(), strict=True):
        same(f"{name}: {hint}", got, want)
    slopes = fresh.backward()
    for name, got in used.backward().items():
        same(f"gradient of {name}: {hint}", got, slopes[name])


def inputs_kept(trial: Trial) -> Verdict:
    """Forward and backward leave the inputs as they are."""
    bound = trial.bind()
    bound.forward()
    after_forward = bound.now()
    bound.backward()
    after = bound.now()
    for name, value in bound.values.items():
        same(f"{name}: forward writes to it", after_forward[name], value)
        same(f"{name}: backward writes to it", after[name], value)
    return PASS


def types(trial: Trial) -> Verdict:
    """Check the element types: float16 and float64 must give what float32 gives."""
    if trial.arguments and trial.arguments[0] in trial.case.types:
        return Verdict("skip", "the case says which")
    plain = trial.bind()
    other_seed, want = plain.forward(seed=SEED + 1), plain.forward()
    # Random numbers of two types are not the same ones.
    is_random = not all(map(np.array_equal, other_seed, want))
    slopes = plain.backward()
    taken, refused = ["float32"], {}
    for dtype in ("float64", "float16", "int32", "uint8"):
        values = trial.values
        if dtype in ("int32", "uint8"):
            values = {name: np.abs(np.rint(value)) for name, value in values.items()}
        try:
            bound = trial.bind(dtype=np.dtype(dtype), values=values)
            got = bound.forward()
        except Exception as error:
            refused[dtype] = str(error)
            continue
        if bound.values and all(value.dtype != dtype for value in bound.values.values()):
            refused[dtype] = "infer_type says otherwise"
            continue
        verdict = dtype
        if dtype.startswith("float") and not is_random:
            tolerance = 2e-2 if dtype == "float16" else 1e-4
            for name, one, other in zip(trial.outputs, got, want, strict=True):
                close(f"{name}: {dtype} differs from float32", one, other, tolerance)
            try:
                grads = bound.backward()
            except Exception as error:
                verdict, refused[f"{dtype}'s backward"] = f"{dtype} (forward)", str(error)
                grads = {}
            for name in trial.differentiable() if grads else ():
                close(f"gradient of {name}: {dtype} differs from float32", grads[name], slopes[name], tolerance)
        if dtype == "float64" and _is_coarse(got):
            verdict += " (to float32's precision)"
        taken.append(verdict)
    verdict = ", ".join(taken)
    if refused:
        name, why = next(iter(refused.items()))
        verdict += f"; not {', '.join(refused)} ({name}: {why.splitlines()[0][:100]})"
    return Verdict("pass", verdict)


def _is_coarse(outputs: Sequence[np.ndarray[Any, Any]]) -> bool:
    """True if float64 outputs hold float32's numbers, and not because they are as round as sign's or argmax's."""
    wide = [out for out in outputs if out.dtype == np.float64 and out.size]
    return bool(wide) and all((out == out.astype(np.float32)).all() and (out != np.rint(out)).any() for out in wide)


CHECKS: Mapping[str, Callable[[Trial], Verdict]] = {
    "shapes": shapes,
    "gradient": gradient,
    "requests": requests,
    "states": states,
    "non-contiguous": non_contiguous,
    "batch 1": batch_one,
    "batch 0": batch_zero,
    "determinism": determinism,
    "inputs kept": inputs_kept,
    "types": types,
}
"""The checks by their name in the table, in its order."""
