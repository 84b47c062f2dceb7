"""Initializers: fill a parameter by a rule that its name selects (`mx.init`, `mx.initializer`).

An initializer is called with an `InitDesc` (a name, the variable's attributes, the global initializer) and the array to
fill. A variable's own `__init__` attribute goes first; then the name's ending decides: weight, bias (0), gamma (1),
beta (0), min (0), max (1). Any other name is an error that says what to do. Distributions are drawn where the array
lives, from the session's seeded stream; fixed patterns are made here and written.
"""

from __future__ import annotations

import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import registry
from .ndarray import NDArray, load
from .random import normal, uniform

__all__ = [
    "Bilinear",
    "Constant",
    "InitDesc",
    "Initializer",
    "LSTMBias",
    "Load",
    "MSRAPrelu",
    "Mixed",
    "Normal",
    "One",
    "Orthogonal",
    "Uniform",
    "Xavier",
    "Zero",
    "alias",
    "create",
    "register",
]


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

    def _told(self, desc: str, how: str, arr: NDArray) -> None:
        if self._verbose and self._print_func:
            logging.info("Initialized %s as %s: %s", desc, how, self._print_func(arr))

    def dumps(self) -> str:
        """This initializer as JSON: [class name, arguments]."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, desc: Any, arr: NDArray) -> None:
        """Fill `arr`, the parameter that `desc` names.

        Raises:
            ValueError: the name's ending has no rule.
        """
        if not isinstance(desc, InitDesc):
            self._legacy_init(desc, arr)
            return
        if desc.global_init is None:
            desc.global_init = self
        own = desc.attrs.get("__init__", "")
        if own:
            create(own)._init_weight(desc, arr)
            self._told(desc, own, arr)
            return
        for ending, rule in _ENDINGS:
            if desc.endswith(ending):
                getattr(self, rule)(desc, arr)
                self._told(desc, ending, arr)
                return
        self._init_default(desc, arr)

    def _legacy_init(self, name: Any, arr: NDArray) -> None:
        """Names given as plain strings, as before InitDesc: further endings have a rule."""
        warnings.warn(
            "Calling initializer with init(str, NDArray) has been deprecated. "
            "Please use init(mx.init.InitDesc(...), NDArray) instead.",
            DeprecationWarning,
            stacklevel=3,
        )
        if not isinstance(name, str):
            raise TypeError("name must be string")
        if not isinstance(arr, NDArray):
            raise TypeError("arr must be NDArray")
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
        raise NotImplementedError("Must override it")

    def _init_default(self, name: str, _: NDArray) -> None:
        raise ValueError(
            f'Unknown initialization pattern for {name}. Default initialization is now limited to "weight", "bias", '
            '"gamma" (1.0), and "beta" (0.0).Please use mx.sym.Variable(init=mx.init.*) to set initialization pattern'
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Initializer):
            return NotImplemented
        return type(self) is type(other) and self._kwargs == other._kwargs

    __hash__ = None  # type: ignore[assignment]


register = registry.get_register_func(Initializer, "initializer")
alias = registry.get_alias_func(Initializer, "initializer")
create = registry.get_create_func(Initializer, "initializer")


class Load:
    """Take parameters from a file or a dict; ask `default_init` for those it lacks.

    Args:
        param: a `.params` file's path, or arrays by name ("arg:" and "aux:" prefixes are dropped).
        default_init: called for names that are not there; None makes them an error.
        verbose: log each parameter.

    Raises (on use):
        AssertionError: a shape that does not fit, or a missing name without `default_init`.
    """

    def __init__(self, param: Any, default_init: Any = None, verbose: bool = False) -> None:
        held = load(param) if isinstance(param, str) else param
        if not isinstance(held, dict):
            raise AssertionError(f"param: expected a file of named arrays or a dict, got {type(held).__name__}")
        self.param = {name.removeprefix("arg:").removeprefix("aux:"): arr for name, arr in held.items()}
        self.default_init = default_init
        self.verbose = verbose

    def __call__(self, name: str, arr: NDArray) -> None:
        if name in self.param:
            source = self.param[name]
            if arr.shape != source.shape:
                raise AssertionError(
                    f"Parameter {name} cannot be initialized from loading. "
                    f"Shape mismatch, target {arr.shape} vs loaded {source.shape}"
                )
            arr[:] = source
            if self.verbose:
                logging.info("Initialized %s by loading", name)
            return
        if self.default_init is None:
            raise AssertionError(
                f"Cannot Initialize {name}. Not found in loaded param and no default Initializer is provided."
            )
        self.default_init(name, arr)
        if self.verbose:
            logging.info("Initialized %s by default", name)


class Mixed:
    """The initializer of the first pattern (a regular expression, matched at the start) that a name matches.

    Raises (on use):
        ValueError: no pattern matches.
    """

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Any]) -> None:
        if len(patterns) != len(initializers):
            raise AssertionError(f"expected as many initializers as patterns, got {len(initializers)}, {len(patterns)}")
        self.map = [(re.compile(pattern), one) for pattern, one in zip(patterns, initializers, strict=True)]

    def __call__(self, name: str, arr: NDArray) -> None:
        for pattern, one in self.map:
            if pattern.match(name):
                one(name, arr)
                return
        raise ValueError(
            f"Parameter name {name} did not match any pattern. "
            'Consider adding a ".*" pattern at the end with default Initializer.'
        )


@register
@alias("zeros")
class Zero(Initializer):
    """All zeros."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 0


