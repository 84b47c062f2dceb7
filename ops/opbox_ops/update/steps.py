"""The steps of `lamb` and `several`: one weight's arrays and two scratch arrays in, the new weight left in scratch.

Each is written in NumPy's terms, which CuPy's arrays take as well. With d = clip(rescale_grad * grad):

    sgd    weight - lr * (d + wd * weight); with momentum: mom = momentum * mom - lr * (…);  weight + mom
    lamb   mean = beta1 * mean + (1 - beta1) * d;  var = beta2 * var + (1 - beta2) * d^2
           g = mean / (sqrt(var) + epsilon) + wd * weight
           with bias correction mean / (1 - beta1^t) and var / (1 - beta2^t) stand for mean and var
           weight - lr * r1 / r2 * g, r1 = |weight| between the bounds, r2 = |g|; without the ratio where either is 0
           (You and others 2019)
    adamw  mean, var as in lamb;  weight - eta * (lr * mean / (sqrt(var) + epsilon) + wd * weight)
"""

from __future__ import annotations

import math
from typing import Any

from ..accumulation import widened
from ..compute import Array

__all__ = ["adamw", "lamb_direction", "lamb_step", "moments", "scaled", "sgd", "trust_ratio"]


def scaled(xp: Any, grad: Array, scale: Any, clip: float, d: Array) -> None:
    """d = clip(scale * grad)."""
    xp.multiply(grad, scale, out=d, dtype=d.dtype)
    if clip >= 0:
        xp.clip(d, -clip, clip, out=d)


def sgd(xp: Any, weight: Array, mom: Array | None, d: Array, t: Array, lr: Any, wd: Any, momentum: float) -> None:
    """d, the scaled gradient, becomes the new weight; `mom` is rewritten."""
    xp.multiply(weight, wd, out=t, dtype=t.dtype)
    d += t
    d *= lr
    if mom is None:
        xp.subtract(weight, d, out=d, dtype=d.dtype)
    else:
        mom *= momentum
        mom -= d
        xp.add(weight, mom, out=d, dtype=d.dtype)


def moments(xp: Any, p: Any, mean: Array, var: Array, d: Array, t: Array) -> None:
    """Take the scaled gradient d into mean and var; d and t are free then."""
    mean *= p.beta1
    xp.multiply(d, 1 - p.beta1, out=t)
    mean += t
    d *= d
    d *= 1 - p.beta2
    var *= p.beta2
    var += d


def correction(beta: float, step: int) -> float:
    """1 / (1 - beta^step) as MXNet's floats divide: infinite at step 0 or with a beta of 1, 0 where the power is."""
    try:
        return 1 / (1 - beta**step)
    except ZeroDivisionError:
        return math.inf
    except OverflowError:
        return 0.0


def lamb_direction(
    xp: Any, p: Any, weight: Array, mean: Array, var: Array, d: Array, t: Array, wd: float, step: int
) -> None:
    """Write g, the direction of lamb's step number `step`, into d."""
    first, second = (correction(p.beta1, step), correction(p.beta2, step)) if p.bias_correction else (1.0, 1.0)
    xp.multiply(var, second, out=t, dtype=t.dtype)
    xp.sqrt(t, out=t)
    t += p.epsilon
    xp.multiply(mean, first, out=d, dtype=d.dtype)
    d /= t
    xp.multiply(weight, wd, out=t, dtype=t.dtype)
    d += t


def trust_ratio(xp: Any, r1: Any, r2: Any, lower: float, upper: float) -> Any:
    """r1 between the bounds (a negative one is none) over r2; 1 where either is 0."""
    if lower >= 0:
        r1 = xp.maximum(r1, lower)
    if upper >= 0:
        r1 = xp.minimum(r1, upper)
    real = (r1 != 0) & (r2 != 0)
    return xp.where(real, r1 / xp.where(real, r2, 1), 1)


def lamb_step(xp: Any, p: Any, weight: Array, narrow: Array, d: Array, t: Array, lr: float) -> None:
    """From the direction d to the new weight in d; r1 is the norm of `narrow`, the weight before it was copied."""
    before = widened(narrow, t)
    xp.multiply(before, before, out=t)
    r1 = xp.sqrt(t.sum())
    xp.multiply(d, d, out=t)
    d *= lr * trust_ratio(xp, r1, xp.sqrt(t.sum()), p.lower_bound, p.upper_bound)
    xp.subtract(weight, d, out=d, dtype=d.dtype)


def adamw(
    xp: Any, p: Any, weight: Array, mean: Array, var: Array, d: Array, t: Array, lr: float, wd: float, eta: float
) -> None:
    """From the scaled gradient d to the new weight in d."""
    moments(xp, p, mean, var, d, t)
    xp.sqrt(var, out=t, dtype=t.dtype)
    t += p.epsilon
    xp.divide(mean, t, out=d, dtype=d.dtype)
    d *= lr
    xp.multiply(weight, wd, out=t, dtype=t.dtype)
    d += t
    d *= eta
    xp.subtract(weight, d, out=d, dtype=d.dtype)
