"""BucketingModule: one network for inputs of several lengths; a module for each, over the same parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opbox_protocol.signal_shield import whole

from ..base import value_text
from ..checkpoint import checkpoint_file, load_params
from ..initializer import Uniform
from ..ndarray import NDArray, array, load, save
from ..symbol import load as load_symbol
from .base_module import BaseModule
from .module import Module

__all__ = ["BucketingModule"]

SymGen = Callable[[Any], tuple[Any, Sequence[str], Sequence[str]]]


class BucketingModule(BaseModule):
    """Modules by bucket key, made when a batch with that key first comes.

    Args:
        sym_gen: from a bucket key to (symbol, data names, label names).
        default_bucket_key: the bucket that `bind` binds; its symbol must have all parameters.
        logger, context, work_load_list, fixed_param_names, state_names, group2ctxs, compression_params: as of `Module`.

    Example:
        >>> mod = mx.mod.BucketingModule(lambda length: (unrolled(length), ("data",), ("softmax_label",)), 40)
        >>> mod.fit(batches_with_bucket_keys, num_epoch=5)
    """

    def __init__(
        self,
        sym_gen: SymGen,
        default_bucket_key: Any = None,
        logger: Any = logging,
        context: Any = None,
        work_load_list: Any = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Any = None,
    ) -> None:
        super().__init__(logger)
        if default_bucket_key is None:
            raise AssertionError("default_bucket_key: expected the key of the largest bucket, got None")
        self._sym_gen = sym_gen
        self._symbols: dict[Any, Any] = {}
        self._default_bucket_key = default_bucket_key
        self._options = {
            "logger": logger,
            "context": context,
            "work_load_list": work_load_list,
            "group2ctxs": group2ctxs,
            "fixed_param_names": fixed_param_names,
            "state_names": state_names,
            "compression_params": compression_params,
        }
        self._buckets: dict[Any, Module] = {}
        self._monitor: Any = None
        self._bound_for: dict[str, Any] = {}
        self._current: Module = self._new(default_bucket_key)
        self._default: Module = self._current

    @property
    def _curr_module(self) -> Module:
        """The current bucket's module, by MXNet's name."""
        return self._current

    def _parts(self) -> list[Module]:
        """The modules that a training's checkpoint is of."""
        return [self._default, *(module for module in self._buckets.values() if module is not self._default)]

    def _new(self, bucket_key: Any) -> Module:
        parts = self._sym_gen(bucket_key)
        if not isinstance(parts, tuple | list) or len(parts) != 3:
            raise TypeError(
                f"sym_gen: expected (symbol, data_names, label_names) to be returned, got {value_text(parts)}"
            )
        symbol, data_names, label_names = parts
        symbol = self._symbols.get(bucket_key, symbol)
        return Module(symbol, data_names, label_names, **self._options)

    # ---- what it is

    @property
    def data_names(self) -> list[str]:
        return self._current.data_names

    @property
    def output_names(self) -> list[str]:
        return self._current.output_names

    @property
    def data_shapes(self) -> list[Any]:
        return self._current.data_shapes

    @property
    def label_shapes(self) -> list[Any] | None:
        return self._current.label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return self._current.output_shapes

    @property
    def symbol(self) -> Any:
        return self._current.symbol

    # ---- checkpoints

    def save_checkpoint(self, prefix: str, epoch: int, remove_amp_cast: bool = False) -> None:
        """Write `<prefix>-<epoch>.params`, `<prefix>.buckets`, and `<prefix>-<key>-symbol.json` of each bucket.

        Raises:
            AssertionError: nothing is bound yet.
            ValueError: a bucket key is no integer, which the file of the buckets cannot hold.
        """
        if not self._buckets:
            raise AssertionError("save_checkpoint: expected a module with buckets, got none: bind it first")
        for key in self._buckets:
            if not isinstance(key, int):
                raise ValueError(f"save_checkpoint: expected integers as bucket keys, got {key!r}: save_params saves")
        self.save_params(checkpoint_file(prefix, epoch, "params"))
        for key, module in self._buckets.items():
            module.symbol.save(f"{prefix}-{key}-symbol.json")
        save(f"{prefix}.buckets", array(list(self._buckets), dtype="int32"))

    @staticmethod
    def load(
        prefix: str, epoch: int, sym_gen: SymGen | None = None, default_bucket_key: Any = None, **kwargs: Any
    ) -> BucketingModule:
        """A module from a checkpoint; its parameters are set when it is bound.

        Args:
            prefix, epoch: as of `save_checkpoint`.
            sym_gen, default_bucket_key: as of `BucketingModule`; buckets of the checkpoint have its symbols.
            kwargs: as of `BucketingModule`.
        """
        keys = load(f"{prefix}.buckets")[0].asnumpy().astype(int).tolist()
        symbols = {key: load_symbol(f"{prefix}-{key}-symbol.json") for key in keys}
        return BucketingModule.load_dict(symbols, sym_gen, default_bucket_key, *load_params(prefix, epoch), **kwargs)

    @staticmethod
    def load_dict(
        sym_dict: Mapping[Any, Any] | None = None,
        sym_gen: SymGen | None = None,
        default_bucket_key: Any = None,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> BucketingModule:
        """A module of symbols by bucket key, and parameters that it is bound with.

        Raises:
            AssertionError: an argument is missing.
        """
        required = {
            "sym_dict": sym_dict,
            "sym_gen": sym_gen,
            "default_bucket_key": default_bucket_key,
            "arg_params": arg_params,
            "aux_params": aux_params,
        }
        missing = [name for name, value in required.items() if value is None]
        if sym_dict is None or sym_gen is None or missing:
            raise AssertionError(f"BucketingModule: {', '.join(missing)}: expected a value, got None")
        module = BucketingModule(sym_gen, default_bucket_key, **kwargs)
        module._symbols = dict(sym_dict)
        module._current = module._default = module._new(default_bucket_key)
        module._default._parameters.arguments = dict(arg_params or {})
        module._default._parameters.auxiliary = dict(aux_params or {})
        module._default.params_initialized = module.params_initialized = True
        return module

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
        """Bind the default bucket; the others follow as they are needed.

        Args:
            data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind, grad_req: as of `Module.bind`.
            shared_module: must be None: the buckets share among themselves.
        """
        if shared_module is not None:
            raise AssertionError("shared_module: expected None: the buckets share memory among themselves only")
        if self.binded and not force_rebind:
            self.logger.warning("bind: bound already, and stays so: force_rebind=True binds anew")
            return
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self._bound_for = {"for_training": for_training, "inputs_need_grad": inputs_need_grad, "grad_req": grad_req}
        self._default.bind(data_shapes, label_shapes, force_rebind=force_rebind, **self._bound_for)
        self._buckets = {self._default_bucket_key: self._default}
        self._current = self._default
        self.binded = True

    @whole
    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Make a bucket's module the current one, bound to these shapes if it is new."""
        self._check_ready(params=False)
        if bucket_key not in self._buckets:
            fresh = self._new(bucket_key)
            fresh.bind(data_shapes, label_shapes, shared_module=self._default, **self._bound_for)
            if self._monitor is not None:
                fresh.install_monitor(self._monitor)
            self._buckets[bucket_key] = fresh
        self._current = self._buckets[bucket_key]

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Bind the module for a batch that comes next; the current one stays."""
        super().prepare(data_batch, sparse_row_id_fn)
        self._check_ready()
        current = self._current
        self._switch_to(data_batch)
        self._current = current

    def _switch_to(self, batch: Any) -> None:
        key = getattr(batch, "bucket_key", None)
        if key is not None:
            self.switch_bucket(key, batch.provide_data, batch.provide_label)

    # ---- parameters and the optimizer

    def init_params(
        self,
        initializer: Any = Uniform(0.01),  # noqa: B008  (it holds no state)
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """As of `Module`, in the default bucket's module: the others use its arrays."""
        self._check_ready(params=False)
        self._default.init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of the parameters and auxiliary states, by name: the default bucket's, and what other buckets add."""
        self._check_ready()
        arg_params, aux_params = self._default.get_params()
        for module in self._buckets.values():
            if (
                not {*module._names.parameters} <= arg_params.keys()
                or not {*module._names.auxiliary} <= aux_params.keys()
            ):
                own_args, own_aux = module.get_params()
                arg_params, aux_params = own_args | arg_params, own_aux | aux_params
        return arg_params, aux_params

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """As of `Module`; all buckets use one optimizer."""
        self._check_ready()
        if self.optimizer_initialized and not force_init:
            self.logger.warning(
                "init_optimizer: there is an optimizer already, and it stays: force_init=True makes a new one"
            )
            return
        self._default.init_optimizer(kvstore, optimizer, optimizer_params, force_init=force_init)
        for module in self._buckets.values():
            if module is not self._default:
                module.borrow_optimizer(self._default)
        self.optimizer_initialized = True

    # ---- running

    def _run(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch in the module of its `bucket_key`."""
        self._check_ready()
        self._switch_to(data_batch)
        self._current._run(data_batch, is_train)

    @whole
    def backward(self, out_grads: Any = None) -> None:
        self._check_ready()
        self._current.backward(out_grads)

    @whole
    def update(self) -> None:
        self._check_ready(optimizer=True)
        self._current.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        self._check_ready()
        return self._current.get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray]:
        self._check_ready()
        return self._current.get_input_grads(merge_multi_context)

    def get_states(self, merge_multi_context: bool = True) -> list[NDArray]:
        self._check_ready()
        return self._current.get_states(merge_multi_context)

    def set_states(self, states: Any = None, value: Any = None) -> None:
        self._check_ready()
        self._current.set_states(states, value)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        self._check_ready()
        self._current.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        """Attach a monitor to the executors of all buckets, future ones included."""
        self._check_ready(params=False)
        self._monitor = mon
        for module in self._buckets.values():
            module.install_monitor(mon)

    def _flush(self) -> None:
        self._current._flush()
