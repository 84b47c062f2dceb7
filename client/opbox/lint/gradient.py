"""Backward against differences of forward; of a loss, against differences of what it is the loss of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .report import Verdict
from .running import Bound, Trial

__all__ = ["gradient"]

Arrays: TypeAlias = "Sequence[np.ndarray[Any, Any]]"
Total: TypeAlias = "Callable[[Arrays], float]"

STEP = 2.0**-7
"""Step of central differences, wide enough for kernels that compute float64 arrays in float32."""
NARROWER = {np.dtype(np.float64): (1, 4, 16, 64), np.dtype(np.float32): (1, 4)}
"""Divisors of the step to try in turn where backward disagrees, such as near a kink."""
PLACES = 40
"""Maximum number of elements of an argument to check."""
TOLERANCE = 1e-3
ROUNDING = 2.0**-21
"""Relative rounding error allowed for float32 outputs."""


def gradient(trial: Trial) -> Verdict:
    """Backward is the derivative of forward, by central differences at up to PLACES elements of each argument."""
    if trial.case.gradient is False:
        return Verdict("skip", "the case says that backward is defined otherwise")
    names = trial.differentiable()
    if not trial.has_backward or not names:
        return Verdict("skip", "no argument has a gradient" if trial.has_backward else "it has no backward")
    bound, got = _slopes(trial)
    if trial.case.loss is not None:
        function = trial.case.loss
        # What gets no gradient at all is a constant of the loss, as its labels are.
        names = [name for name in names if got[name].any()] or names
        _compare(bound, names, got, lambda outputs: float(function(**_named(bound, outputs))))
        return Verdict("pass", f"{_described(bound, names)}, of the loss that the case states")
    if _is_loss(bound, got):
        return _of_a_known_loss(bound, names, got)
    heads = bound.heads()
    _compare(
        bound,
        names,
        got,
        lambda outs: float(sum((o * h).sum(dtype=np.float64) for o, h in zip(outs, heads, strict=True))),
    )
    return Verdict("pass", _described(bound, names))


def _slopes(trial: Trial) -> tuple[Bound, dict[str, np.ndarray[Any, Any]]]:
    """An executor and its gradients: in float64 where the operator can, else in float32."""
    try:
        bound = trial.bind(dtype=np.float64)
        bound.forward()
        return bound, bound.backward()
    except Exception:
        bound = trial.bind()
        bound.forward()
        return bound, bound.backward()


def _described(bound: Bound, names: Sequence[str]) -> str:
    return f"{', '.join(names)} in {np.dtype(bound.values[names[0]].dtype)}"


def _compare(bound: Bound, names: Sequence[str], got: Mapping[str, Any], total: Total) -> None:
    """AssertionError where a gradient agrees with differences of no step."""
    for name in names:
        slopes = got[name].reshape(-1).astype(np.float64)
        places = _places(slopes.size)
        wrong, first = places, dict[int, float]()
        for differences, noise in _looks(bound, name, places, total):
            first = first or differences
            scale = max(1.0, *(abs(value) for value in (*differences.values(), 0.0) if np.isfinite(value)))
            allowed = TOLERANCE * scale + noise
            wrong = [at for at in wrong if not abs(differences[at] - slopes[at]) <= allowed]
            if not wrong:
                break
        if wrong:
            at = max(wrong, key=lambda place: np.nan_to_num(abs(first[place] - slopes[place]), nan=np.inf))
            index = tuple(int(i) for i in np.unravel_index(at, got[name].shape))
            raise AssertionError(
                f"{name}: backward differs from differences in {len(wrong)} of {len(places)} places, most at {index}: "
                f"expected {first[at]:.6g}, got {slopes[at]:.6g}"
            )


def _places(size: int) -> list[int]:
    return [int(place) for place in np.unique(np.linspace(0, size - 1, min(PLACES, size)).astype(int))] if size else []


def _looks(bound: Bound, name: str, places: Sequence[int], total: Total) -> Iterator[tuple[dict[int, float], float]]:
    """Differences by place, and how much of one may be rounding: of one step after the other."""
    values = bound.values[name]
    coarse = max((float(np.abs(out).max(initial=0)) for out in bound.forward() if _is_single(out)), default=0.0)
    for divisor in NARROWER.get(values.dtype, (1,)):
        yield _differences(bound, name, places, total, STEP / divisor), ROUNDING * coarse * divisor / STEP


def _is_single(out: np.ndarray[Any, Any]) -> bool:
    """Return whether its numbers are float32's, whatever their type."""
    return bool((out == out.astype(np.float32)).all())


