"""BaseModule: what every kind of module can do, over the methods that it defines: bind, forward, backward, update.

Nothing in the training loop waits for the engine: each step is recorded and sent, its outputs come back behind it, and
a metric takes them in when it is read or when they have arrived.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from opbox_protocol.errors import MXNetError
from opbox_protocol.signal_shield import whole

from .. import metric as metrics
from ..base import value_text
from ..callback import BatchEndParam
from ..checkpoint import joined_params, split_params
from ..foreign import host_values, is_array
from ..initializer import Uniform
from ..io import DataBatch, DataIter
from ..link_report import LinkReport
from ..ndarray import NDArray, concatenate, load, save
from ..progress import training_bar
from .callbacks import Callbacks, check_callbacks, listed
from .feed import batch_named
from .nan_watch import NanFinder, OutputWatch, watched
from .reporting import MetricReports
from .training_recovery import TrainingRecovery, attempt

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

    def fit(
        self,
        train_data: Any,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
        initializer: Any = Uniform(0.01),  # noqa: B008  (it holds no state)
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Any = None,
        monitor: Any = None,
        sparse_row_id_fn: Any = None,
        checkpoint_every: int | None = None,
        checkpoint_name: str = "fit",
        progress: bool | None = None,
        check_nan: bool = False,
    ) -> None:
        """Bind, initialize and train. Over a link, the last line in the log says what travelled.

        Args:
            train_data, eval_data: iterators; `eval_data` is scored after each epoch.
            eval_metric: the training metric; `validation_metric` is it too, when None.
            epoch_end_callback: called with (epoch, symbol, arg_params, aux_params).
            batch_end_callback: called with a `BatchEndParam`.
            kvstore: as of `init_optimizer`.
            optimizer, optimizer_params: a name and its arguments, or an `Optimizer`.
            eval_end_callback, eval_batch_end_callback: of the scoring.
            initializer, arg_params, aux_params, allow_missing, force_init: as of `init_params`.
            force_rebind: as of `bind`.
            begin_epoch, num_epoch: the epochs are begin_epoch to num_epoch - 1.
            monitor: a `Monitor` to install.
            checkpoint_every: have the server save the training every so many steps, and go on from there when the
                session is lost (its worker has died, the server has been restarted): so many steps are lost at the
                most, and a warning says how many. A `batch_end_callback` that meets the loss is called again. Not in
                MXNet. The server needs OPBOX_STATE_DIR.
            checkpoint_name: of that checkpoint, among the user's: trainings at the same time take different ones.
            progress: whether to show a bar with the time left, samples per second and metrics (plain lines where
                standard error is no terminal); None for OPBOX_PROGRESS (1 or 0), and without it for a bar at a terminal
                or in a notebook unless there is a `batch_end_callback`. What is logged stays as it is.
            check_nan: find the first array of a step that is not finite (an argument, a node's output, a gradient) when
                something is NaN, and name it in the log. It waits for each step and sums all arrays: for debugging.
                Without it one warning names the epoch and batch whose outputs became NaN. Not in MXNet.

        Raises:
            ValueError: `check_nan` beside a `monitor`.

        Example:
            >>> mod = mx.mod.Module(symbol)
            >>> mod.fit(train, eval_data=val, optimizer_params={"learning_rate": 0.1}, num_epoch=10,
            ...         batch_end_callback=mx.callback.Speedometer(100, 50))
        """
        check_callbacks(
            {
                "epoch_end_callback": (epoch_end_callback, "epoch, symbol, arg_params, aux_params"),
                "batch_end_callback": (batch_end_callback, "param"),
                "eval_end_callback": (eval_end_callback, "param"),
                "eval_batch_end_callback": (eval_batch_end_callback, "param"),
            }
        )
        if num_epoch is None:
            raise AssertionError("fit: num_epoch: expected a number of epochs, got None")
        for argument, count in (("num_epoch", num_epoch), ("begin_epoch", begin_epoch)):
            if not hasattr(count, "__index__"):
                raise TypeError(f"fit: {argument}: expected a number of epochs, got {value_text(count)}")
        if monitor is not None and not hasattr(monitor, "install"):
            raise TypeError(f"fit: monitor: expected one such as mx.mon.Monitor(100), got {value_text(monitor)}")
        _check_iterator("train_data", train_data, "provide_data")
        if eval_data is not None:
            _check_iterator("eval_data", eval_data, "reset")
        link = LinkReport()
        self.bind(
            data_shapes=train_data.provide_data,
            label_shapes=train_data.provide_label,
            for_training=True,
            force_rebind=force_rebind,
        )
        if check_nan and monitor is not None:
            raise ValueError(
                "fit: check_nan: expected no monitor beside it, which watches the same arrays: leave one out"
            )
        if monitor is not None:
            self.install_monitor(monitor)
        finder = NanFinder() if check_nan else None
        if finder is not None:
            self.install_monitor(finder)
        watch = OutputWatch(self.logger, finder)
        self.init_params(
            initializer=initializer,
            arg_params=arg_params,
            aux_params=aux_params,
            allow_missing=allow_missing,
            force_init=force_init,
        )
        self.init_optimizer(kvstore=kvstore, optimizer=optimizer, optimizer_params=optimizer_params)
        if validation_metric is None:
            validation_metric = eval_metric
        if not isinstance(eval_metric, metrics.EvalMetric):
            eval_metric = metrics.create(eval_metric)
        recovery = None
        if checkpoint_every is not None:
            recovery = TrainingRecovery(self, checkpoint_name, checkpoint_every, eval_metric, watch)
        reports = MetricReports(self)
        epochs = range(begin_epoch, num_epoch)
        bar = training_bar(progress, batch_end_callback, epochs, train_data)
        callbacks = batch_end_callback if bar is None else [*listed(batch_end_callback), bar]
        with nullcontext() if bar is None else bar.beside_logs(self.logger):
            for epoch in epochs:
                tic = time.time()
                attempt(recovery, partial(self._before_epoch, epoch, train_data))
                batches = self._train_epoch(
                    epoch, train_data, eval_metric, callbacks, monitor, recovery, watch, reports
                )
                if bar is not None:
                    bar.epoch_ended(batches)
                self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.time() - tic)
                arg_params, aux_params = attempt(recovery, self.get_params)
                if _has_several_contexts(self):  # whose states differ, and without a store their weights
                    attempt(recovery, partial(self.set_params, arg_params, aux_params, allow_extra=True))
                for callback in listed(epoch_end_callback):
                    callback(epoch, self.symbol, arg_params, aux_params)
                if eval_data is not None:
                    scored = partial(
                        self.score,
                        eval_data,
                        validation_metric,
                        score_end_callback=eval_end_callback,
                        batch_end_callback=eval_batch_end_callback,
                        epoch=epoch,
                    )
                    values = attempt(recovery, scored)
                    for name, value in values:
                        self.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
                    attempt(recovery, partial(reports.add, "Validation", values, epoch))
                train_data.reset()
        watch.close()
        attempt(recovery, reports.flush)
        link.log(self.logger)

    def _train_epoch(
        self,
        epoch: int,
        train_data: Any,
        eval_metric: Any,
        batch_end_callback: Callbacks,
        monitor: Any,
        recovery: TrainingRecovery | None = None,
        watch: OutputWatch | None = None,
        reports: MetricReports | None = None,
    ) -> int:
        """One pass over the data, and its metric in the log; returns the number of its batches.

        A step that is lost with its session is run again, or passed over where its batch is lost too.
        """
        eval_metric.reset()
        batches = iter(train_data)
        next_batch = next(batches, None)
        totals: list[tuple[str, Any]] = []
        nbatch = 0
        while next_batch is not None:
            data_batch, again, counts = next_batch, True, True
            if monitor is not None:
                monitor.tic()
            while again:
                again = False
                try:
                    if recovery is not None:
                        recovery.begin(data_batch)
                    with batch_named(f"epoch {epoch}, batch {nbatch}"):
                        self.forward_backward(data_batch)
                    self.update()
                    if recovery is not None:
                        recovery.step()
                        recovery.count()
                    if watch is not None:
                        watch.place = epoch, nbatch
                    with watched(eval_metric, watch):
                        if counts:
                            self.update_metric(eval_metric, data_batch.label)
                    if reports is not None:
                        reports.step(eval_metric, epoch)
                    self._flush()
                    if watch is not None:
                        watch.step_ended()
                    if recovery is not None:
                        recovery.end()
                except MXNetError as error:
                    if recovery is None:
                        raise
                    again, counts = recovery.recover(error)
            next_batch = next(batches, None)
            if next_batch is not None:
                attempt(recovery, partial(self.prepare, next_batch))
            if monitor is not None:
                monitor.toc_print()
            if next_batch is None:
                # Before the callbacks: one of them may reset the metric.
                totals = attempt(recovery, eval_metric.get_global_name_value)
                if watch is not None:
                    attempt(recovery, watch.look)
                if reports is not None:
                    attempt(recovery, partial(reports.add, "Train", totals, epoch))
            if batch_end_callback is not None:
                param = BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=eval_metric, locals=locals())
                for callback in listed(batch_end_callback):
                    attempt(recovery, partial(callback, param))
            nbatch += 1
        for name, value in totals:
            self.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
        return nbatch

    def score(
        self,
        eval_data: Any,
        eval_metric: Any,
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        score_end_callback: Callbacks = None,
        reset: bool = True,
        epoch: int = 0,
        sparse_row_id_fn: Any = None,
    ) -> list[tuple[str, Any]]:
        """Run an iterator's data and evaluate a metric.

        Args:
            eval_data: a `DataIter`.
            eval_metric: a metric, or what `metric.create` makes one from.
            num_batch: how many batches at most.
            batch_end_callback, score_end_callback: called with a `BatchEndParam`.
            reset: whether to start the iterator anew.
            epoch: told to the callbacks.

        Returns:
            Pairs of name and value.
        """
        if not isinstance(eval_metric, metrics.EvalMetric):
            eval_metric = metrics.create(eval_metric)
        eval_metric.reset()
        seen = 0
        for nbatch, eval_batch in self._batches(eval_data, num_batch, reset):
            self.update_metric(eval_metric, eval_batch.label)
            self._flush()
            seen += 1
            if batch_end_callback is not None:
                param = BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=eval_metric, locals=locals())
                for callback in listed(batch_end_callback):
                    callback(param)
        if score_end_callback is not None:
            param = BatchEndParam(epoch=epoch, nbatch=seen, eval_metric=eval_metric, locals=locals())
            for callback in listed(score_end_callback):
                callback(param)
        values: list[tuple[str, Any]] = eval_metric.get_name_value()
        return values

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        sparse_row_id_fn: Any = None,
    ) -> Any:
        """Run data and return the outputs.

        Args:
            eval_data: a `DataIter`; or an array, run as one batch.
            num_batch: how many batches at most.
            merge_batches: join the batches' outputs along their first axis.
            reset: whether to start the iterator anew.
            always_output_list: a list even of a single output.

        Returns:
            One array, or a list with one an output; without `merge_batches` a list of such lists, one a batch.

        Raises:
            ValueError: `eval_data` is neither.
        """
        if is_array(eval_data) and not isinstance(eval_data, DataIter):
            self.forward(DataBatch([host_values(eval_data) if not isinstance(eval_data, NDArray) else eval_data]))
            return self.get_outputs()[0]
        if not isinstance(eval_data, DataIter):
            raise ValueError(f"eval_data: expected a DataIter or an array, got {value_text(eval_data)}")
        collected = []
        for _, batch in self._batches(eval_data, num_batch, reset):
            collected.append([out.copy() for out in self._unpadded(batch)])
            self._flush()
        if not collected or not merge_batches:
            return collected
        if any(len(outputs) != len(collected[0]) for outputs in collected):
            raise AssertionError(
                "predict: batches of different numbers of outputs cannot be joined: ask with merge_batches=False"
            )
        merged = [concatenate(list(parts)) for parts in zip(*collected, strict=True)]
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    def iter_predict(
        self: Any, eval_data: Any, num_batch: int | None = None, reset: bool = True, sparse_row_id_fn: Any = None
    ) -> Iterator[tuple[list[NDArray], int, Any]]:
        """Run an iterator's data batch by batch.

        Yields:
            The outputs without padding (good until the next batch), the batch's number, the batch.
        """
        for nbatch, batch in self._batches(eval_data, num_batch, reset):
            yield self._unpadded(batch), nbatch, batch

    def _batches(self, data: Any, num_batch: int | None, reset: bool) -> Iterator[tuple[int, Any]]:
        """The batches of an iterator, each run forward, with their numbers."""
        self._check_ready()
        if reset:
            _check_iterator("eval_data", data, "reset")
            data.reset()
        for nbatch, batch in enumerate(data):
            if num_batch is not None and nbatch == num_batch:
                return
            self.prepare(batch)
            with batch_named(f"batch {nbatch}"):
                self.forward(batch, is_train=False)
            yield nbatch, batch

    def _unpadded(self, batch: Any) -> list[NDArray]:
        pad = batch.pad or 0
        return [out[0 : out.shape[0] - pad] for out in self.get_outputs()]

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


def _check_iterator(argument: str, data: Any, attribute: str) -> None:
    """TypeError unless the data has what a loop asks of an iterator: arrays are not fed as they are."""
    if not hasattr(data, attribute):
        example = "mx.io.NDArrayIter(data, label, batch_size)"
        raise TypeError(f"{argument}: expected a DataIter such as {example}, got {value_text(data)}")


def _has_several_contexts(module: Any) -> bool:
    """Whether a module, or one inside it, splits its batches."""
    if hasattr(module, "_modules"):
        return any(_has_several_contexts(inner) for inner in module._modules)
    return hasattr(module, "_parts") and any(len(part._context) > 1 for part in module._parts())
