"""Gradient descent and its near relations: momentum, Nesterov's, signs only, with delay compensation, with noise.

g = clip(rescale_grad * gradient); w the weight, lr the rate, wd the decay.
"""

from __future__ import annotations

import math
from typing import Any

from ..ndarray import NDArray
from ..random import normal
from .optimizer import Index, OperatorUpdate, Optimizer, State, register, zeros_like

__all__ = ["DCASGD", "NAG", "SGD", "SGLD", "Signum", "Test", "ccSGD"]


class _WithMomentum(Optimizer):
    """An optimizer whose state is one array, the momentum, with an update operator for either case.

    Args:
        momentum: 0 for no momentum, and no state.
    """

    _plain_operator = "sgd_update"
    _momentum_operator: str

    def __init__(self, momentum: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum

    def create_state(self, index: Index, weight: NDArray) -> State:
        return zeros_like(weight) if self.momentum != 0.0 else None

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> OperatorUpdate | None:
        lr, wd, _ = self._counted(index)
        return self._descent(weight, grad, state, lr, wd)

    def _descent(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float) -> OperatorUpdate:
        own = {"lr": lr, "wd": wd}
        if state is None:
            return OperatorUpdate(self._plain_operator, [weight, grad], self._common(), own)
        return OperatorUpdate(self._momentum_operator, [weight, grad, state], self._momentum_attrs(), own)

    def _momentum_attrs(self) -> dict[str, Any]:
        return self._common(momentum=self.momentum)


@register
class SGD(_WithMomentum):
    """w += m, m = momentum m - lr (g + wd w).

    Args:
        momentum: 0 for plain descent.
        lazy_update: concerns row-sparse gradients, which there are none of; taken and ignored.
    """

    _momentum_operator = "sgd_mom_update"

    def __init__(self, momentum: float = 0.0, lazy_update: bool = True, **kwargs: Any) -> None:
        super().__init__(momentum, **kwargs)
        self.lazy_update = lazy_update


@register
class ccSGD(SGD):
    """SGD under an old name."""


@register
class NAG(_WithMomentum):
    """Nesterov's accelerated gradient: m = momentum m - lr (g + wd w); w += momentum m - lr (g + wd w)."""

    _momentum_operator = "nag_mom_update"


@register
class Signum(_WithMomentum):
    """Only the sign of the (averaged) gradient counts (Bernstein et al., 2018).

    m = momentum m - (1 - momentum) (g + wd w); w = (1 - lr wd_lh) w + lr sign(m); without momentum
    w = (1 - lr wd) w - lr sign(g).
    """

    _plain_operator = "signsgd_update"
    _momentum_operator = "signum_update"

    def __init__(self, learning_rate: float = 0.01, momentum: float = 0.9, wd_lh: float = 0.0, **kwargs: Any) -> None:
        super().__init__(momentum, learning_rate=learning_rate, **kwargs)
        self.wd_lh = wd_lh

    def _momentum_attrs(self) -> dict[str, Any]:
        attrs = super()._momentum_attrs()
        return {**attrs, "wd_lh": self.wd_lh} if self.wd_lh else attrs


@register
class DCASGD(Optimizer):
    """Descent with compensation of delayed gradients (Zheng et al., 2016).

    w += m, m = momentum m - lr (g + wd w + lamda g^2 (w - w_before)).
    """

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.lamda = lamda

    def create_state(self, index: Index, weight: NDArray) -> State:
        return (zeros_like(weight) if self.momentum != 0.0 else None, weight.copy())

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        lr, wd, _ = self._counted(index)
        grad = self._scaled(grad)
        momentum, before = state
        change = (grad + weight * wd + grad * grad * (weight - before) * self.lamda) * -lr
        if momentum is not None:
            momentum *= self.momentum
            momentum += change
            change = momentum
        before[:] = weight
        weight += change


@register
class SGLD(Optimizer):
    """Langevin dynamics (Welling and Teh, 2011): w -= lr / 2 (g + wd w) + noise of standard deviation sqrt(lr)."""

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        lr, wd, _ = self._counted(index)
        weight += (self._scaled(grad) + weight * wd) * (-lr / 2)
        weight += normal(0, math.sqrt(lr), weight.shape, dtype=weight.dtype, ctx=weight.context)


@register
class Test(Optimizer):
    """w += rescale_grad * gradient: for tests of what calls optimizers."""

    __test__ = False  # no test class, whatever pytest thinks of its name

    def create_state(self, index: Index, weight: NDArray) -> State:
        return zeros_like(weight)

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        weight += grad * self.rescale_grad
        state[:] = weight
