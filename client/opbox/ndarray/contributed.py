"""Functions of `mx.nd.contrib` beside the operators': control flow, Zipfian samples, checks of numbers, AdamW…"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..context import Context, current_context
from . import random
from .array import NDArray
from .control_flow import cond, foreach, while_loop
from .creation import full
from .invocation import imperative
from .two_operands import logical_and

__all__ = [
    "adamw_update",
    "cond",
    "foreach",
    "isfinite",
    "isinf",
    "isnan",
    "mp_adamw_update",
    "multi_adamw_update",
    "multi_lamb_update",
    "multi_mp_adamw_update",
    "multi_mp_lamb_update",
    "rand_zipfian",
    "uniform",
    "while_loop",
]

uniform = random.uniform


def rand_zipfian(true_classes: NDArray, num_sampled: int, range_max: int, ctx: Context | None = None) -> Any:
    """Draw classes from 0 to range_max - 1, class k with probability log((k + 2) / (k + 1)) / log(range_max + 1).

    Args:
        true_classes: classes (n,) whose expected counts are wanted too.
        num_sampled: how many to draw, with replacement.
        range_max: the number of classes.
        ctx: the device; the current one by default.

    Returns:
        The samples (num_sampled,) in int64, and in float64 how often the true classes (n,) and the samples
        (num_sampled,) are expected among as many draws.

    Example:
        samples, expected_true, expected_samples = mx.nd.contrib.rand_zipfian(mx.nd.array([3]), 4, 5)
    """
    ctx = current_context() if ctx is None else ctx
    log_range = math.log(range_max + 1)
    exponents = random.uniform(0, log_range, shape=(num_sampled,), dtype="float64", ctx=ctx)
    samples = (exponents.exp() - 1).astype("int64") % range_max

    def expected(classes: Any) -> Any:
        return ((classes + 2.0) / (classes + 1.0)).log() / log_range * num_sampled

    true_counts = expected(true_classes.as_in_context(ctx).astype("float64"))
    return samples, true_counts, expected(samples.astype("float64"))


def isnan(data: NDArray) -> NDArray:
    """1 where an element of data is no number, otherwise 0: of data's shape and type."""
    result: NDArray = data != data
    return result


def isinf(data: NDArray) -> NDArray:
    """1 where an element of data is infinite, otherwise 0: of data's shape and type."""
    result: NDArray = data.abs() == math.inf
    return result


def isfinite(data: NDArray) -> NDArray:
    """1 where an element of data is a number and not infinite, otherwise 0: of data's shape and type."""
    result: NDArray = logical_and(data.abs() != math.inf, data == data)
    return result


def _rescale(rescale_grad: Any, weight: NDArray) -> NDArray:
    """The factor on gradients, as the array of one element that AdamW's operators read."""
    if isinstance(rescale_grad, NDArray):
        return rescale_grad.as_in_context(weight.context)
    return full((1,), rescale_grad, ctx=weight.context)


