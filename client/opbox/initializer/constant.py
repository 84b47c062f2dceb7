"""Initializers without chance: constants, and patterns of fixed values, made here and written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..ndarray import NDArray
from .initializer import Initializer, alias, register

__all__ = ["Bilinear", "Constant", "LSTMBias", "One", "Zero"]


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
    """Fill with one value, or with an array of the parameter's shape."""

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
