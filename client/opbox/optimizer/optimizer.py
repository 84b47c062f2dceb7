"""The base of optimizers: rates and decays per weight, counts of updates, and the registry.

An optimizer says what one update is. Most do it by naming an update operator (`step` returns an `OperatorUpdate`); the
updater then sends the updates of all weights as one command. The others compute with array operators in `update`.
"""

from __future__ import annotations

import difflib
import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from .. import ndarray as nd
from ..base import is_number, user_level, value_text
from ..ndarray import NDArray
from ..registry import meant

__all__ = ["Optimizer", "OperatorUpdate", "create", "register"]

ELSEWHERE = {
    "lr": "learning_rate",
    "weight_decay": "wd",
    "eps": "epsilon",
    "betas": "beta1",
    "scheduler": "lr_scheduler",
}
"""Argument names of other frameworks, with MXNet's."""
Index = int | str
State = Any
C = TypeVar("C", bound="type[Optimizer]")


@dataclass(frozen=True)
class OperatorUpdate:
    """One weight's update by an operator that writes its first input in place.

    Attributes:
        op: "sgd_mom_update", …
        inputs: weight, gradient, states, in the operator's order.
        attrs: the parameters that all weights share.
        own: the parameters of this weight: rate, decay.
    """

    op: str
    inputs: Sequence[NDArray]
    attrs: Mapping[str, Any]
    own: Mapping[str, Any]


