"""Optimizers for large batches: the step of each weight is scaled by the norms of the weight and of its direction.

g = clip(rescale_grad * gradient); w the weight, lr the rate, wd the decay, t the count of updates. Norms stay on the
device: no step waits for one.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from .. import ndarray as nd
from ..ndarray import NDArray
from .gradient_descent import _WithMomentum
from .optimizer import Index, Optimizer, State, register, zeros_like

__all__ = ["LAMB", "LARS", "LBSGD"]


@register
class LAMB(Optimizer):
    """LAMB (You et al., 2019): Adam's direction d, scaled by norms: w -= lr |w| / |d| d.

    d = m / (sqrt(v) + epsilon) + wd w, with the moments m and v of `Adam`.

    Args:
        lower_bound, upper_bound: limits of |w|; None for none.
        bias_correction: whether the moments' start at 0 is made up for.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        bias_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        self.bias_correction = bias_correction

    def create_state(self, index: Index, weight: NDArray) -> State:
        return (zeros_like(weight), zeros_like(weight))

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        lr, wd, t = self._counted(index)
        attrs = self._common(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon)
        mean, square = state
        direction = nd.lamb_update_phase1(
            weight, grad, mean, square, t=t, wd=wd, bias_correction=self.bias_correction, **attrs
        )
        bounds = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        limits: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound}
        nd.lamb_update_phase2(weight, direction, nd.norm(weight), nd.norm(direction), lr=lr, out=weight, **limits)


@register
class LARS(_WithMomentum):
    """LARS (You et al., 2017): SGD whose rate for a weight is lr eta |w| / (|g| + wd |w| + eps).

    Gammas, betas and biases keep the rate lr, and so do weights of which a norm is 0.

    Args:
        momentum: 0 for plain descent.
        lazy_update: concerns row-sparse gradients, which there are none of; taken and ignored.
        eta: the coefficient.
        eps: keeps the division from 0.
        momentum_correction: scale the momentum by a scheduler's change of rate (Goyal et al., 2017).
    """

    def __init__(
        self,
        momentum: float = 0.0,
        lazy_update: bool = True,
        eta: float = 0.001,
        eps: float = 0,
        momentum_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(momentum, **kwargs)
        self.momentum_correction = momentum_correction
        self.lazy_update = lazy_update
        self.eta = eta
        self.eps = eps
        self.cur_lr: float | None = None
        self.last_lr: float | None = None
        self._rated_at = -1

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        """None: the update takes several operators."""

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        lr, wd, _ = self._counted(index)
        self._note_rate()
        rates, decays = (nd.array([value], weight.context) for value in (lr, wd))
        if not self.idx2name.get(index, str(index)).endswith(("gamma", "beta", "bias")):
            weight_sum, grad_sum = (nd.multi_sum_sq(one, num_arrays=1) for one in (weight, grad))
            own: dict[str, Any] = {"eta": self.eta, "eps": self.eps, "rescale_grad": self.rescale_grad}
            rates = nd.multi_lars(rates, weight_sum, grad_sum, decays, **own)
        if state is None:
            nd.preloaded_multi_sgd_update(weight, grad, rates, decays, num_weights=1, out=weight, **self._common())
        else:
            nd.preloaded_multi_sgd_mom_update(
                weight, grad, state, rates, decays, num_weights=1, out=weight, **self._momentum_attrs()
            )

    def _note_rate(self) -> None:
        """Note the rate, once a step, and the one of the step before."""
        if self._rated_at == self.num_update:
            return
        self._rated_at = self.num_update
        rate = self._rate()
        self.last_lr = rate if self.cur_lr is None else self.cur_lr
        self.cur_lr = rate

    def _momentum_attrs(self) -> dict[str, Any]:
        momentum = self.momentum
        if self.momentum_correction and self.last_lr and self.cur_lr is not None:
            momentum *= self.cur_lr / self.last_lr
        return self._common(momentum=momentum)


@register
class LBSGD(_WithMomentum):
    """SGD for large batches made of `batch_scale` small ones: one update for the mean of their gradients.

    The rate grows from lr to batch_scale lr while training warms up.

    Args:
        momentum: 0 for plain descent.
        warmup_strategy: "linear", "power2" or "sqrt" in the count of batches; or "lars": the rate is scaled by
            |w| / sqrt(|g|^2 + wd |w|^2), between 0.01 and 100, in place of it.
        warmup_epochs: epochs of warming up.
        batch_scale: batches of one update.
        updates_per_epoch: batches of an epoch.
        begin_epoch: where counting starts, for training that goes on.
        num_epochs: taken for its callers' sake: nothing depends on it.
    """

    _momentum_operator = "sgd_mom_update"

    def __init__(
        self,
        momentum: float = 0.0,
        multi_precision: bool = False,
        warmup_strategy: str = "linear",
        warmup_epochs: int = 5,
        batch_scale: int = 1,
        updates_per_epoch: int = 32,
        begin_epoch: int = 0,
        num_epochs: int = 60,
        **kwargs: Any,
    ) -> None:
        super().__init__(momentum, multi_precision=multi_precision, **kwargs)
        logging.info(
            "LBSGD: batch_scale %g, %d epochs of warming up (%s), %d updates each",
            batch_scale,
            warmup_epochs,
            warmup_strategy,
            updates_per_epoch,
        )
        self.warmup_strategy = warmup_strategy
        self.warmup_epochs = warmup_epochs
        self.batch_scale = batch_scale
        self.updates_per_epoch = updates_per_epoch
        self.init_updates = begin_epoch * updates_per_epoch
        self.num_epochs = num_epochs
        self._sums: dict[Index, NDArray] = {}
        self._batches: dict[Index, int] = {}

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        """None: most batches only add to a sum."""

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        # The rate of before this update is counted, as MXNet has it.
        lr, wd = self._get_lr(index), self._get_wd(index)
        self._update_count(index)
        batches = self._batches[index] = self._batches.get(index, self.init_updates) + 1
        before = self._sums.pop(index, None)
        total = grad if before is None else before + grad
        if batches % self.batch_scale:
            self._sums[index] = total.copy() if total is grad else total
            return
        mean = total / self.batch_scale
        if self.warmup_strategy == "lars":
            # w - lr s g = w - lr (s g): a rate that only the device knows becomes a factor of what it is the rate of.
            self._scaled_descent(weight, mean, state, lr, wd)
            return
        nd.invoke_update([self._descent(weight, mean, state, lr * self._warmed(batches), wd)])

    def _warmed(self, batches: int) -> float:
        """The factor of the rate after so many batches."""
        duration = self.warmup_epochs * self.updates_per_epoch
        most = float(self.batch_scale)
        if batches >= duration:
            return most
        share = {
            "linear": batches / duration,
            "power2": (batches / duration) ** 2,
            "sqrt": math.sqrt(batches / duration),
        }.get(self.warmup_strategy, 0.0)
        return 1.0 + (most - 1.0) * share if duration > 1 else 1.0

    def _scaled_descent(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float) -> None:
        squares = nd.sum(nd.square(weight))
        factor = nd.clip(nd.sqrt(squares / (nd.sum(nd.square(grad)) + wd * squares + 1e-18)), 0.01, 100)
        change = nd.broadcast_mul(self._scaled(grad) + weight * wd, factor) * lr
        if state is not None:
            state *= self.momentum
            state -= change
            weight += state
        else:
            weight -= change
