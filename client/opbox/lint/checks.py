"""The checks, one function each: AssertionError says what is wrong, a Verdict what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ndarray
from ..test_utils import default_context
from .cases import Case, values_of
from .report import Verdict
from .running import Bound, Trial

__all__ = ["CHECKS"]

PASS = Verdict("pass")
CHECKS: dict[str, Callable[[Trial], Verdict]] = {}
"""By the name in the table, in its order."""
STEP = 2.0**-7
"""Of differences: wide enough for a kernel that computes in float32 behind float64 arrays."""
PLACES = 40
"""Elements of an argument whose differences are worked out."""


def _check(name: str) -> Callable[[Callable[[Trial], Verdict]], Callable[[Trial], Verdict]]:
    def attach(function: Callable[[Trial], Verdict]) -> Callable[[Trial], Verdict]:
        CHECKS[name] = function
        return function

    return attach


def _close(what: str, got: Any, want: Any, tolerance: float = 1e-4) -> None:
    """AssertionError with the worst place, unless two arrays agree; nan agrees with nan."""
    left, right = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert left.shape == right.shape, f"{what}: expected shape {right.shape}, got {left.shape}"
    finite = np.abs(right[np.isfinite(right)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    off = ~np.isclose(left, right, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if off.any():
        at = np.unravel_index(
            int(np.argmax(np.where(off, np.nan_to_num(np.abs(left - right), nan=np.inf), -1))), off.shape
        )
        place = tuple(int(i) for i in at)
        raise AssertionError(
            f"{what} in {int(off.sum())} of {off.size} places, most at {place}: expected {right[at]:.6g}, "
            f"got {left[at]:.6g}"
        )


def _same(what: str, got: Any, want: Any) -> None:
    assert np.array_equal(np.asarray(got), np.asarray(want), equal_nan=got.dtype.kind == "f"), what


@_check("shapes")
def shapes(trial: Trial) -> Verdict:
    """Outputs have the inferred shapes and types, and every element is written, in both modes."""
    for is_train in (False, True):
        bound = trial.bind()
        one, other = bound.forward(is_train, 77), bound.forward(is_train, 99)
        types = trial.symbol.infer_type_partial(**dict.fromkeys(trial.arguments, np.float32))[1] or ()
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


@_check("gradient")
def gradient(trial: Trial) -> Verdict:
    """Backward is the derivative of forward, by central differences at up to PLACES elements of each argument."""
    if trial.case.gradient is False:
        return Verdict("skip", "the case says that backward is defined otherwise")
    if trial.case.gradient is None and trial.subject.is_loss(trial.case.params):
        return Verdict("skip", "it needs no gradient from above: a loss, whose backward is defined otherwise")
    names = trial.differentiable()
    if not names:
        return Verdict("skip", "no argument has a gradient")
    try:
        bound = trial.bind(dtype=np.float64)
        bound.forward()
    except Exception:
        bound = trial.bind()
        bound.forward()
    got = bound.backward()
    heads = bound.heads()
    for name in names:
        found = _differences(bound, name, heads)
        slopes = got[name].reshape(-1)[list(found)]
        _close(f"{name}: backward differs from differences", slopes, np.array(list(found.values())), 5e-3)
    return Verdict("pass", f"{', '.join(names)} in {np.dtype(bound.values[names[0]].dtype)}")


def _differences(bound: Bound, name: str, heads: Sequence[np.ndarray[Any, Any]]) -> dict[int, float]:
    values = bound.values[name].copy()
    flat = values.reshape(-1)
    places: Any = np.unique(np.linspace(0, flat.size - 1, min(PLACES, flat.size)).astype(int)) if flat.size else []

    def total() -> float:
        bound.arguments[name][:] = values
        outputs = bound.forward()
        return float(sum((out * head).sum(dtype=np.float64) for out, head in zip(outputs, heads, strict=True)))

    found = {}
    for place in map(int, places):
        old = flat[place]
        flat[place] = old + STEP / 2
        above = total()
        flat[place] = old - STEP / 2
        found[place] = (above - total()) / STEP
        flat[place] = old
    bound.arguments[name][:] = values
    return found


@_check("requests")
def requests(trial: Trial) -> Verdict:
    """Gradients are written, added or left alone as is asked; so are a CustomOp's outputs."""
    found: dict[str, dict[str, Any]] = {}
    for request, before in (("write", 7.0), ("again", 9.0), ("add", 7.0), ("null", 7.0)):
        bound = trial.bind(grad_req="write" if request == "again" else request, before=before)
        bound.forward()
        found[request] = bound.backward()
    for name in trial.differentiable():
        write = found["write"][name]
        left = (write == 7.0) & (found["again"][name] == 9.0)
        assert not left.any(), f"gradient of {name}: {int(left.sum())} of {left.size} elements are not written"
        _close(f"gradient of {name}: req 'add' does not add", found["add"][name], write + 7.0)
        assert (found["null"][name] == 7.0).all(), f"gradient of {name}: req 'null' is written to"
    if trial.subject.prop is not None:
        _forward_requests(trial, trial.bind().forward())
    return PASS


def _forward_requests(trial: Trial, want: Sequence[np.ndarray[Any, Any]]) -> None:
    """Call a CustomOp as a graph would, with each request for its outputs."""
    assert trial.subject.prop is not None
    context = default_context()
    given = [value.astype(np.float32) for value in trial.values.values()]
    for request in ("null", "write", "inplace", "add"):
        prop = trial.subject.prop(trial.case.params)
        operator = prop.create_operator(
            context, [list(each.shape) for each in given], [each.dtype.type for each in given]
        )
        outputs = [ndarray.array(np.full(each.shape, 3), context, each.dtype) for each in want]
        operator.forward(
            is_train=True,
            req=[request] * len(outputs),
            in_data=[ndarray.array(each, context) for each in given],
            out_data=outputs,
            aux=[ndarray.array(each, context) for each in trial.state_values().values()],
        )
        for name, out, value in zip(trial.outputs, outputs, want, strict=True):
            expected = {"null": np.full(value.shape, 3.0), "add": value + 3.0}.get(request, value)
            what = f"{name}: forward does not keep to req {request!r} (self.assign(out_data[i], req[i], …) does)"
            _close(what, out.asnumpy(), expected)