def _differences(bound: Bound, name: str, places: Sequence[int], total: Total, step: float) -> dict[int, float]:
    values = bound.values[name].copy()
    flat = values.reshape(-1)

    def at(place: int, value: float) -> tuple[float, float]:
        old, flat[place] = flat[place], value
        bound.arguments[name][:] = values
        point = float(flat[place]), total(bound.forward())
        flat[place] = old
        return point

    slopes = {}
    for place in places:
        (right, above), (left, below) = at(place, flat[place] + step / 2), at(place, flat[place] - step / 2)
        slopes[place] = (above - below) / (right - left)
    bound.arguments[name][:] = values
    return slopes


# -- losses ---------------------------------------------------------------------------------------------------------


def _is_loss(bound: Bound, got: Mapping[str, Any]) -> bool:
    """Return whether the gradient from above is not asked for; one of the registry does not say, but can be seen to."""
    trial = bound.trial
    if trial.subject.kind != "registry":
        return trial.subject.is_loss(trial.case.params)
    bound.forward()
    doubled = bound.backward(factor=2.0)
    return all(np.array_equal(got[name], doubled[name]) for name in got) and any(got[name].any() for name in got)


def _named(bound: Bound, outputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    short = [name.removeprefix("op_") for name in bound.trial.outputs]
    return {**bound.now(), **dict(zip(short, outputs, strict=True))}


def _sum(out: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> float:
    return float(out.sum(dtype=np.float64))


def _squared_error(out: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> float:
    return float(((out.reshape(-1) - label.reshape(-1)) ** 2).sum(dtype=np.float64) / 2)


def _absolute_error(out: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> float:
    return float(np.abs(out.reshape(-1) - label.reshape(-1)).sum(dtype=np.float64))


def _logistic(out: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> float:
    p, t = out.reshape(-1), label.reshape(-1)
    return float(-(t * np.log(p) + (1 - t) * np.log(1 - p)).sum(dtype=np.float64))


def _cross_entropy(out: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> float:
    classes = out.size // label.size
    rows = np.moveaxis(out, out.shape.index(classes, 1), -1).reshape(-1, classes)
    return float(-np.log(rows[np.arange(len(rows)), label.reshape(-1).astype(int)]).sum(dtype=np.float64))


LOSSES: dict[str, Callable[[Any, Any], float]] = {
    "the sum of its output": _sum,
    "the cross-entropy": _cross_entropy,
    "the squared error": _squared_error,
    "the logistic cross-entropy": _logistic,
    "the absolute error": _absolute_error,
}
"""The usual loss of each loss operator, from the first output and the argument that is called label (or comes last)."""


def _of_a_known_loss(bound: Bound, names: Sequence[str], got: Mapping[str, Any]) -> Verdict:
    arguments = bound.trial.arguments
    label = next((argument for argument in arguments if "label" in argument), arguments[-1])
    for loss, function in LOSSES.items():
        with np.errstate(all="ignore"):
            factor = _factor(bound, names, got, lambda outputs: function(outputs[0], bound.values[label]))  # noqa: B023
        if factor is not None and factor < 0:
            raise AssertionError(
                f"backward is {factor:.4g} times the derivative of {loss}: it would climb, not descend"
            )
        if factor is not None:
            times = "" if abs(factor - 1) < TOLERANCE else f"{factor:.4g} times "
            return Verdict("pass", f"{_described(bound, names)}: {times}the derivative of {loss}")
    return Verdict(
        "warn",
        "not checked: it is a loss (no gradient from above), and backward is the derivative of none of "
        f'{", ".join(LOSSES)}; state it in lint_cases: "loss": lambda data, label, output: …',
    )


def _factor(bound: Bound, names: Sequence[str], got: Mapping[str, Any], total: Total) -> float | None:
    """By what the gradients are the derivative of a loss; None: they are not."""
    slopes: list[float] = []
    differences: list[float] = []
    try:
        for name in names:
            if got[name].any():
                places = _places(got[name].size)
                slopes += got[name].reshape(-1)[places].astype(np.float64).tolist()
                differences += _differences(bound, name, places, total, STEP / 4).values()
    except (IndexError, ValueError):
        return None  # the label's shape, or its values, are not such a loss's
    left, right = np.array(slopes), np.array(differences)
    if not right.any() or not np.isfinite(right).all():
        return None
    factor = float((left * right).sum() / (right * right).sum())
    scale = max(1e-3, float(np.abs(left).max(initial=0)))
    return factor if np.allclose(left, factor * right, rtol=5e-3, atol=5e-3 * scale) else None
