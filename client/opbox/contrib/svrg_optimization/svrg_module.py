"""SVRGModule: a Module whose gradients have less variance, by a pass over all data every few epochs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from opbox_protocol.signal_shield import whole

from ...base import value_text
from ...module import Module
from ...ndarray import NDArray, zeros

__all__ = ["SVRGModule"]


class SVRGModule(Module):
    """A Module that trains by SVRG, stochastic variance reduced gradient.

    Every `update_freq` epochs it takes a snapshot of the weights and computes their gradient over all data. A step then
    updates the weights w by

        gradient(w, batch) - gradient(snapshot, batch) + gradient(snapshot, all data)

    so that a step runs the network forward and backward twice, still in one request. As in MXNet, a later gradient over
    all data starts from the former one: it is (former + sum over batches) / batches.

    Johnson and Zhang, "Accelerating stochastic gradient descent using predictive variance reduction" (2013).

    Args:
        symbol, data_names, label_names, logger, context, work_load_list: as of `Module`.
        fixed_param_names, state_names, group2ctxs, compression_params: as of `Module`.
        update_freq: epochs between two snapshots; at least 1.

    Raises:
        TypeError: `update_freq` is no integer.
        ValueError: it is less than 1; otherwise as of `Module`.

    Example:
        >>> mod = SVRGModule(net, label_names=("lin_reg_label",), update_freq=2)
        >>> mod.fit(train, eval_metric="mse", optimizer_params={"learning_rate": 0.025}, num_epoch=10)
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
        update_freq: int | None = None,
    ) -> None:
        if not isinstance(update_freq, int) or isinstance(update_freq, bool):
            raise TypeError(f"SVRGModule: update_freq: expected a number of epochs, got {value_text(update_freq)}")
        if update_freq <= 0:
            raise ValueError(f"SVRGModule: update_freq: expected at least 1 epoch, got {update_freq}")
        rest = (logger, context, work_load_list, fixed_param_names, state_names, group2ctxs, compression_params)
        super().__init__(symbol, data_names, label_names, *rest)
        self.update_freq = update_freq
        self._mod_aux = Module(symbol, data_names, label_names, *rest)
        self._param_dict: list[dict[str, NDArray]] = []

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
        """Bind the module and, for training, the one that keeps the snapshot; see `Module.bind`."""
        arguments = (data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind, shared_module, grad_req)
        super().bind(*arguments)
        if for_training:
            self._mod_aux.bind(*arguments)

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Use other input shapes from now on; see `Module.reshape`."""
        super().reshape(data_shapes, label_shapes)
        self._mod_aux.reshape(data_shapes, label_shapes)

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Make the optimizer, and zeros for the gradients over all data; see `Module.init_optimizer`."""
        super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        parameters, _ = self.get_params()
        self._param_dict = [
            {name: zeros(value.shape, context, value.dtype) for name, value in parameters.items()}
            for context in self._context
        ]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch forward; with `is_train` by the snapshot's weights too. See `Module.forward`."""
        super().forward(data_batch, is_train)
        if is_train:
            self._mod_aux.forward(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last batch, by both weights. See `Module.backward`."""
        super().backward(out_grads)
        if self._mod_aux.binded:
            self._mod_aux.backward(out_grads)

    @whole
    def update(self) -> None:
        """Reduce the variance of the gradients, and let the optimizer make its step. See `Module.update`."""
        own, snapshot = self._exec_group.grad_arrays or [], self._mod_aux._exec_group.grad_arrays or []
        for index, name in enumerate(self._exec_group.param_names):
            for device, full in enumerate(self._param_dict):
                gradient = own[index][device]
                if gradient is not None:  # a fixed parameter has none
                    gradient -= snapshot[index][device]
                    gradient += full[name]
        super().update()

    def update_full_grads(self, train_data: Any) -> None:
        """Take a snapshot of the weights, and compute its gradient over all data.

        Args:
            train_data: a `DataIter`, which is run through from its beginning.
        """
        names = self._exec_group.param_names
        arguments, states = self.get_params()
        self._mod_aux.set_params(arguments, states)
        train_data.reset()
        count, pad = 0, 0
        for batch in train_data:
            self._mod_aux.forward(batch, is_train=True)
            self._mod_aux.backward()
            gradients = self._mod_aux._exec_group.grad_arrays or []
            for index, name in enumerate(names):
                for device, full in enumerate(self._param_dict):
                    if gradients[index][device] is not None:
                        full[name] += gradients[index][device]
            self._flush()
            count, pad = count + 1, batch.pad or 0
        batches = count - pad / train_data.batch_size
        for name in names:
            self._average(name, batches)

    def _average(self, name: str, batches: float) -> None:
        """Divide a parameter's sum by the number of batches; a kvstore gives all devices the mean over them."""
        devices = self._param_dict
        for full in devices:
            full[name] /= batches
        if self._kvstore is not None and len(devices) > 1:
            total = devices[0][name].copy()
            for full in devices[1:]:
                total += full[name].as_in_context(total.context)
            total /= len(devices)
            for full in devices:
                total.copyto(full[name])

    def _before_epoch(self, epoch: int, train_data: Any) -> None:
        if epoch % self.update_freq == 0:
            self.update_full_grads(train_data)
            train_data.reset()

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Prepare both modules for a batch; see `Module.prepare`."""
        super().prepare(data_batch, sparse_row_id_fn)
        self._mod_aux.prepare(data_batch, sparse_row_id_fn)
