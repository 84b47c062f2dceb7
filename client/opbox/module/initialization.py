"""Setting a module's parameters and making its optimizer. `Module` has these functions as its methods."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from ..base import user_level, value_text
from ..initializer import Uniform
from .training import Training
from .updates import create_kvstore

__all__ = ["init_optimizer", "init_params"]


def init_params(
    self: Any,
    initializer: Any = Uniform(0.01),  # noqa: B008  (it holds no state)
    arg_params: Mapping[str, Any] | None = None,
    aux_params: Mapping[str, Any] | None = None,
    allow_missing: bool = False,
    force_init: bool = False,
    allow_extra: bool = False,
) -> None:
    """Fill parameters and auxiliary states: from those given, the rest by the initializer.

    Args:
        initializer: for what `arg_params` and `aux_params` do not have.
        arg_params, aux_params: values by name; None for none.
        allow_missing: whether the given ones may be incomplete.
        force_init: do it again.
        allow_extra: whether the given ones may hold names that the symbol lacks; by default a warning tells of one.

    Raises:
        TypeError: the initializer is no function: a name, or a class that was not called.
        RuntimeError: a given dict lacks a name, without `allow_missing`.
        ValueError: the initializer has no rule for a name.
    """
    if self.params_initialized and not force_init:
        warnings.warn(
            "init_params: the parameters are set already, and stay: give force_init=True to set them anew",
            stacklevel=2,
        )
        return
    if isinstance(initializer, type) or not (initializer is None or callable(initializer)):
        raise TypeError(f"initializer: expected one such as mx.init.Xavier(), or None, got {value_text(initializer)}")
    attrs = self._symbol.attr_dict()
    self._parameters.initialize(self._bound, attrs, initializer, arg_params, aux_params, allow_missing)
    self.params_initialized = True
    self._flush()
    if not allow_extra and (unknown := self._parameters.unknown(arg_params, aux_params)):
        warnings.warn(unknown, stacklevel=user_level())


def init_optimizer(
    self: Any,
    kvstore: Any = "local",
    optimizer: Any = "sgd",
    optimizer_params: Any = (("learning_rate", 0.01),),
    force_init: bool = False,
) -> None:
    """Make the optimizer. Gradients are rescaled by 1 / batch size unless `optimizer_params` says otherwise.

    Args:
        kvstore: how several devices exchange gradients: "local" or "device", which are one here, or a store of
            `mx.kv.create`. None: nothing is exchanged, and each device trains weights of its own. One device needs
            none, and uses a store that is passed as an object.
        optimizer: a name, or an `Optimizer`.
        optimizer_params: its arguments: a dict, or pairs.
        force_init: do it again.
    """
    self._check_ready()
    if self.optimizer_initialized and not force_init:
        self.logger.warning(
            "init_optimizer: there is an optimizer already, and it stays: force_init=True makes a new one"
        )
        return
    replicas, parameters = self._bound.replicas, self._names.parameters
    first = {name: replicas[0].args[name] for name in parameters}
    store, on_store = create_kvstore(kvstore, len(replicas), first)
    if store is not None and self._compression_params:
        compressing: Any = store
        compressing.set_gradient_compression(self._compression_params)
    batch_size = self._bound.batch_size()
    self._training = Training(
        optimizer, optimizer_params, self.symbol, self._names, batch_size, len(replicas), store, on_store
    )
    self._training.begin(replicas, parameters)
    self.optimizer_initialized = True
    if self._states_file is not None:
        self.load_optimizer_states(self._states_file)
        self._states_file = None
