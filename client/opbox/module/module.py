"""Module: a symbol bound on one device, with parameters and an optimizer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import optimizer as opt
from ..initializer import InitDesc, Uniform
from ..io import DataDesc
from ..model import load_checkpoint
from ..ndarray import NDArray
from .bound_module import BoundModule

__all__ = ["Module"]


class Module(BoundModule):
    """A symbol with parameters, for training and inference.

    Args:
        symbol: the network.
        data_names, label_names: which arguments are fed from `batch.data` and `batch.label`, in this order.
        logger: where `fit` writes.
        context: the device; of a list, the first is used.
        work_load_list, group2ctxs, compression_params: concern several devices; taken and ignored.
        fixed_param_names: parameters that are not trained.
        state_names: arguments that keep their values from batch to batch (`set_states`).

    Raises:
        ValueError: a name that is no argument of the symbol.

    Example:
        >>> mod = mx.mod.Module(net, data_names=("data",), label_names=("softmax_label",))
        >>> mod.bind([("data", (100, 784))], [("softmax_label", (100,))])
        >>> mod.init_params(mx.init.Xavier())
        >>> mod.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.1})
        >>> mod.forward_backward(batch); mod.update()
    """

    def __init__(
        self,
        symbol: Any,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Any = None,
        work_load_list: Any = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Any = None,
    ) -> None:
        super().__init__(symbol, data_names, label_names, logger, context, fixed_param_names, state_names)
        self._arg_params: dict[str, Any] = {}
        self._aux_params: dict[str, Any] = {}
        self._params_dirty = False
        self._optimizer: opt.Optimizer | None = None
        self._updater: opt.Updater | None = None
        self._preload_opt_states: str | None = None

    # ---- checkpoints

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Module:
        """A module from a checkpoint; its parameters are set when it is bound.

        Args:
            prefix, epoch: as of `save_checkpoint`.
            load_optimizer_states: also take the optimizer's states, at `init_optimizer`.
            kwargs: as of `Module`.
        """
        symbol, args, auxs = load_checkpoint(prefix, epoch)
        mod = Module(symbol=symbol, **kwargs)
        mod._arg_params = args
        mod._aux_params = auxs
        mod.params_initialized = True
        if load_optimizer_states:
            mod._preload_opt_states = f"{prefix}-{epoch:04d}.states"
        return mod

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Write `<prefix>-symbol.json` and `<prefix>-<epoch>.params`, and if asked `.states`."""
        self._symbol.save(f"{prefix}-symbol.json")
        param_name = f"{prefix}-{epoch:04d}.params"
        self.save_params(param_name)
        logging.info("checkpoint written: %s", param_name)
        if save_optimizer_states:
            state_name = f"{prefix}-{epoch:04d}.states"
            self.save_optimizer_states(state_name)
            logging.info("optimizer states written: %s", state_name)

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer's states to a file (see `optimizer.Updater.get_states`)."""
        Path(fname).write_bytes(self._the_updater().get_states())

    def load_optimizer_states(self, fname: str) -> None:
        """Take the optimizer's states from a file."""
        self._the_updater().set_states(Path(fname).read_bytes())

    def _the_updater(self) -> opt.Updater:
        self._check_ready(optimizer=True)
        assert self._updater is not None
        return self._updater

    # ---- binding

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
    ) -> None:
        """Make an executor for the shapes.

        Args:
            data_shapes, label_shapes: `DataDesc`s or pairs (name, shape), as an iterator provides them.
            for_training: whether gradients are wanted.
            inputs_need_grad: whether gradients of the data are wanted too.
            force_rebind: forget an executor made before.
            shared_module: a bound module whose parameters this one shares.
            grad_req: "write", "add" or "null", for all or by argument (a list or a dict).

        Raises:
            ValueError: data names that are not the module's.
            ShapeError: shapes that do not go together.
        """
        if force_rebind:
            self._forget_binding()
        if self.binded:
            self.logger.warning("bind: bound already, and stays so: force_rebind=True binds anew")
            return
        if shared_module is not None:
            if not isinstance(shared_module, Module):
                raise AssertionError(f"shared_module: expected a Module, got {type(shared_module).__name__}")
            shared_module._check_ready()
        self._bind_executors(data_shapes, label_shapes, for_training, inputs_need_grad, shared_module, grad_req)
        if shared_module is not None:
            self.params_initialized = True
            self._arg_params, self._aux_params = shared_module._arg_params, shared_module._aux_params
            if shared_module.optimizer_initialized:
                self.borrow_optimizer(shared_module)
        elif self.params_initialized:
            self._fill(self._arg_params, self._aux_params)

    def _forget_binding(self) -> None:
        if self.binded and self._params_dirty:
            self._sync_params()
        self.binded = False
        self._executors = None
        self._data_shapes = []
        self._label_shapes = None

    # ---- parameters

    def init_params(
        self,
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
            allow_extra: whether the given ones may hold names that the symbol lacks.

        Raises:
            RuntimeError: a given dict lacks a name, without `allow_missing`.
            ValueError: it has a name too many, without `allow_extra`; or the initializer has no rule for a name.
        """
        if self.params_initialized and not force_init:
            warnings.warn(
                "init_params: the parameters are set already, and stay: give force_init=True to set them anew",
                stacklevel=2,
            )
            return
        bound = self._bound
        attrs = self._symbol.attr_dict()
        self._check_extra(arg_params, aux_params, allow_extra)
        for held, names, given in (
            (bound.args, self._param_names, arg_params),
            (bound.aux, self._aux_names, aux_params),
        ):
            for name in sorted(names):
                desc, array = InitDesc(name, attrs.get(name)), held[name]
                if given is not None and name in given:
                    _assign(array, given[name], name)
                elif given is not None and not allow_missing:
                    raise RuntimeError(f"{name} is not presented")
                elif initializer is not None:
                    initializer(desc, array)
        self.params_initialized = True
        self._params_dirty = True
        self._flush()

    def _check_extra(
        self, arg_params: Mapping[str, Any] | None, aux_params: Mapping[str, Any] | None, allow_extra: bool
    ) -> None:
        if allow_extra:
            return
        arguments = set(self._symbol.list_arguments())
        for given, known, kind in ((arg_params, arguments, "arguments"), (aux_params, self._aux_names, "aux states")):
            for name in given or ():
                if name not in known:
                    raise ValueError(f"parameters: {name!r} is none of the {kind}: allow_extra=True leaves it out")

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        if self.params_initialized and not force_init:
            warnings.warn(
                "set_params: the parameters are set already, and stay: give force_init=True to set them anew",
                stacklevel=2,
            )
            return
        super().set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)

    def _fill(self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]) -> None:
        """Write parameters that are known to the executor's arrays."""
        for held, given in ((self._bound.args, arg_params), (self._bound.aux, aux_params)):
            for name, array in held.items():
                if name in given:
                    _assign(array, given[name], name)

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of the parameters and auxiliary states, by name; good until the next call."""
        if not self.params_initialized:
            self._check_ready()
        if self._params_dirty:
            self._sync_params()
        return self._arg_params, self._aux_params

    def _sync_params(self) -> None:
        bound = self._bound
        self._arg_params = {name: bound.args[name].copy() for name in self._param_names}
        self._aux_params = {name: bound.aux[name].copy() for name in self._aux_names}
        self._params_dirty = False

    # ---- the optimizer

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Make the optimizer. Gradients are rescaled by 1 / batch size unless `optimizer_params` says otherwise.

        Args:
            kvstore: taken for its callers' sake.
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
        rescale_grad = 1.0 / self._batch_size()
        names = dict(enumerate(self._param_names))
        if isinstance(optimizer, str):
            params = {"rescale_grad": rescale_grad, **dict(optimizer_params)}
            optimizer = opt.create(optimizer, sym=self.symbol, param_idx2name=names, **params)
        else:
            if not isinstance(optimizer, opt.Optimizer):
                raise AssertionError(f"optimizer: expected a name or an Optimizer, got {type(optimizer).__name__}")
            if optimizer.rescale_grad != rescale_grad:
                warnings.warn(
                    f"init_optimizer: rescale_grad of the optimizer given is {optimizer.rescale_grad:g}; "
                    f"the mean over a batch would be {rescale_grad:g}",
                    stacklevel=2,
                )
            if not optimizer.idx2name:
                optimizer.idx2name = names
        self._optimizer = optimizer
        self._updater = opt.get_updater(optimizer)
        self.optimizer_initialized = True
        if self._preload_opt_states is not None:
            self.load_optimizer_states(self._preload_opt_states)
            self._preload_opt_states = None

    def _batch_size(self) -> int:
        for desc in self.data_shapes:
            axis = DataDesc.get_batch_axis(desc.layout)
            if axis >= 0:
                return int(desc.shape[axis])
        raise AssertionError("data_shapes: expected an array whose layout has a batch axis N")

    def borrow_optimizer(self, shared_module: Module) -> None:
        """Use another module's optimizer, states included."""
        shared_module._check_ready(optimizer=True)
        self._optimizer = shared_module._optimizer
        self._updater = shared_module._updater
        self.optimizer_initialized = True

    def update(self) -> None:
        """Update all parameters that have gradients, by one command."""
        updater, args, grads = self._the_updater(), self._bound.args, self._bound.grads
        trained = [(index, name) for index, name in enumerate(self._param_names) if name in grads]
        updater(
            [index for index, _ in trained],
            [grads[name] for _, name in trained],
            [args[name] for _, name in trained],
        )
        self._params_dirty = True


def _assign(array: NDArray, value: Any, name: str) -> None:
    """Write a parameter's given value, its shape checked first."""
    if value is array:
        return
    if tuple(value.shape) != array.shape:
        raise ValueError(f"{name}: expected a value of shape {array.shape}, got {tuple(value.shape)}")
    array[:] = value
