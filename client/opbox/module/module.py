"""Module: a symbol bound on one device, with parameters and an optimizer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..context import Context, current_context
from ..initializer import Uniform
from ..io import DataDesc
from ..model import load_checkpoint
from ..ndarray import NDArray
from ..optimizer import Optimizer, Updater
from .base_module import BaseModule
from .binding import Binding
from .feed import label_value
from .names import ArgumentNames
from .parameters import Parameters
from .training import Training

__all__ = ["Module"]


class Module(BaseModule):
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
        super().__init__(logger)
        self._symbol = symbol
        self._context = _one_context(context, logger)
        self._names = ArgumentNames(symbol, data_names, label_names, state_names, fixed_param_names)
        self._parameters = Parameters(self._names)
        self._binding: Binding | None = None
        self._training: Training | None = None
        self._states_file: str | None = None

    # ---- what it is

    @property
    def data_names(self) -> list[str]:
        return self._names.data

    @property
    def label_names(self) -> list[str]:
        """Names of the label inputs."""
        return self._names.labels

    @property
    def output_names(self) -> list[str]:
        return list(self._names.outputs)

    @property
    def data_shapes(self) -> list[DataDesc]:
        return self._bound.data

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        return self._bound.labels

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, out.shape) for name, out in zip(self._names.outputs, self._exec.outputs, strict=True)]

    @property
    def _bound(self) -> Binding:
        self._check_ready(params=False)
        assert self._binding is not None
        return self._binding

    @property
    def _exec(self) -> Any:
        """The executor for the input shapes at hand."""
        return self._bound.executors.current

    @property
    def _trained(self) -> Training:
        self._check_ready(optimizer=True)
        assert self._training is not None
        return self._training

    @property
    def _optimizer(self) -> Optimizer:
        return self._trained.optimizer

    @property
    def _updater(self) -> Updater:
        return self._trained.updater

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
        mod._parameters.arguments, mod._parameters.auxiliary = args, auxs
        mod.params_initialized = True
        if load_optimizer_states:
            mod._states_file = f"{prefix}-{epoch:04d}.states"
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
        self._trained.save_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Take the optimizer's states from a file."""
        self._trained.load_states(fname)

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
        if inputs_need_grad and not for_training:
            raise AssertionError("inputs_need_grad: there are no gradients without for_training")
        requests = self._names.requests(grad_req if for_training else "null", inputs_need_grad)
        shared_binding = shared_module._bound if shared_module is not None else None
        self._binding = Binding(
            self._symbol, self._context, self._names, data_shapes, label_shapes, requests, shared_binding
        )
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self.binded = True
        if shared_module is not None:
            self.params_initialized = True
            shared = shared_module._parameters
            self._parameters.arguments, self._parameters.auxiliary = shared.arguments, shared.auxiliary
            if shared_module.optimizer_initialized:
                self.borrow_optimizer(shared_module)
        elif self.params_initialized:
            self._parameters.write_to(self._bound.executors)

    def _forget_binding(self) -> None:
        if self.binded:
            self._parameters.copy_from(self._bound.executors)
        self.binded = False
        self._binding = None

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Use other input shapes from here on; the parameters stay."""
        self._bound.reshape(data_shapes, label_shapes)

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
        if not allow_extra:
            self._parameters.check_known(arg_params, aux_params)
        attrs = self._symbol.attr_dict()
        self._parameters.initialize(self._bound.executors, attrs, initializer, arg_params, aux_params, allow_missing)
        self.params_initialized = True
        self._flush()

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

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of the parameters and auxiliary states, by name; good until the next call."""
        if not self.params_initialized:
            self._check_ready()
        if self._parameters.changed:
            self._parameters.copy_from(self._bound.executors)
        return self._parameters.arguments, self._parameters.auxiliary

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
        self._training = Training(optimizer, optimizer_params, self.symbol, self._names, self._bound.batch_size())
        self.optimizer_initialized = True
        if self._states_file is not None:
            self.load_optimizer_states(self._states_file)
            self._states_file = None

    def borrow_optimizer(self, shared_module: Module) -> None:
        """Use another module's optimizer, states included."""
        self._training = shared_module._trained
        self.optimizer_initialized = True

    def update(self) -> None:
        """Update all parameters that have gradients, by one command."""
        self._trained.update(self._bound.executors)
        self._parameters.changed = True

    # ---- running

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch; of another size than bound, the module is reshaped.

        Args:
            data_batch: `data` and perhaps `label`: lists of arrays of any kind.
            is_train: the mode; None for that of `bind`.
        """
        self._check_ready()
        # Whatever is recorded belongs to the step before: it leaves now, and this step is a request of its own.
        self._flush()
        self._bound.forward(data_batch, self.for_training if is_train is None else is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients that `bind` asked for.

        Args:
            out_grads: gradients of the outputs, one an output, for networks that do not end in a loss.
        """
        self._check_ready()
        if not self.for_training:
            raise AssertionError("backward: the module was bound without gradients: bind it with for_training=True")
        self._bound.backward(out_grads)

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The outputs of the batch run last; each belongs to the executor, and changes with the next batch."""
        self._check_ready()
        return list(self._exec.outputs)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The gradients of the data of the batch run last, in the order of `data_shapes`."""
        self._check_ready()
        if not self.inputs_need_grad:
            raise AssertionError("re-bind with inputs_need_grad=True to have gradients of the inputs")
        return [self._exec.grad_dict[desc.name] for desc in self.data_shapes]

    def get_states(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The arrays of `state_names`."""
        self._check_ready()
        return [self._exec.arg_dict[name] for name in self._names.states]

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the arrays of `state_names`: each to one of `states`, or all to `value`."""
        self._check_ready()
        if (states is None) == (value is None):
            raise AssertionError("set_states: expected either states or value")
        for position, state in enumerate(self.get_states()):
            state[:] = value if states is None else states[position]

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Take the outputs of the batch run last into a metric, without waiting for them.

        Args:
            eval_metric: an `EvalMetric`.
            labels: the batch's labels.
            pre_sliced: concerns several devices; must be False.
        """
        if pre_sliced:
            raise AssertionError("pre_sliced: there is one device, and no slices")
        names = [desc.name for desc in self._bound.labels or ()]
        values = {name: label_value(label) for name, label in zip(names, labels or (), strict=False)}
        wanted = eval_metric.output_names if eval_metric.output_names is not None else self._names.outputs
        outputs = zip(self._names.outputs, self._exec.outputs, strict=True)
        eval_metric.update_later(values, {name: out._fetch_async() for name, out in outputs if name in wanted})

    def install_monitor(self, mon: Any) -> None:
        """Let a `Monitor` see the executor's arrays."""
        mon.install(self._exec)

    def _flush(self) -> None:
        self._context.session.flush()


def _one_context(context: Any, logger: Any) -> Context:
    if isinstance(context, (list, tuple)):
        if len(context) > 1:
            logger.warning("context: %d devices given; a module runs on one, and uses %s", len(context), context[0])
        context = context[0]
    return context if context is not None else current_context()