@_check("states")
def states(trial: Trial) -> Verdict:
    """Auxiliary states are left alone by inference, and hold numbers after training."""
    if not trial.states:
        return Verdict("skip", "there are none")
    bound, before = trial.bind(), trial.state_values()
    bound.forward(is_train=False)
    for name, value in bound.states_now().items():
        _same(f"{name}: a run that does not train changes it", value, before[name].astype(value.dtype))
    bound.forward(is_train=True)
    after = bound.states_now()
    for name, value in after.items():
        assert np.isfinite(value).all(), f"{name}: a training run leaves {value[~np.isfinite(value)][0]} in it"
    changed = [name for name, value in after.items() if not np.array_equal(value, before[name])]
    return Verdict("pass", f"training changes {', '.join(changed) or 'none'}")


@_check("non-contiguous")
def non_contiguous(trial: Trial) -> Verdict:
    """Inputs that are parts of larger arrays (a NumpyOp's with another order in memory) give the same outputs."""
    plain, padded = trial.bind(), trial.bind(padded=True)
    for name, got, want in zip(trial.outputs, padded.forward(), plain.forward(), strict=True):
        _close(f"{name}: other values for inputs that are rows of larger arrays", got, want)
    padded.backward()
    around = padded.edges()
    assert not around, f"{around[0]}: what lies around it is written to"
    if trial.subject.kind == "NumpyOp":
        _strided(trial, plain.forward())
    return PASS


def _strided(trial: Trial, want: Sequence[np.ndarray[Any, Any]]) -> None:
    assert trial.subject.instance is not None
    given = [np.asfortranarray(value.astype(np.float32)) for value in trial.values.values()]
    outputs = [np.full(each.shape, 3, each.dtype, order="F") for each in want]
    trial.subject.instance(trial.case.params).forward(in_data=given, out_data=outputs)
    for name, got, expected in zip(trial.outputs, outputs, want, strict=True):
        _close(f"{name}: other values for arrays in column order", got, expected)


@_check("batch 1")
def batch_one(trial: Trial) -> Verdict:
    """It runs on a batch of one."""
    return _batch(trial, 1)


@_check("batch 0")
def batch_zero(trial: Trial) -> Verdict:
    """It runs on an empty batch."""
    return _batch(trial, 0)


def _batch(trial: Trial, count: int) -> Verdict:
    """Run on `count` rows, where the first argument's first dimension is the batch."""
    first = next(iter(trial.shapes.values()), ())
    if not first:
        return Verdict("skip", "no argument has a batch")
    given = {name: shape for name, shape in trial.case.shapes().items() if name in trial.arguments}
    # What follows the batch is what changes with it.
    probe = first[0] + 1 if count == 0 else count
    changed = {n: (probe, *s[1:]) if s and s[0] == first[0] else s for n, s in given.items()}
    try:
        arguments, outputs, _ = trial.infer(changed)
    except Exception as error:
        raise AssertionError(f"infer_shape for {changed}: {error}") from None
    if count == 0:
        arguments, outputs = _emptied(trial.shapes, arguments), _emptied(trial.output_shapes, outputs)
    values = values_of(Case(arguments), trial.arguments, list(arguments.values()))
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


@_check("determinism")
def determinism(trial: Trial) -> Verdict:
    """The same inputs and the same seed give the same bits."""
    runs = []
    for _ in range(2):
        bound = trial.bind()
        outputs = bound.forward()
        runs.append({**dict(zip(trial.outputs, outputs, strict=True)), **bound.backward()})
    for name, value in runs[0].items():
        what = name if name in trial.outputs else f"gradient of {name}"
        _same(f"{what}: two runs with the same inputs and seed differ", value, runs[1][name])
    return PASS


@_check("inputs kept")
def inputs_kept(trial: Trial) -> Verdict:
    """Forward and backward leave the inputs as they are."""
    bound = trial.bind()
    bound.forward()
    after_forward = bound.now()
    bound.backward()
    after = bound.now()
    for name, value in bound.values.items():
        _same(f"{name}: forward writes to it", after_forward[name], value)
        _same(f"{name}: backward writes to it", after[name], value)
    return PASS


@_check("types")
def types(trial: Trial) -> Verdict:
    """Which element types it takes; in float16 and float64 it computes what it does in float32."""
    want = trial.bind().forward()
    taken, refused = ["float32"], {}
    for dtype in ("float64", "float16", "int32", "uint8"):
        values = trial.values
        if dtype in ("int32", "uint8"):
            values = {name: np.abs(np.rint(value)) for name, value in values.items()}
        try:
            got = trial.bind(dtype=np.dtype(dtype), values=values).forward()
        except Exception as error:
            refused[dtype] = str(error)
            continue
        taken.append(dtype)
        if dtype.startswith("float"):
            for name, one, other in zip(trial.outputs, got, want, strict=True):
                _close(f"{name}: {dtype} differs from float32", one, other, 2e-2 if dtype == "float16" else 1e-4)
    told = ", ".join(taken)
    if refused:
        name, why = next(iter(refused.items()))
        told += f"; not {', '.join(refused)} ({name}: {why.splitlines()[0][:100]})"
    return Verdict("pass", told)
