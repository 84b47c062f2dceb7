"""BaseModule: what every kind of module can do, over the methods that it defines: bind, forward, backward, update."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

from opbox_protocol.signal_shield import whole

from ..checkpoint import joined_params, split_params
from ..initializer import Uniform
from ..ndarray import NDArray, load, save
from . import loops

__all__ = ["BaseModule", "_as_list"]


def _as_list(obj: Any) -> Any:
    """A list or tuple as it is; anything else as the one element of a list."""
    return obj if isinstance(obj, (list, tuple)) else [obj]


class BaseModule:
    """Base of modules: a network that can be bound, given parameters, run, updated, trained and scored.

    A subclass defines the methods from `bind` to `install_monitor`; the loops work over those.

    Args:
        logger: where `fit` writes.
    """

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded = False
        self.for_training = False
        self.inputs_need_grad = False
        self.params_initialized = False
        self.optimizer_initialized = False
        self._symbol: Any = None

    # ---- training, scoring and predicting

    fit = loops.fit
    score = loops.score
    predict = loops.predict
    iter_predict = loops.iter_predict

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Called before a batch is used. Does nothing: there are no sparse parameters."""
        if sparse_row_id_fn is not None:
            warnings.warn("prepare: sparse_row_id_fn has no effect: all parameters are dense", stacklevel=3)

    @whole
    def _before_epoch(self, epoch: int, train_data: Any) -> None:
        """Called by `fit` before each epoch: for modules that do something with all data then."""

    def forward_backward(self, data_batch: Any) -> None:
        """Run a batch in training mode and compute gradients."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Take over parameters and auxiliary states.

        Raises:
            RuntimeError: one is missing, without `allow_missing`.
            ValueError: one is not the module's, with `allow_missing` and without `allow_extra`. Without both it is a
                warning, as MXNet takes it then.
        """
        self.init_params(
            initializer=None,
            arg_params=arg_params,
            aux_params=aux_params,
            allow_missing=allow_missing,
            force_init=force_init,
            allow_extra=allow_extra,
        )

    def save_params(self, fname: str) -> None:
        """Write parameters and auxiliary states to a file of MXNet's format."""
        save(fname, joined_params(*self.get_params()))

    def load_params(self, fname: str) -> None:
        """Take parameters and auxiliary states from a file of MXNet's format.

        Raises:
            ValueError: the file holds other things.
        """
        self.set_params(*split_params(load(fname), fname))

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The states between batches; none unless a subclass has them."""
        self._check_ready()
        return []

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the states between batches; none unless a subclass has them."""
        self._check_ready()
        if states or value:
            raise AssertionError("this module has no states to set")

    # ---- what a kind of module defines

    def _undefined(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} must define {name}")

    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs."""
        raise self._undefined("data_names")

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        raise self._undefined("output_names")

    @property
    def data_shapes(self) -> list[Any]:
        """Descriptions of the data, as bound."""
        raise self._undefined("data_shapes")

    @property
    def label_shapes(self) -> list[Any] | None:
        """Descriptions of the labels, as bound; None without."""
        raise self._undefined("label_shapes")

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the outputs."""
        raise self._undefined("output_shapes")

    @property
    def symbol(self) -> Any:
        """The symbol."""
        return self._symbol

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
        """Make executors for the shapes."""
        raise self._undefined("bind")

    def init_params(
        self,
        initializer: Any = Uniform(0.01),  # noqa: B008  (it holds no state)
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Fill parameters and auxiliary states."""
        raise self._undefined("init_params")

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Make the optimizer."""
        raise self._undefined("init_optimizer")

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and auxiliary states by name."""
        raise self._undefined("get_params")

    @whole
    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch.

        Args:
            data_batch: `data` and perhaps `label`: lists of arrays of any kind.
            is_train: the mode; None for that of `bind`.
        """
        # Whatever is recorded belongs to the step before: it leaves now, and this step is a request of its own.
        self._flush()
        self._run(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Compute gradients of the batch run last."""
        raise self._undefined("backward")

    def update(self) -> None:
        """Update parameters by their gradients."""
        raise self._undefined("update")

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The outputs of the batch run last."""
        raise self._undefined("get_outputs")

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The gradients of the data of the batch run last."""
        raise self._undefined("get_input_grads")

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Take the batch run last into a metric."""
        raise self._undefined("update_metric")

    def install_monitor(self, mon: Any) -> None:
        """Attach a monitor to the executors."""
        raise self._undefined("install_monitor")

    # ---- for the methods above

    def _run(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch within a step that has begun. A subclass defines this, or `forward`."""
        raise self._undefined("forward")

    def _flush(self) -> None:
        """Send what is recorded, without waiting."""

    def _check_ready(self, params: bool = True, optimizer: bool = False) -> None:
        """Raise AssertionError unless the module is bound and, where asked, has parameters and an optimizer."""
        if not self.binded:
            raise AssertionError("the module is not bound yet: call bind(data_shapes, label_shapes) first")
        if params and not self.params_initialized:
            raise AssertionError("the module has no parameters yet: call init_params() or set_params() first")
        if optimizer and not self.optimizer_initialized:
            raise AssertionError("the module has no optimizer yet: call init_optimizer() first")