@register
@alias("ones")
class One(Initializer):
    """All ones."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 1


@register
class Constant(Initializer):
    """One value, or an array of the parameter's shape."""

    def __init__(self, value: Any) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = self.value

    def dumps(self) -> str:
        value = self.value
        if not np.isscalar(value):
            value = (value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)).tolist()
        return json.dumps([type(self).__name__.lower(), {"value": value}])


@register
class Uniform(Initializer):
    """Uniform in [-scale, scale)."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name: str, arr: NDArray) -> None:
        uniform(-self.scale, self.scale, arr.shape, out=arr)


@register
class Normal(Initializer):
    """Normal with mean 0 and standard deviation `sigma`."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, name: str, arr: NDArray) -> None:
        normal(0, self.sigma, arr.shape, out=arr)


@register
class Orthogonal(Initializer):
    """Orthogonal rows or columns times `scale` (Saxe et al., 2013): a factor of a random matrix's decomposition.

    The weight is seen as (shape[0], the rest).
    """

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale, rand_type=rand_type)
        self.scale = scale
        self.rand_type = rand_type

    def _init_weight(self, name: str, arr: NDArray) -> None:
        shape = (arr.shape[0], math.prod(arr.shape[1:]))
        if self.rand_type == "uniform":
            drawn = uniform(-1.0, 1.0, shape).asnumpy()
        elif self.rand_type == "normal":
            drawn = normal(0.0, 1.0, shape).asnumpy()
        else:
            raise ValueError(f"rand_type: expected uniform or normal, got {self.rand_type!r}")
        left, _, right = np.linalg.svd(drawn, full_matrices=False)
        factor = left if left.shape == shape else right
        arr[:] = (self.scale * factor.reshape(arr.shape)).astype(np.float32)


@register
class Xavier(Initializer):
    """Glorot and Bengio (2010): spread sqrt(magnitude / factor), so that activations keep their scale over layers.

    fan_in = shape[1] * prod(shape[2:]), fan_out = shape[0] * prod(shape[2:]).

    Args:
        rnd_type: "uniform" (bounds -/+ the spread) or "gaussian" (standard deviation the spread).
        factor_type: "avg" of the fans, "in" or "out".
        magnitude: the scale.

    Raises (on use):
        ValueError: a vector, or an unknown type.
    """

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self.rnd_type = rnd_type
        self.factor_type = factor_type
        self.magnitude = float(magnitude)

    def _init_weight(self, name: str, arr: NDArray) -> None:
        shape = arr.shape
        if len(shape) < 2:
            raise ValueError(f"Xavier initializer cannot be applied to vector {name}. It requires at least 2D.")
        receptive = math.prod(shape[2:])
        fan_in, fan_out = shape[1] * receptive, shape[0] * receptive
        factors = {"avg": (fan_in + fan_out) / 2.0, "in": fan_in, "out": fan_out}
        if self.factor_type not in factors:
            raise ValueError("Incorrect factor type")
        scale = math.sqrt(self.magnitude / factors[self.factor_type])
        if self.rnd_type == "uniform":
            uniform(-scale, scale, shape, out=arr)
        elif self.rnd_type == "gaussian":
            normal(0, scale, shape, out=arr)
        else:
            raise ValueError("Unknown random type")


@register
class MSRAPrelu(Xavier):
    """He et al. (2015), for layers followed by PReLU of slope `slope`: gaussian of magnitude 2 / (1 + slope^2)."""

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__("gaussian", factor_type, 2.0 / (1 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


@register
class Bilinear(Initializer):
    """The weights of an upsampling deconvolution that interpolates bilinearly."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        self._init_bilinear(name, arr)


@register
class LSTMBias(Initializer):
    """The bias of an LSTM (gates i, f, c, o): `forget_bias` for the forget gate, 0 for the others."""

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, name: str, arr: NDArray) -> None:
        hidden = arr.shape[0] // 4
        values = np.zeros(arr.shape, np.float32)
        values[hidden : 2 * hidden] = self.forget_bias
        arr[:] = values
