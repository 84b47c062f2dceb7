"""Functions of `mx.sym.contrib` beside the operators': control flow, Zipfian samples, AdamW."""

from __future__ import annotations

import math
from typing import Any

from .. import _schema
from . import random
from .compose import create
from .control_flow import cond, foreach, while_loop
from .creation import full
from .symbol import Symbol

__all__ = ["adamw_update", "cond", "foreach", "mp_adamw_update", "rand_zipfian", "uniform", "while_loop"]

uniform = random.uniform


def rand_zipfian(true_classes: Symbol, num_sampled: int, range_max: int) -> tuple[Symbol, Symbol, Symbol]:
    """Classes drawn from 0 to range_max - 1, class k with probability log((k + 2) / (k + 1)) / log(range_max + 1).

    Args:
        true_classes: classes (n,) whose expected counts are wanted too.
        num_sampled: how many to draw, with replacement.
        range_max: the number of classes.

    Returns:
        The samples (num_sampled,) in int64, and in float64 how often the true classes (n,) and the samples
        (num_sampled,) are expected among as many draws.

    Raises:
        TypeError: true_classes is no Symbol.

    Example:
        samples, expected_true, expected_samples = mx.sym.contrib.rand_zipfian(mx.sym.Variable("classes"), 4, 5)
    """
    if not isinstance(true_classes, Symbol):
        raise TypeError(f"rand_zipfian: true_classes: expected a Symbol, got {type(true_classes).__name__}")
    log_range = math.log(range_max + 1)
    exponents: Any = random.uniform(0, log_range, shape=(num_sampled,), dtype="float64")
    samples = (exponents.exp() - 1).astype("int64") % range_max

    def expected(classes: Any) -> Symbol:
        counts: Symbol = ((classes + 2.0) / (classes + 1.0)).log() / log_range * num_sampled
        return counts

    true_counts = expected(true_classes.astype("float64"))
    return samples, true_counts, expected(samples.astype("float64"))


def _adamw(op: str, inputs: list[Any], rescale_grad: Any, params: dict[str, Any]) -> Symbol:
    name, attr = params.pop("name", None), params.pop("attr", None)
    params.pop("out", None)
    factor = rescale_grad if isinstance(rescale_grad, Symbol) else full((1,), rescale_grad)
    return Symbol(create(_schema.get(op), op, [*inputs, factor], {}, params, name, attr))


def adamw_update(
    weight: Symbol, grad: Symbol, mean: Symbol, var: Symbol, rescale_grad: Any, lr: float, eta: float, **kwargs: Any
) -> Symbol:
    """The weight after one step of AdamW.

    Args:
        weight, grad, mean, var: of one shape; mean and var are states.
        rescale_grad: a number, or a symbol of one element; where it is 0 or not finite nothing is changed.
        lr, eta: learning rate and schedule's multiplier.
        kwargs: beta1, beta2, epsilon, wd, clip_gradient, name.
    """
    return _adamw("_adamw_update", [weight, grad, mean, var], rescale_grad, {"lr": lr, "eta": eta, **kwargs})


def mp_adamw_update(
    weight: Symbol,
    grad: Symbol,
    mean: Symbol,
    var: Symbol,
    weight32: Symbol,
    rescale_grad: Any,
    lr: float,
    eta: float,
    **kwargs: Any,
) -> Symbol:
    """As `adamw_update`, for a weight in half precision: mean, var and its copy weight32 are in single precision."""
    inputs = [weight, grad, mean, var, weight32]
    return _adamw("_mp_adamw_update", inputs, rescale_grad, {"lr": lr, "eta": eta, **kwargs})
