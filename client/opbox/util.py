"""MXNet's `mx.util`: numpy mode (`numpy_mode`), environment variables, GPUs, and checks of ufuncs' arguments.

There is no `mx.np`: what would turn on its arrays (`use_np`, `set_np()`) says so, and `set_np(array=False)` turns on
numpy mode for shapes alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from opbox_protocol.errors import UnsupportedError

from .absent import module_getattr
from .base import value_text
from .context import Context, gpu_memory_info, num_gpus
from .numpy_mode import is_np_shape, np_shape, set_np_shape, use_np_shape

__all__ = [
    "get_gpu_count",
    "get_gpu_memory",
    "getenv",
    "get_cuda_compute_capability",
    "is_np_array",
    "is_np_shape",
    "np_array",
    "np_shape",
    "np_ufunc_legal_option",
    "reset_np",
    "set_module",
    "set_np",
    "set_np_shape",
    "setenv",
    "use_np",
    "use_np_array",
    "use_np_shape",
    "wrap_np_binary_func",
    "wrap_np_unary_func",
]

F = TypeVar("F", bound=Callable[..., Any])

_UFUNC_DEFAULTS = {"where": True, "casting": "same_kind", "order": "K", "dtype": None, "subok": True}
_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
_UFUNC_TYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64")


# -- numpy mode -------------------------------------------------------------------------------------------------------


def is_np_array() -> bool:
    """Return False: there is no `mx.np`, whose arrays this asks about."""
    return False


def _refuse_arrays(subject: str) -> UnsupportedError:
    return UnsupportedError(
        f"{subject}: opbox has no mx.np arrays: expected numpy mode for shapes alone, by mx.util.use_np_shape, "
        "mx.util.np_shape() or mx.util.set_np(array=False)"
    )


def np_array(active: bool = True) -> Any:
    """A scope without `mx.np` arrays, which is what there is anyway.

    Raises:
        UnsupportedError: `active`, since there are none.
    """
    if active:
        raise _refuse_arrays("np_array")
    return np_shape(is_np_shape())


def use_np_array(func: F) -> F:
    """Raise UnsupportedError: there are no `mx.np` arrays."""
    raise _refuse_arrays("use_np_array")


def use_np(func: F) -> F:
    """Raise UnsupportedError: there are no `mx.np` arrays."""
    raise _refuse_arrays("use_np")


def set_np(shape: bool = True, array: bool = True) -> None:
    """Turn numpy mode on or off in this thread.

    Args:
        shape: whether 0 is a size in shapes.
        array: must be False.

    Raises:
        ValueError: `array` without `shape`.
        UnsupportedError: `array`: there are no `mx.np` arrays.
    """
    if array and not shape:
        raise ValueError("set_np: expected shape=True with array=True, got shape=False")
    if array:
        raise _refuse_arrays("set_np")
    set_np_shape(shape)


def reset_np() -> None:
    """Turn numpy mode off in this thread."""
    set_np(shape=False, array=False)


# -- this process and the engine --------------------------------------------------------------------------------------


def getenv(name: str) -> str | None:
    """An environment variable of this process; None where it is not set."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Set an environment variable of this process, or with None take it away."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def get_gpu_count() -> int:
    """Return the number of the engine's GPUs."""
    return num_gpus()


def get_gpu_memory(gpu_dev_id: int) -> tuple[int, int]:
    """Return the free and the whole memory of a GPU of the engine's, in bytes; MXNetError where it has none such."""
    return gpu_memory_info(gpu_dev_id)


def get_cuda_compute_capability(ctx: Context) -> int:
    """Refuse: the engine does not tell the compute capability of its GPUs.

    Raises:
        ValueError: `ctx` is no GPU.
        UnsupportedError: it is one.
    """
    if not isinstance(ctx, Context) or ctx.device_type != "gpu":
        raise ValueError(f"get_cuda_compute_capability: ctx: expected a GPU such as mx.gpu(0), got {value_text(ctx)}")
    raise UnsupportedError(f"get_cuda_compute_capability: the engine does not tell that of {ctx}: ask nvidia-smi there")


# -- functions in the manner of NumPy's -------------------------------------------------------------------------------


def set_module(module: str | None) -> Callable[[F], F]:
    """Decorator: the function says that it is of another module; of its own for None.

    Example:
        >>> @mx.util.set_module("mine")
        ... def double(x): return x * 2
    """

    def set_it(func: F) -> F:
        if module is not None:
            func.__module__ = module
        return func

    return set_it


def np_ufunc_legal_option(key: str, value: Any) -> bool:
    """Return whether NumPy's ufuncs take `value` for their argument `key`, one of where, casting, order, dtype, subok.

    Example:
        >>> mx.util.np_ufunc_legal_option("casting", "no")
        True
    """
    if key == "where":
        return True
    if key == "casting":
        return value in _CASTINGS
    if key == "order":
        return isinstance(value, str)
    if key == "dtype":
        return value in _UFUNC_TYPES or value in [np.dtype(name).type for name in _UFUNC_TYPES]
    return key == "subok" and isinstance(value, bool)


def wrap_np_unary_func(func: F) -> Callable[..., Any]:
    """Decorator: `func(x, out=None)` takes NumPy's arguments of ufuncs too, where they have their defaults.

    The function raises TypeError for another argument or value, and NotImplementedError for one that NumPy takes.
    """

    @wraps(func)
    def checked(x: Any, out: Any = None, **kwargs: Any) -> Any:
        _check_ufunc(func.__name__, kwargs)
        return func(x, out=out)

    return checked


def wrap_np_binary_func(func: F) -> Callable[..., Any]:
    """Decorator: `func(x1, x2, out=None)` takes NumPy's arguments of ufuncs too, as `wrap_np_unary_func`."""

    @wraps(func)
    def checked(x1: Any, x2: Any, out: Any = None, **kwargs: Any) -> Any:
        _check_ufunc(func.__name__, kwargs)
        return func(x1, x2, out=out)

    return checked


def _check_ufunc(name: str, kwargs: dict[str, Any]) -> None:
    for key, value in kwargs.items():
        if key not in _UFUNC_DEFAULTS:
            raise TypeError(f"{name}: unknown argument {key!r}: expected one of {', '.join(_UFUNC_DEFAULTS)}")
        default = _UFUNC_DEFAULTS[key]
        if value == default:
            continue
        if np_ufunc_legal_option(key, value):
            raise NotImplementedError(f"{name}: {key}: expected {default!r}, the only value here, got {value!r}")
        raise TypeError(f"{name}: {key}: expected {default!r}, got {value_text(value)}")


__getattr__ = module_getattr(__name__, __all__)
