"""Optimizers of `mx.optimizer.contrib`."""

from __future__ import annotations

from typing import Any

from .. import ndarray as nd
from ..ndarray import NDArray
from .optimizer import Index, Optimizer, State, register

__all__ = ["GroupAdaGrad"]


@register
class GroupAdaGrad(Optimizer):
    """AdaGrad with one rate for each row of a matrix: h += mean over a row of g^2; w -= lr g / sqrt(h + eps).

    g = clip(rescale_grad * gradient).

    Args:
        eps: keeps the division from 0.

    Raises:
        AssertionError: weight decay, or a weight that is no matrix.
    """

    def __init__(self, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps

    def create_state(self, index: Index, weight: NDArray) -> State:
        if len(weight.shape) != 2:
            raise AssertionError(f"GroupAdaGrad: expected weights of 2 dimensions, got shape {weight.shape}")
        return nd.zeros((weight.shape[0], 1), weight.context, weight.dtype)

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        lr, wd, _ = self._counted(index)
        if wd:
            raise AssertionError(f"GroupAdaGrad: expected no weight decay, got wd={wd:g}")
        grad = self._scaled(grad)
        state += nd.mean(nd.square(grad), axis=1, keepdims=True)
        weight -= nd.broadcast_div(grad * lr, nd.sqrt(state + self.float_stable_eps))
