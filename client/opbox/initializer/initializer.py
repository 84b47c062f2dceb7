"""The base of initializers: a name and its attributes select the rule; the registry.

An initializer is called with an `InitDesc` (a name, the variable's attributes, the global initializer) and the array to
fill. A variable's own `__init__` attribute goes first; then the name's ending decides: weight, bias (0), gamma (1),
beta (0), min (0), max (1). Any other name is an error that says what to do.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import registry
from ..base import value_text
from ..ndarray import NDArray

__all__ = ["InitDesc", "Initializer", "alias", "create", "register"]


class InitDesc(str):
    """A parameter's name, with what an initializer needs to know about it.

    Attributes:
        attrs: the variable's attributes (`__init__`, `__shape__`, …).
        global_init: the initializer that was asked first, for initializers that delegate.
    """

    attrs: Mapping[str, str]
    global_init: Initializer | None

    def __new__(
        cls, name: str, attrs: Mapping[str, str] | None = None, global_init: Initializer | None = None
    ) -> InitDesc:
        desc = super().__new__(cls, name)
        desc.attrs = attrs or {}
        desc.global_init = global_init
        return desc


def bilinear_kernel(shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Weights (…, h, w) of an upsampling deconvolution that interpolates bilinearly.

    Each kernel is the outer product of two tents, 1 - |x / f - c| with f = ceil(w / 2), c = (2 f - 1 - f % 2) / (2 f).
    MXNet takes f and c from the width for both axes, and so does this.
    """
    height, width = shape[2], shape[3]
    f = math.ceil(width / 2.0)
    c = (2 * f - 1 - f % 2) / (2.0 * f)
    across = 1 - np.abs(np.arange(width) / f - c)
    down = 1 - np.abs(np.arange(height) / f - c)
    return np.broadcast_to(np.outer(down, across), tuple(shape)).astype(np.float32)


def _rms(array: NDArray) -> str:
    return str(float(np.linalg.norm(array.asnumpy()) / math.sqrt(array.size)))


_ENDINGS = (
    ("weight", "_init_weight"),
    ("bias", "_init_bias"),
    ("gamma", "_init_gamma"),
    ("beta", "_init_beta"),
    ("min", "_init_zero"),
    ("max", "_init_one"),
)
_LEGACY_ENDINGS = (
    ("bias", "_init_bias"),
    ("gamma", "_init_gamma"),
    ("beta", "_init_beta"),
    ("weight", "_init_weight"),
    ("moving_mean", "_init_zero"),
    ("moving_var", "_init_one"),
    ("moving_inv_var", "_init_zero"),
    ("moving_avg", "_init_zero"),
    ("min", "_init_zero"),
    ("max", "_init_one"),
)


class Initializer:
    """Base of initializers: dispatch on the name. A subclass defines `_init_weight(name, array)`.

    Keyword arguments are what `dumps` writes, so that a variable can carry its initializer as text.

    Example:
        >>> mx.init.Xavier()(mx.init.InitDesc("fc1_weight"), array)
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs
        self._verbose = False
        self._print_func: Callable[[NDArray], str] | None = None

    def set_verbosity(self, verbose: bool = False, print_func: Callable[[NDArray], str] | None = None) -> Initializer:
        """Log each parameter as it is set, with a statistic of it (the root mean square when none is given)."""
        self._verbose = verbose
        self._print_func = print_func or _rms
        return self

    def _log(self, desc: str, how: str, arr: NDArray) -> None:
        if self._verbose and self._print_func:
            logging.info("%s filled as %s: %s", desc, how, self._print_func(arr))

    def dumps(self) -> str:
        """This initializer as JSON: [class name, arguments]."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, desc: Any, arr: NDArray) -> None:
        """Fill `arr`, the parameter that `desc` names.

        Raises:
            ValueError: the name's ending has no rule.
            TypeError: `arr` is no NDArray.
        """
        if not isinstance(arr, NDArray) and isinstance(desc, str):
            raise TypeError(f"initializer: expected an NDArray to fill, got {value_text(arr)}")
        if not isinstance(desc, InitDesc):
            self._legacy_init(desc, arr)
            return
        if desc.global_init is None:
            desc.global_init = self
        own = desc.attrs.get("__init__", "")
        if own:
            create(own)._init_weight(desc, arr)
            self._log(desc, own, arr)
            return
        for ending, rule in _ENDINGS:
            if desc.endswith(ending):
                getattr(self, rule)(desc, arr)
                self._log(desc, ending, arr)
                return
        self._init_default(desc, arr)

    def _legacy_init(self, name: Any, arr: NDArray) -> None:
        """Names given as plain strings, as before InitDesc: further endings have a rule."""
        warnings.warn(
            "initializer: expected an mx.init.InitDesc as the name, got a plain string: older rules are followed",
            DeprecationWarning,
            stacklevel=3,
        )
        if not isinstance(name, str):
            raise TypeError(f"initializer: expected a string as the name, got {type(name).__name__}")
        if not isinstance(arr, NDArray):
            raise TypeError(f"initializer: expected an NDArray to fill, got {type(arr).__name__}")
        if name.startswith("upsampling"):
            self._init_bilinear(name, arr)
        elif name.startswith("stn_loc") and name.endswith("weight"):
            self._init_zero(name, arr)
        elif name.startswith("stn_loc") and name.endswith("bias"):
            self._init_loc_bias(name, arr)
        else:
            for ending, rule in _LEGACY_ENDINGS:
                if name.endswith(ending):
                    getattr(self, rule)(name, arr)
                    return
            self._init_default(name, arr)

    def _init_bilinear(self, _: str, arr: NDArray) -> None:
        arr[:] = bilinear_kernel(arr.shape)

    def _init_loc_bias(self, _: str, arr: NDArray) -> None:
        assert arr.shape[0] == 6
        arr[:] = np.array([1.0, 0, 0, 0, 1.0, 0], np.float32)

    def _init_zero(self, _: str, arr: NDArray) -> None:
        arr[:] = 0.0

    def _init_one(self, _: str, arr: NDArray) -> None:
        arr[:] = 1.0

    def _init_bias(self, _: str, arr: NDArray) -> None:
        arr[:] = 0.0

    def _init_gamma(self, _: str, arr: NDArray) -> None:
        arr[:] = 1.0

    def _init_beta(self, _: str, arr: NDArray) -> None:
        arr[:] = 0.0

    def _init_weight(self, name: str, arr: NDArray) -> None:
        """Fill a weight; every subclass says how."""
        raise NotImplementedError(f"{type(self).__name__} must define _init_weight(name, arr)")

    def _init_default(self, name: str, _: NDArray) -> None:
        endings = ", ".join(ending for ending, _ in _ENDINGS)
        raise ValueError(
            f"initializer: parameter {str(name)!r}: expected a name that ends in {endings}, which have a rule; "
            "give the variable one of its own: mx.sym.Variable(name, init=mx.init.Zero())"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Initializer):
            return NotImplemented
        return type(self) is type(other) and self._kwargs == other._kwargs

    __hash__ = None  # type: ignore[assignment]  # Python's way to say that it has none


register = registry.get_register_func(Initializer, "initializer")
alias = registry.get_alias_func(Initializer, "initializer")
create = registry.get_create_func(Initializer, "initializer")