def adamw_update(
    weight: NDArray,
    grad: NDArray,
    mean: NDArray,
    var: NDArray,
    rescale_grad: Any,
    lr: float,
    eta: float,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """One step of AdamW; mean and var are brought up to date, the new weight is returned, or written to `out`.

    Args:
        weight, grad, mean, var: of one shape.
        rescale_grad: a number, or an array of one element; where it is 0 or not finite nothing is changed.
        lr, eta: learning rate and schedule's multiplier.
        out: where the new weight goes: `weight` itself, as a rule.
        kwargs: beta1, beta2, epsilon, wd, clip_gradient.
    """
    kwargs.pop("name", None)
    inputs = [weight, grad, mean, var, _rescale(rescale_grad, weight)]
    return imperative("_adamw_update", inputs, {"lr": lr, "eta": eta, **kwargs}, out=out)


def mp_adamw_update(
    weight: NDArray,
    grad: NDArray,
    mean: NDArray,
    var: NDArray,
    weight32: NDArray,
    rescale_grad: Any,
    lr: float,
    eta: float,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """As `adamw_update`, for a weight in half precision: mean, var and its copy weight32 are in single precision."""
    kwargs.pop("name", None)
    inputs = [weight, grad, mean, var, weight32, _rescale(rescale_grad, weight)]
    return imperative("_mp_adamw_update", inputs, {"lr": lr, "eta": eta, **kwargs}, out=out)


def _adamw_of_many(op: str, arrays: Sequence[Sequence[NDArray]], rescale_grad: Any, kwargs: dict[str, Any]) -> Any:
    """One step of AdamW for several weights; `arrays` has the weights, the gradients and the states, a list each."""
    kwargs.pop("name", None)
    out = kwargs.pop("out", None)
    count = kwargs.pop("size", 0) or len(arrays[0])
    inputs = [*chain.from_iterable(zip(*arrays, strict=True)), _rescale(rescale_grad, arrays[0][0])]
    return imperative(op, inputs, {"num_weights": count, **kwargs}, out=out)


def multi_adamw_update(
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    mean: Sequence[NDArray],
    var: Sequence[NDArray],
    rescale_grad: Any,
    lrs: Sequence[float],
    wds: Sequence[float],
    etas: Sequence[float],
    **kwargs: Any,
) -> Any:
    """`adamw_update` of several weights at once, with a learning rate, a weight decay and a multiplier for each.

    Args:
        weights, grads, mean, var: lists of one length.
        rescale_grad: a number, or an array of one element.
        lrs, wds, etas: a number for each weight.
        kwargs: out (a list), beta1, beta2, epsilon, clip_gradient.
    """
    params = {"lrs": lrs, "wds": wds, "etas": etas, **kwargs}
    return _adamw_of_many("_multi_adamw_update", [weights, grads, mean, var], rescale_grad, params)


def multi_mp_adamw_update(
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    mean: Sequence[NDArray],
    var: Sequence[NDArray],
    weights32: Sequence[NDArray],
    rescale_grad: Any,
    lrs: Sequence[float],
    wds: Sequence[float],
    etas: Sequence[float],
    **kwargs: Any,
) -> Any:
    """As `multi_adamw_update`, for weights in half precision with copies in single precision."""
    params = {"lrs": lrs, "wds": wds, "etas": etas, **kwargs}
    return _adamw_of_many("_multi_mp_adamw_update", [weights, grads, mean, var, weights32], rescale_grad, params)


def _lamb_of_many(op: str, arrays: Sequence[Sequence[NDArray]], kwargs: dict[str, Any]) -> Any:
    """One step of LAMB for several weights; `arrays` has the weights, the gradients and the states, a list each."""
    kwargs.pop("name", None)
    out = kwargs.pop("out", None)
    count = kwargs.pop("num_tensors", 0) or len(arrays[0])
    inputs = list(chain.from_iterable(zip(*arrays, strict=True)))
    return imperative(op, inputs, {"num_tensors": count, **kwargs}, out=out)


def multi_lamb_update(
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    mean: Sequence[NDArray],
    var: Sequence[NDArray],
    step_count: Sequence[int],
    lrs: Sequence[float],
    wds: Sequence[float],
    **kwargs: Any,
) -> Any:
    """One step of LAMB for several weights at once.

    Args:
        weights, grads, mean, var: lists of one length.
        step_count: the number of the step, for each weight.
        lrs, wds: a learning rate and a weight decay for each weight.
        kwargs: out (a list), beta1, beta2, epsilon, rescale_grad, lower_bound, upper_bound, clip_gradient,
            bias_correction.
    """
    params = {"step_count": step_count, "learning_rates": lrs, "wds": wds, **kwargs}
    return _lamb_of_many("_multi_lamb_update", [weights, grads, mean, var], params)


def multi_mp_lamb_update(
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    mean: Sequence[NDArray],
    var: Sequence[NDArray],
    weights32: Sequence[NDArray],
    step_count: Sequence[int],
    lrs: Sequence[float],
    wds: Sequence[float],
    **kwargs: Any,
) -> Any:
    """As `multi_lamb_update`, for weights in half precision with copies in single precision."""
    params = {"step_count": step_count, "learning_rates": lrs, "wds": wds, **kwargs}
    return _lamb_of_many("_multi_mp_lamb_update", [weights, grads, mean, var, weights32], params)