class Optimizer:
    """Base of optimizers.

    Args:
        rescale_grad: what gradients are multiplied with first; `Module` sets 1 / batch size.
        param_idx2name: names by index, for the multipliers.
        wd: weight decay (L2), on weights and gammas only.
        clip_gradient: gradients are clipped to [-c, c] after rescaling; None for not.
        learning_rate: the rate; 0.01 when there is no scheduler either.
        lr_scheduler: the rate as a function of the number of updates.
        sym: the symbol, whose `__lr_mult__` and `__wd_mult__` attributes hold.
        begin_num_update: where counting starts, for training that goes on.
        multi_precision: keep a float32 copy of float16 weights and update that.
        param_dict: objects with `lr_mult` and `wd_mult` by index; they go before names.

    Raises:
        TypeError: a rate that is no number, or a scheduler that is no function: a class that was not called.
    """

    opt_registry: dict[str, type[Optimizer]] = {}

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: Mapping[Any, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: Any = None,
        sym: Any = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        for name, value in {"learning_rate": learning_rate, "wd": wd, "clip_gradient": clip_gradient}.items():
            if value is not None and not is_number(value):
                raise TypeError(f"optimizer: {name}: expected a number, got {value_text(value)}")
        if isinstance(lr_scheduler, type) or not (lr_scheduler is None or callable(lr_scheduler)):
            raise TypeError(
                "optimizer: lr_scheduler: expected one such as mx.lr_scheduler.FactorScheduler(1000, 0.5), "
                f"got {value_text(lr_scheduler)}"
            )
        if lr_scheduler is None and learning_rate is None:
            learning_rate = 0.01
        if lr_scheduler is not None and learning_rate is not None and lr_scheduler.base_lr != learning_rate:
            warnings.warn(
                f"optimizer: learning_rate {learning_rate:g} takes the place of the scheduler's base_lr, "
                f"{lr_scheduler.base_lr:g}",
                UserWarning,
                stacklevel=user_level(),
            )
            lr_scheduler.base_lr = learning_rate
        if param_idx2name is not None and not isinstance(param_idx2name, Mapping):
            raise AssertionError(
                f"param_idx2name: expected a dict of names by index, got {type(param_idx2name).__name__}"
            )
        self.rescale_grad = rescale_grad
        self.lr_scheduler = lr_scheduler
        self.lr = learning_rate
        self.wd = wd
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.begin_num_update = begin_num_update
        self.num_update = begin_num_update
        self._index_update_count: dict[Index, int] = {}
        self.idx2name: dict[Any, str] = dict(param_idx2name or {})
        self.sym_info = (sym.attr_dict(), sym.list_arguments()) if sym is not None else ()
        self.param_dict = dict(param_dict or {})
        self.lr_mult: dict[Any, float] = {}
        self.wd_mult: dict[Any, float] = {}
        self.set_lr_mult({})
        self.set_wd_mult({})

    @staticmethod
    def register(klass: C) -> C:
        """Class decorator: make an optimizer known by its lower-case name."""
        name = klass.__name__.lower()
        known = Optimizer.opt_registry.get(name)
        if known is not None:
            warnings.warn(
                f"optimizer {name!r}: {klass.__module__}.{klass.__name__} takes the place of "
                f"{known.__module__}.{known.__name__}",
                stacklevel=2,
            )
        Optimizer.opt_registry[name] = klass
        return klass

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> Optimizer:
        """An optimizer by name.

        Raises:
            ValueError: nobody registered it.
            TypeError: it is no name; or an argument that it does not take, with what it takes.
        """
        if not isinstance(name, str):
            raise TypeError(f"optimizer: expected a name such as 'sgd', got {value_text(name)}")
        if name.lower() not in Optimizer.opt_registry:
            known = ", ".join(sorted(Optimizer.opt_registry))
            raise ValueError(f"optimizer {name!r}: {meant(name, Optimizer.opt_registry)}expected one of {known}")
        klass = Optimizer.opt_registry[name.lower()]
        _check_arguments(name, klass, kwargs)
        return klass(**kwargs)

    @property
    def learning_rate(self) -> float:
        """The rate now."""
        return self._rate()

    def _rate(self) -> float:
        if self.lr_scheduler is not None:
            return float(self.lr_scheduler(self.num_update))
        assert self.lr is not None
        return self.lr

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate.

        Raises:
            UserWarning: a scheduler has it.
        """
        if self.lr_scheduler is not None:
            raise UserWarning(
                "set_learning_rate: this optimizer's rate comes from its lr_scheduler: change the scheduler's base_lr"
            )
        self.lr = lr

    def set_lr_scale(self, args_lrscale: Mapping[Any, float]) -> None:
        """MXNet's old name for `set_lr_mult`, an error as there.

        Raises:
            DeprecationWarning: always.
        """
        raise DeprecationWarning("set_lr_scale: expected set_lr_mult(args_lr_mult), which has taken its place")

    def create_state(self, index: Index, weight: NDArray) -> State:
        """Return the optimizer's state of a weight: None, an array, or a tuple of arrays."""
        return None

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> State:
        """As `create_state`; with `multi_precision`, for float16 weights, (float32 copy, state of the copy)."""
        if weight.dtype == np.float16:
            if self.multi_precision:
                copy = weight.astype("float32")
                return (copy, self.create_state(index, copy))
            warnings.warn(
                f"{type(self).__name__}: weights of float16 are updated in float16, where small steps are lost: "
                "multi_precision=True keeps a float32 copy",
                stacklevel=user_level(),
            )
        return self.create_state(index, weight)

    def step(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> OperatorUpdate | None:
        """The update as an operator call, counted; None for an optimizer that computes in `update`."""
        return None

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        """Update one weight in place, and its state."""
        call = self.step(index, weight, grad, state)
        if call is None:
            raise NotImplementedError(f"{type(self).__name__} must define update() or step()")
        nd.invoke_update([call])

    def update_multi_precision(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        """As `update`, on the float32 copy where there is one."""
        if not self._has_copy(weight):
            self.update(index, weight, grad, state)
            return
        copy, own = state
        self.update(index, copy, grad.astype("float32"), own)
        weight[:] = copy.astype("float16")

    def _has_copy(self, weight: NDArray) -> bool:
        return bool(self.multi_precision and weight.dtype == np.float16)

    def _symbol_mults(self, key: str) -> dict[Any, float]:
        if not self.sym_info:
            return {}
        attrs, names = self.sym_info
        return {name: float(attrs[name][key]) for name in names if key in attrs.get(name, {})}

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Factors of the rate by name or index; the symbol's `__lr_mult__` hold where none is given."""
        self.lr_mult = self._symbol_mults("__lr_mult__") | dict(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Factors of the decay by name or index.

        Names that end neither in `_weight` nor in `_gamma` get 0, unless the symbol's `__wd_mult__` or `args_wd_mult`
        say otherwise.
        """
        undecayed = {name: 0.0 for name in self.idx2name.values() if not name.endswith(("_weight", "_gamma"))}
        self.wd_mult = undecayed | self._symbol_mults("__wd_mult__") | dict(args_wd_mult)

    def _update_count(self, index: Index | Sequence[Index]) -> None:
        several: Sequence[Index] = [index] if isinstance(index, (int, str)) else index
        for one in several:
            count = self._index_update_count.get(one, self.begin_num_update) + 1
            self._index_update_count[one] = count
            self.num_update = max(count, self.num_update)

    def _mult(self, index: Index, table: Mapping[Any, float], which: str) -> float:
        if index in self.param_dict:
            return float(getattr(self.param_dict[index], which))
        if index in table:
            return table[index]
        return table.get(self.idx2name[index], 1.0) if index in self.idx2name else 1.0

    def _get_lrs(self, indices: Sequence[Index]) -> list[float]:
        rate = self._rate()
        return [rate * self._mult(index, self.lr_mult, "lr_mult") for index in indices]

    def _get_lr(self, index: Index) -> float:
        return self._get_lrs([index])[0]

    def _get_wds(self, indices: Sequence[Index]) -> list[float]:
        return [self.wd * self._mult(index, self.wd_mult, "wd_mult") for index in indices]

    def _get_wd(self, index: Index) -> float:
        return self._get_wds([index])[0]

    def _counted(self, index: Index) -> tuple[float, float, int]:
        """Count an update of a weight; its rate, its decay and how often it was updated."""
        self._update_count(index)
        return self._get_lr(index), self._get_wd(index), self._index_update_count[index]

    def _common(self, **attrs: Any) -> dict[str, Any]:
        """The parameters that update operators share, and `attrs`."""
        shared: dict[str, Any] = {"rescale_grad": self.rescale_grad, **attrs}
        if self.clip_gradient:
            shared["clip_gradient"] = self.clip_gradient
        return shared

    def _scaled(self, grad: NDArray) -> NDArray:
        """A gradient rescaled and clipped, for optimizers that compute with array operators."""
        grad = grad * self.rescale_grad
        return grad if self.clip_gradient is None else self._clipped(grad)

    def _clipped(self, grad: NDArray) -> NDArray:
        limit = self.clip_gradient
        return grad if limit is None else nd.clip(grad, -limit, limit)


def zeros_like(weight: NDArray, dtype: Any = None) -> NDArray:
    """A state of a weight's shape, type and device."""
    return nd.zeros(weight.shape, weight.context, dtype=dtype or weight.dtype)


def bias_corrected(rate: float, beta1: float, beta2: float, t: int) -> float:
    """Adam's rate at step t, with both moments' start at 0 made up for."""
    return rate * math.sqrt(1.0 - beta2**t) / (1.0 - beta1**t)


register = Optimizer.register
create = Optimizer.create_optimizer


def _check_arguments(name: str, klass: type[Optimizer], arguments: Mapping[str, Any]) -> None:
    """TypeError for an argument that neither the class nor one that it hands the rest on to takes."""
    taken: list[str] = []
    defaults: dict[str, Any] = {}
    for base in klass.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue  # the next class's takes the arguments
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        taken += [
            one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name not in ("self", *taken)
        ]
        defaults = {one.name: one.default for one in parameters} | defaults
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    for argument, value in arguments.items():
        if argument not in taken:
            near = (
                [ELSEWHERE[argument]] if argument in ELSEWHERE else difflib.get_close_matches(argument, taken, 1, 0.6)
            )
            expected = f"expected {near[0]}" if near and near[0] in taken else f"expected some of {', '.join(taken)}"
            raise TypeError(f"optimizer {name!r}: {expected}, got {argument!r}")
        default = defaults.get(argument)
        if isinstance(default, float) and isinstance(value, str):
            raise TypeError(f"optimizer {name!r}: {argument}: expected a number, got {value!r}")
