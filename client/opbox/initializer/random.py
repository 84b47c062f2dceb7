"""Initializers that draw: where the array lives, from the session's seeded stream."""

from __future__ import annotations

import math

import numpy as np

from ..base import is_number, value_text
from ..ndarray import NDArray
from ..random import normal, uniform
from .initializer import Initializer, register

__all__ = ["MSRAPrelu", "Normal", "Orthogonal", "Uniform", "Xavier"]


def _check_number(argument: str, value: float) -> None:
    if not is_number(value):
        raise TypeError(f"{argument}: expected a number, got {value_text(value)}")


@register
class Uniform(Initializer):
    """Uniform in [-scale, scale)."""

    def __init__(self, scale: float = 0.07) -> None:
        _check_number("Uniform: scale", scale)
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name: str, arr: NDArray) -> None:
        uniform(-self.scale, self.scale, arr.shape, out=arr)


@register
class Normal(Initializer):
    """Normal with mean 0 and standard deviation `sigma`."""

    def __init__(self, sigma: float = 0.01) -> None:
        _check_number("Normal: sigma", sigma)
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
            raise ValueError(
                f"{type(self).__name__}: parameter {str(name)!r}: expected two dimensions or more, got shape {shape}"
            )
        receptive = math.prod(shape[2:])
        fan_in, fan_out = shape[1] * receptive, shape[0] * receptive
        factors = {"avg": (fan_in + fan_out) / 2.0, "in": fan_in, "out": fan_out}
        if self.factor_type not in factors:
            raise ValueError(f"factor_type: expected avg, in or out, got {self.factor_type!r}")
        scale = math.sqrt(self.magnitude / factors[self.factor_type])
        if self.rnd_type == "uniform":
            uniform(-scale, scale, shape, out=arr)
        elif self.rnd_type == "gaussian":
            normal(0, scale, shape, out=arr)
        else:
            raise ValueError(f"rnd_type: expected uniform or gaussian, got {self.rnd_type!r}")


@register
class MSRAPrelu(Xavier):
    """He et al. (2015), for layers followed by PReLU of slope `slope`: gaussian of magnitude 2 / (1 + slope^2)."""

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__("gaussian", factor_type, 2.0 / (1 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}
