"""Optimizers that keep a rate of their own for each element, by the gradients seen so far.

g = clip(rescale_grad * gradient); w the weight, lr the rate, wd the decay, t the count of updates.
"""

from __future__ import annotations

import math
from typing import Any

from .. import ndarray as nd
from ..ndarray import NDArray
from .optimizer import Index, OperatorUpdate, Optimizer, State, bias_corrected, register, zeros_like

__all__ = ["FTML", "AdaDelta", "AdaGrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSProp"]


class _TwoMoments(Optimizer):
    """Optimizers with two states of the weight's type."""

    def create_state(self, index: Index, weight: NDArray) -> State:
        return (zeros_like(weight), zeros_like(weight))


@register
class Adam(_TwoMoments):
    """Adam (Kingma and Ba, 2014): w -= lr_t m / (sqrt(v) + epsilon), with lr_t corrected for the moments' start.

    m = beta1 m + (1 - beta1) (g + wd w), v = beta2 v + (1 - beta2) (g + wd w)^2.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.lazy_update = lazy_update

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> OperatorUpdate:
        lr, wd, t = self._counted(index)
        own = {"lr": bias_corrected(lr, self.beta1, self.beta2, t), "wd": wd}
        attrs = self._common(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon)
        return OperatorUpdate("adam_update", [weight, grad, *state], attrs, own)


@register
class AdaGrad(Optimizer):
    """AdaGrad (Duchi et al., 2011): h += g^2; w -= lr (g / sqrt(h + eps) + wd w)."""

    def __init__(self, eps: float = 1e-7, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps

    def create_state(self, index: Index, weight: NDArray) -> State:
        return zeros_like(weight)

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        lr, wd, _ = self._counted(index)
        grad = self._scaled(grad)
        state += nd.square(grad)
        weight += (grad / nd.sqrt(state + self.float_stable_eps) + weight * wd) * -lr


@register
class RMSProp(Optimizer):
    """RMSProp: Tieleman and Hinton (2012), or centered, Graves (2013).

    n = gamma1 n + (1 - gamma1) g^2, w -= lr g / sqrt(n + epsilon); centered also keeps the mean gradient and a
    momentum of `gamma2`.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        gamma1: float = 0.9,
        gamma2: float = 0.9,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.gamma1 = gamma1
        self.gamma2 = gamma2
        self.centered = centered
        self.epsilon = epsilon
        self.clip_weights = clip_weights

    def create_state(self, index: Index, weight: NDArray) -> State:
        return tuple(zeros_like(weight) for _ in range(3 if self.centered else 1))

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> OperatorUpdate:
        lr, wd, _ = self._counted(index)
        attrs = self._common(gamma1=self.gamma1, epsilon=self.epsilon)
        if self.centered:
            attrs["gamma2"] = self.gamma2
        if self.clip_weights:
            attrs["clip_weights"] = self.clip_weights
        op = "rmspropalex_update" if self.centered else "rmsprop_update"
        return OperatorUpdate(op, [weight, grad, *state], attrs, {"lr": lr, "wd": wd})


@register
class AdaDelta(_TwoMoments):
    """AdaDelta (Zeiler, 2012); the rate plays no part.

    a = rho a + (1 - rho) g^2; d = sqrt(b + epsilon) / sqrt(a + epsilon) g; b = rho b + (1 - rho) d^2; w -= d + wd w.
    """

    def __init__(self, rho: float = 0.90, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rho = rho
        self.epsilon = epsilon

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        _, wd, _ = self._counted(index)
        grad = self._scaled(grad)
        seen, moved = state
        seen *= self.rho
        seen += grad * grad * (1.0 - self.rho)
        change = nd.sqrt(moved + self.epsilon) / nd.sqrt(seen + self.epsilon) * grad
        moved *= self.rho
        moved += change * change * (1.0 - self.rho)
        weight -= change + weight * wd


@register
class FTML(Optimizer):
    """Follow the moving leader (Zheng and Kwok, 2017)."""

    def __init__(self, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def create_state(self, index: Index, weight: NDArray) -> State:
        return tuple(zeros_like(weight) for _ in range(3))

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> OperatorUpdate:
        lr, wd, t = self._counted(index)
        attrs = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "rescale_grad": self.rescale_grad}
        if self.clip_gradient:
            attrs["clip_grad"] = self.clip_gradient
        return OperatorUpdate("ftml_update", [weight, grad, *state], attrs, {"lr": lr, "wd": wd, "t": t})


@register
class Ftrl(_TwoMoments):
    """Follow the regularized leader (McMahan et al., 2013), with L1 of strength `lamda1`."""

    def __init__(self, lamda1: float = 0.01, learning_rate: float = 0.1, beta: float = 1, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.lamda1 = lamda1
        self.beta = beta

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> OperatorUpdate:
        lr, wd, _ = self._counted(index)
        attrs = self._common(lamda1=self.lamda1, beta=self.beta)
        return OperatorUpdate("ftrl_update", [weight, grad, *state], attrs, {"lr": lr, "wd": wd})


@register
class Adamax(_TwoMoments):
    """Adam with the largest gradient in place of the second moment (Kingma and Ba, 2014, section 7)."""

    def __init__(self, learning_rate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1 = beta1
        self.beta2 = beta2

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        lr, wd, t = self._counted(index)
        grad = self._clipped(grad * self.rescale_grad + weight * wd)
        mean, largest = state
        mean *= self.beta1
        mean += grad * (1.0 - self.beta1)
        largest[:] = nd.maximum(largest * self.beta2, nd.abs(grad))
        weight -= mean * (lr / (1.0 - self.beta1**t)) / largest


@register
class Nadam(_TwoMoments):
    """Adam with Nesterov's momentum (Dozat, 2016), the momentum rising by a schedule.

    The schedule's product is one of the optimizer, advanced at each weight, as in MXNet.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        schedule_decay: float = 0.004,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.schedule_decay = schedule_decay
        self.m_schedule = 1.0

    def _momentum(self, t: int) -> float:
        return self.beta1 * (1.0 - 0.5 * math.pow(0.96, t * self.schedule_decay))

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        lr, wd, t = self._counted(index)
        grad = self._clipped(grad * self.rescale_grad + weight * wd)
        now, later = self._momentum(t), self._momentum(t + 1)
        self.m_schedule *= now
        mean, square = state
        mean *= self.beta1
        mean += grad * (1.0 - self.beta1)
        square *= self.beta2
        square += grad * grad * (1.0 - self.beta2)
        ahead = grad * ((1.0 - now) / (1.0 - self.m_schedule)) + mean * (later / (1.0 - self.m_schedule * later))
        weight -= ahead * lr / (nd.sqrt(square / (1.0 - self.beta2**t)) + self.epsilon)
