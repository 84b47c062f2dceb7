"""Adam whose weight decay does not go through the gradient.

g = clip(rescale_grad * gradient); w the weight, lr the rate, wd the decay, t the count of updates.
"""

from __future__ import annotations

import math
from typing import Any

from .. import ndarray as nd
from ..ndarray import NDArray
from .adaptive import Adam
from .optimizer import Index, OperatorUpdate, State, register

__all__ = ["AdamW"]


@register
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter, 2017): w -= lr (c m / (sqrt(v) + epsilon) + wd w), by MXNet's `_adamw_update`.

    m and v are `Adam`'s moments of g; c = sqrt(1 - beta2^t) / (1 - beta1^t) makes up for their start at 0. A step with
    a gradient's factor of 0, or one that is not finite, changes nothing.

    Args:
        correct_bias: whether c is that; 1 otherwise.

    Example:
        >>> module.init_optimizer(optimizer="adamw", optimizer_params={"learning_rate": 1e-3, "wd": 0.01})
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        correct_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.correct_bias = correct_bias
        self._factor: tuple[Any, NDArray] | None = None

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> OperatorUpdate:
        lr, wd, t = self._counted(index)
        correction = math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t) if self.correct_bias else 1.0
        attrs = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        if self.clip_gradient:
            attrs["clip_gradient"] = self.clip_gradient
        own = {"lr": correction, "eta": lr, "wd": wd}
        return OperatorUpdate("_adamw_update", [weight, grad, *state, self._rescaling(weight)], attrs, own)

    def _rescaling(self, weight: NDArray) -> NDArray:
        """The factor of gradients as the operator reads it: an array, one for all weights of a step."""
        key = (self.num_update, weight.context, weight.dtype, self.rescale_grad)
        if self._factor is None or self._factor[0] != key:
            self._factor = key, nd.full((1,), self.rescale_grad, weight.context, weight.dtype)
        return self._factor[1]
