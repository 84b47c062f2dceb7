"""Symbols of random values; with symbols as parameters, one sample (of `shape`) for each of their elements."""

from __future__ import annotations

from typing import Any

from opbox_protocol.mxnet import dtype_name

from .. import _schema
from .._schema.namespaces import attach
from ..base import is_number
from .compose import create
from .symbol import Symbol

__all__ = [
    "exponential",
    "gamma",
    "multinomial",
    "negative_binomial",
    "normal",
    "poisson",
    "randint",
    "randn",
    "shuffle",
    "uniform",
]

# Operators of the catalogue that have no function here, such as uniform_like, are there too.
__getattr__, __dir__ = attach(__name__, "random", Symbol)


def _sample(kind: str, params: dict[str, Any], shape: Any, dtype: Any, kwargs: dict[str, Any]) -> Symbol:
    name, attr = kwargs.pop("name", None), kwargs.pop("attr", None)
    extra = {**kwargs, **({"dtype": dtype_name(dtype)} if dtype is not None else {})}
    if shape is not None:
        extra["shape"] = shape
    if any(isinstance(value, Symbol) for value in params.values()):
        if not all(isinstance(value, Symbol) for value in params.values()):
            raise AssertionError(f"{kind}: expected its parameters to be all numbers or all Symbols")
        op = f"_sample_{kind}"
        return Symbol(create(_schema.get(op), op, list(params.values()), {}, extra, name, attr))
    if not all(is_number(value) for value in params.values()):
        raise ValueError(f"{kind}: expected its parameters to be all numbers or all Symbols")
    op = f"_random_{kind}"
    return Symbol(create(_schema.get(op), op, [], {}, {**params, **extra}, name, attr))


def uniform(low: Any = 0, high: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Evenly distributed over [low, high)."""
    return _sample("uniform", {"low": low, "high": high}, shape, dtype, kwargs)


def normal(loc: Any = 0, scale: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """The normal distribution of mean `loc` and standard deviation `scale`."""
    return _sample("normal", {"loc": loc, "scale": scale}, shape, dtype, kwargs)


def randn(*shape: int, loc: Any = 0, scale: Any = 1, dtype: Any = None, **kwargs: Any) -> Symbol:
    """As `normal`, with the shape as positional arguments."""
    return normal(loc, scale, shape or None, dtype, **kwargs)


def exponential(scale: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """The exponential distribution of mean `scale`."""
    lam = 1.0 / scale if is_number(scale) else scale.__rtruediv__(1.0)
    return _sample("exponential", {"lam": lam}, shape, dtype, kwargs)


def gamma(alpha: Any = 1, beta: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """The gamma distribution of shape `alpha` and scale `beta`."""
    return _sample("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, kwargs)


def poisson(lam: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """The Poisson distribution of mean `lam`."""
    return _sample("poisson", {"lam": lam}, shape, dtype, kwargs)


def negative_binomial(k: Any = 1, p: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Failures before `k` successes of probability `p`."""
    return _sample("negative_binomial", {"k": k, "p": p}, shape, dtype, kwargs)


def randint(low: Any, high: Any, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Whole numbers, evenly distributed over [low, high)."""
    return _sample("randint", {"low": low, "high": high}, shape, dtype, kwargs)


def multinomial(data: Symbol, shape: Any = None, get_prob: bool = True, dtype: Any = "int32", **kwargs: Any) -> Symbol:
    """Classes drawn by their probabilities, with the logarithm of each one's probability.

    Args:
        data: (classes,), or (batch, classes) of probabilities.
        shape: the shape of the draws of one distribution; by default one draw.
        get_prob: return the logarithms of probabilities as a second output. MXNet's symbols do by default, its arrays
            do not.
        dtype: the type of the classes.
        kwargs: `name`, `attr`.
    """
    name, attr = kwargs.pop("name", None), kwargs.pop("attr", None)
    params = {"get_prob": get_prob, "dtype": dtype_name(dtype), **kwargs}
    if shape is not None:
        params["shape"] = shape
    op = "_sample_multinomial"
    return Symbol(create(_schema.get(op), op, [data], {}, params, name, attr))


def shuffle(data: Symbol, **kwargs: Any) -> Symbol:
    """`data` with its rows in another order."""
    name, attr = kwargs.pop("name", None), kwargs.pop("attr", None)
    return Symbol(create(_schema.get("_shuffle"), "_shuffle", [data], {}, kwargs, name, attr))
