"""Module: a symbol bound on a device, or on several that share each batch, with parameters and an optimizer."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from opbox_protocol.signal_shield import whole

from .. import connection
from ..base import user_level, value_text
from ..checkpoint import checkpoint_file, load_checkpoint
from ..context import Context, context_or_current
from ..foreign import is_array
from ..initializer import Uniform
from ..io import DataDesc
from ..optimizer import Optimizer, Updater
from ..publishing import CONFIG_FILE, publish_call
from .base_module import BaseModule
from .binding import Binding, merged
from .executor_group import DataParallelExecutorGroup
from .feed import label_value
from .names import ArgumentNames
from .nan_watch import OutputWatch
from .parameters import Parameters
from .publishing import config_of, contents
from .showing import html
from .training import Training
from .updates import create_kvstore

__all__ = ["Module"]


class Module(BaseModule):
    """A symbol with parameters, for training and inference.

    Args:
        symbol: the network.
        data_names, label_names: which arguments are fed from `batch.data` and `batch.label`, in this order.
        logger: where `fit` writes.
        context: the device; or a list: each computes its slice of a batch, and the gradients are added up.
        work_load_list: a number for each device, which its slice is in proportion to; equal by default.
        group2ctxs: contexts by the groups of `AttrScope(ctx_group=…)`: a dict, or a list with one for each device. A
            value may be a list with a context for each device.
        compression_params: of `KVStore.set_gradient_compression`, for a store of type "device"; None for none.
        fixed_param_names: parameters that are not trained.
        state_names: arguments that keep their values from batch to batch (`set_states`).

    Raises:
        ValueError: a name that is no argument of the symbol; no contexts.
        AssertionError: a work load too many, or too few.

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
        if not hasattr(symbol, "list_arguments"):
            raise TypeError(f"Module: symbol: expected a Symbol, got {value_text(symbol)}")
        self._symbol = symbol
        self._context = _contexts(context)
        self._group2ctxs = group2ctxs
        self._compression_params = compression_params
        self._work_loads = list(work_load_list or [1] * len(self._context))
        if len(self._work_loads) != len(self._context):
            raise AssertionError(
                f"work_load_list: expected a number for each device ({len(self._context)}), got {len(self._work_loads)}"
            )
        self._names = ArgumentNames(symbol, data_names, label_names, state_names, fixed_param_names)
        self._parameters = Parameters(self._names)
        self._binding: Binding | None = None
        self._training: Training | None = None
        self._states_file: str | None = None

    def _repr_html_(self) -> str:
        """Draw the module for a notebook: its data and labels, its parameters and outputs."""
        return html(self)

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
        size = self._bound.slices[-1].stop if self._bound.slices and len(self._context) > 1 else None
        shapes = [
            out.shape if size is None or axis < 0 else (*out.shape[:axis], size, *out.shape[axis + 1 :])
            for out, axis in zip(self._exec.outputs, self._bound.output_axes, strict=True)
        ]
        return list(zip(self._names.outputs, shapes, strict=True))

    @property
    def _bound(self) -> Binding:
        self._check_ready(params=False)
        assert self._binding is not None
        return self._binding

    @property
    def _exec(self) -> Any:
        """The first device's executor for the input shapes at hand."""
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
    def _updater(self) -> Updater | None:
        return None if self._trained.on_store else self._trained.updater

    @property
    def _kvstore(self) -> Any:
        return self._trained.store

    @property
    def _update_on_kvstore(self) -> bool:
        return self._trained.on_store

    @property
    def _exec_group(self) -> DataParallelExecutorGroup:
        return DataParallelExecutorGroup(self)

    def _sync_params_from_devices(self) -> None:
        """Copy the devices' parameters and auxiliary states to those of `get_params`, whoever wrote to them."""
        self._bound.executors.writes.value += 1
        self._parameters.copy_from(self._bound)

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
            mod._states_file = checkpoint_file(prefix, epoch, "states")
        return mod

    def save_checkpoint(
        self: Any, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Write `<prefix>-symbol.json` and `<prefix>-<epoch>.params`, and if asked `.states`."""
        self._symbol.save(f"{prefix}-symbol.json")
        param_name = checkpoint_file(prefix, epoch, "params")
        self.save_params(param_name)
        logging.info("checkpoint written: %s", param_name)
        if save_optimizer_states:
            state_name = checkpoint_file(prefix, epoch, "states")
            self.save_optimizer_states(state_name)
            logging.info("optimizer states written: %s", state_name)

    def publish(
        self,
        name: str,
        to: str | Sequence[str] = (),
        version: int | None = None,
        config: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Publish the symbol and its parameters as a model of the server, which serves it when this returns.

        Args:
            name: letters, digits, dashes and underlines. Other owners call it "OWNER.NAME".
            to: the owners who may call it beside you, or "everyone".
            version: its number, larger than those before; by default the next.
            config: the path of a model.toml; by default the shapes and types that the module is bound to, of any
                number of examples.

        Returns:
            `name`, `full_name`, `version`, `bytes` and `callers`.

        Raises:
            AssertionError: the module has no parameters yet.
            NotFoundError: the engine is in this process, and serves no models.
            StorageError: your quota on the server is used up.

        Example:
            >>> mod.fit(train, num_epoch=10)
            >>> mod.publish("lenet", to="everyone")["full_name"]
            'ann.lenet'
        """
        if not self.params_initialized:
            raise AssertionError("publish: expected a module with parameters, got none: call init_params or fit first")

        def write(prefix: str) -> None:
            self._symbol.save(f"{prefix}-symbol.json")
            self.save_params(f"{prefix}.params")

        files = contents(write)
        if config is None and self.binded:
            files[CONFIG_FILE] = config_of(self.data_shapes)
        call = publish_call(name, files, to, version, config)
        return connection.transport().call(*call).header

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
            self._symbol,
            self._context,
            self._work_loads,
            self._names,
            data_shapes,
            label_shapes,
            requests,
            shared_binding,
            self._group2ctxs,
        )
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self.binded = True
        if shared_module is not None:
            self.params_initialized = True
            if shared_module.optimizer_initialized:
                self.borrow_optimizer(shared_module)
        elif self.params_initialized:
            self._parameters.write_to(self._bound)

    def _forget_binding(self) -> None:
        if self.binded:
            self._parameters.copy_from(self._bound)
        self.binded = False
        self._binding = None

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Use other input shapes from now on; the parameters stay."""
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
            raise TypeError(
                f"initializer: expected one such as mx.init.Xavier(), or None, got {value_text(initializer)}"
            )
        attrs = self._symbol.attr_dict()
        self._parameters.initialize(self._bound, attrs, initializer, arg_params, aux_params, allow_missing)
        self.params_initialized = True
        self._flush()
        if not allow_extra and (unknown := self._parameters.unknown(arg_params, aux_params)):
            warnings.warn(unknown, stacklevel=user_level())

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
        self._check_ready(params=False)
        for what, values, names in (
            ("arg_params", arg_params, self._names.parameters),
            ("aux_params", aux_params, self._names.auxiliary),
        ):
            if values is None and names and not allow_missing:
                raise TypeError(f"set_params: {what}: expected arrays by name for {', '.join(names[:5])}, got None")
        if allow_missing and not allow_extra and (unknown := self._parameters.unknown(arg_params, aux_params)):
            raise ValueError(unknown)
        super().set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of the parameters and auxiliary states, by name; good until the next call."""
        if not self.params_initialized:
            self._check_ready()
        if self._binding is not None:
            self._parameters.copy_from(self._binding)
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

    def borrow_optimizer(self, shared_module: Module) -> None:
        """Use another module's optimizer, states included."""
        self._training = shared_module._trained
        self.optimizer_initialized = True

    @whole
    def update(self) -> None:
        """Update all parameters that have gradients, by one command."""
        self._trained.update(self._bound.replicas, self._names.parameters)
        self._bound.executors.writes.value += 1

    # ---- running

    def _run(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch; of another size than bound, the module is reshaped."""
        self._check_ready()
        self._bound.forward(data_batch, self.for_training if is_train is None else is_train)

    @whole
    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients that `bind` asked for.

        Args:
            out_grads: gradients of the outputs, one an output, for networks that do not end in a loss.
        """
        self._check_ready()
        if not self.for_training:
            raise AssertionError("backward: the module was bound without gradients: bind it with for_training=True")
        self._bound.backward(out_grads)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The outputs of the batch run last; each belongs to the executor, and changes with the next batch.

        Args:
            merge_multi_context: join the slices of several devices along the outputs' batch axes, on the first device;
                False: a list for each output, with its array on each device.

        Raises:
            AssertionError: no batch has been run, and the outputs' memory holds whatever it held before.
        """
        self._check_ready()
        if not self._bound.has_run:
            raise AssertionError(
                "get_outputs: expected a batch to have been run, got none yet: call forward(batch) first"
            )
        outputs = [list(parts) for parts in zip(*(one.current.outputs for one in self._bound.replicas), strict=True)]
        return merged(outputs, self._bound.output_axes) if merge_multi_context else outputs

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the data of the batch run last, in the order of `data_shapes`.

        Args:
            merge_multi_context: as of `get_outputs`.
        """
        self._check_ready()
        if not self.inputs_need_grad:
            raise AssertionError("re-bind with inputs_need_grad=True to have gradients of the inputs")
        gradients = [[one.current.grad_dict[desc.name] for one in self._bound.replicas] for desc in self.data_shapes]
        if not merge_multi_context:
            return gradients
        return merged(gradients, [DataDesc.get_batch_axis(desc.layout) for desc in self.data_shapes])

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The arrays of `state_names`.

        Args:
            merge_multi_context: False: a list for each state, with its array on each device; True is for one device.

        Raises:
            AssertionError: the states of several devices are asked for as one.
        """
        self._check_ready()
        replicas = self._bound.replicas
        states = [[one.current.arg_dict[name] for one in replicas] for name in self._names.states]
        if not merge_multi_context:
            return states
        if len(replicas) > 1:
            raise AssertionError(
                f"get_states: expected merge_multi_context=False on {len(replicas)} devices, got True: each device has "
                "states of its own"
            )
        return [arrays[0] for arrays in states]

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the arrays of `state_names`.

        Args:
            states: for each, in their order, a list of its arrays by device; or an array, which all devices get.
            value: what all of them are filled with.

        Raises:
            ValueShapeError: a state of another shape than bound.
            ValueError: another number of states.
        """
        self._check_ready()
        if (states is None) == (value is None):
            raise AssertionError("set_states: expected either states or value")
        bound = self.get_states(merge_multi_context=False)
        if states is None:
            for arrays in bound:
                for array in arrays:
                    array[:] = value
            return
        if len(states) != len(bound):
            names = ", ".join(self._names.states) or "none"
            raise ValueError(f"set_states: expected {len(bound)} states ({names}), got {len(states)}")
        for name, arrays, state in zip(self._names.states, bound, states, strict=True):
            by_device = isinstance(state, list | tuple) and len(state) == len(arrays) and is_array(state[0])
            for number, array in enumerate(arrays):
                array._fill(state[number] if by_device else state, f"set_states: {name}")

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Take the outputs of the batch run last into a metric, without waiting for them.

        Args:
            eval_metric: an `EvalMetric`.
            labels: the batch's labels.
            pre_sliced: whether `labels` has a list of labels for each device, its slice of the batch's.
        """
        descs = self._bound.labels or ()
        wanted = eval_metric.output_names if eval_metric.output_names is not None else self._names.outputs
        watch = OutputWatch.of(eval_metric)
        for number, replica in enumerate(self._bound.replicas):
            own = labels[number] if pre_sliced else self._bound.sliced(number, descs, labels or ())
            values = {desc.name: label_value(label) for desc, label in zip(descs, own, strict=False)}
            outputs = zip(self._names.outputs, replica.current.outputs, strict=True)
            fetched = {name: out._fetch_async() for name, out in outputs if name in wanted}
            if watch is not None:
                watch.take(fetched)
            eval_metric.update_later(values, fetched)

    def install_monitor(self, mon: Any) -> None:
        """Attach a `Monitor` to each device's executor."""
        for replica in self._bound.replicas:
            mon.install(replica.current)

    def _parts(self) -> list[Module]:
        """The modules that a training's checkpoint is of."""
        return [self]

    def _flush(self) -> None:
        for session in {context.session for context in self._context}:
            session.flush()


def _contexts(context: Any) -> list[Context]:
    if not isinstance(context, (list, tuple)):
        return [context_or_current(context, "context")]
    if not context:
        raise ValueError("context: expected a Context or a list of them, got an empty list")
    return [context_or_current(one, "context") for one in context]
