"""Arrays of random values; with arrays as parameters, one sample (of `shape`) for each of their elements."""

from __future__ import annotations

from typing import Any

from opbox_protocol.mxnet import dtype_name

from .._schema.namespaces import attach
from ..base import is_number
from ..context import Context
from .array import NDArray
from .creation import shape_of
from .invocation import imperative

__all__ = [
    "exponential",
    "gamma",
    "generalized_negative_binomial",
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
__getattr__, __dir__ = attach(__name__, "random", NDArray)


def _sample(kind: str, params: dict[str, Any], shape: Any, dtype: Any, ctx: Context | None, out: Any) -> Any:
    extra: dict[str, Any] = {} if dtype is None or dtype == "None" else {"dtype": dtype_name(dtype)}
    if shape is None and out is not None:
        shape = out.shape
    if shape is not None:
        extra["shape"] = shape_of(shape)
    elif is_number(next(iter(params.values()))):
        extra["shape"] = (1,)
    if "dtype" not in extra and out is not None:
        extra["dtype"] = out._numpy_dtype.name
    if all(isinstance(value, NDArray) for value in params.values()):
        return imperative(f"_sample_{kind}", list(params.values()), extra, out=out)
    if not all(is_number(value) for value in params.values()):
        raise ValueError(f"{kind}: expected its parameters to be all numbers or all NDArrays")
    return imperative(f"_random_{kind}", [], {**params, **extra}, out=out, ctx=ctx)


def uniform(low: Any = 0, high: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """Evenly distributed over [low, high)."""
    return _sample("uniform", {"low": low, "high": high}, shape, dtype, ctx, out)


def normal(loc: Any = 0, scale: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """The normal distribution of mean `loc` and standard deviation `scale`."""
    return _sample("normal", {"loc": loc, "scale": scale}, shape, dtype, ctx, out)


def randn(*shape: int, loc: Any = 0, scale: Any = 1, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """As `normal`, with the shape as positional arguments."""
    return normal(loc, scale, shape or None, dtype, ctx, out)


def exponential(scale: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """The exponential distribution of mean `scale`."""
    return _sample("exponential", {"lam": 1.0 / scale}, shape, dtype, ctx, out)


def gamma(alpha: Any = 1, beta: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """The gamma distribution of shape `alpha` and scale `beta`."""
    return _sample("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, ctx, out)


def poisson(lam: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """The Poisson distribution of mean `lam`."""
    return _sample("poisson", {"lam": lam}, shape, dtype, ctx, out)


def negative_binomial(
    k: Any = 1, p: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> Any:
    """Failures before `k` successes of probability `p`."""
    return _sample("negative_binomial", {"k": k, "p": p}, shape, dtype, ctx, out)


def generalized_negative_binomial(
    mu: Any = 1, alpha: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> Any:
    """The Poisson-gamma mixture of mean `mu` and dispersion `alpha`."""
    return _sample("generalized_negative_binomial", {"mu": mu, "alpha": alpha}, shape, dtype, ctx, out)


def randint(low: int, high: int, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """Whole numbers, evenly distributed over [low, high)."""
    return _sample("randint", {"low": low, "high": high}, shape, dtype, ctx, out)


def multinomial(data: NDArray, shape: Any = None, get_prob: bool = False, out: Any = None, dtype: Any = "int32") -> Any:
    """Indices drawn with the probabilities in `data`'s last axis."""
    params = {"get_prob": get_prob, "dtype": dtype_name(dtype), **({} if shape is None else {"shape": shape})}
    return imperative("_sample_multinomial", [data], params, out=out)


def shuffle(data: NDArray, out: Any = None) -> Any:
    """`data` with its rows in another order."""
    return imperative("_shuffle", [data], out=out)
