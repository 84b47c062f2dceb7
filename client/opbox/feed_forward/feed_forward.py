"""FeedForward: MXNet's first training interface, over one Module a training."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .. import metric as metrics
from ..base import user_level, value_text
from ..callback import BatchEndParam, LogValidationMetricsCallback
from ..checkpoint import load_checkpoint, save_checkpoint
from ..context import Context, context_or_current
from ..executor_manager import _check_arguments
from ..initializer import Uniform
from ..io import DataDesc
from ..link_report import LinkReport
from ..module import BucketingModule, Module
from ..module.callbacks import Callbacks, check_callbacks, listed
from ..module.feed import label_value
from ..ndarray import NDArray, zeros
from .data import Columns, evaluation_iterator, iterator
from .loops import AnyModule, score_epoch, train_epoch

__all__ = ["FeedForward"]


class FeedForward:
    """A network with its parameters, trained and run from arrays or iterators.

    MXNet has deprecated this class in favour of `mx.mod.Module`, which new programs should use. It stays for programs
    that were written for it; making one warns.

    Args:
        symbol: the network; or a function from a bucket key to a network.
        ctx: the device, or a list of devices.
        num_epoch: `fit` ends before this epoch.
        epoch_size: batches of an epoch; None for all that the iterator has.
        optimizer: a name, which takes `kwargs`; or an `Optimizer`.
        initializer: fills the parameters that `arg_params` and `aux_params` do not have.
        numpy_batch_size: samples of a batch where data comes as an array.
        arg_params, aux_params: parameters and auxiliary states by name.
        allow_extra_params: whether these may have names that the network lacks.
        begin_epoch: the first epoch of `fit`.
        kwargs: the optimizer's arguments.

    Attributes:
        arg_params, aux_params: as given, and as trained once `fit` has ended.

    Raises:
        ValueError: two arguments of the network have one name.

    Example:
        >>> model = mx.model.FeedForward(net, num_epoch=10, learning_rate=0.1)
        >>> model.fit(images, labels)
        >>> probabilities = model.predict(images)
    """

    def __init__(
        self,
        symbol: Any,
        ctx: Context | Sequence[Context] | None = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: Any = "sgd",
        initializer: Callable[..., None] = Uniform(0.01),  # noqa: B008  (it holds no state)
        numpy_batch_size: int = 128,
        arg_params: Mapping[str, NDArray] | None = None,
        aux_params: Mapping[str, NDArray] | None = None,
        allow_extra_params: bool = False,
        begin_epoch: int = 0,
        **kwargs: Any,
    ) -> None:
        warnings.warn(
            "FeedForward: mx.mod.Module has taken its place in MXNet: use that in new programs",
            DeprecationWarning,
            stacklevel=user_level(),
        )
        is_symbol = hasattr(symbol, "list_arguments")
        if not is_symbol and not callable(symbol):
            raise AssertionError(
                f"FeedForward: symbol: expected a Symbol or a function that makes one, got {value_text(symbol)}"
            )
        self.symbol: Any = symbol if is_symbol else None
        self.sym_gen: Callable[[Any], Any] | None = None if is_symbol else symbol
        self.ctx = list(ctx) if isinstance(ctx, (list, tuple)) else [context_or_current(ctx, "ctx")]
        self.num_epoch = num_epoch
        self.epoch_size = epoch_size
        self.optimizer = optimizer
        self.initializer = initializer
        self.numpy_batch_size = numpy_batch_size
        self.arg_params = arg_params
        self.aux_params = aux_params
        self.allow_extra_params = allow_extra_params
        self.begin_epoch = begin_epoch
        self.kwargs = dict(kwargs)
        if is_symbol:
            self._check_arguments()

    # ---- training

    def fit(
        self,
        X: Any,
        y: Any = None,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Any = "local",
        logger: Any = None,
        work_load_list: Sequence[float] | None = None,
        monitor: Any = None,
        eval_end_callback: Callbacks = LogValidationMetricsCallback(),  # noqa: B008  (it holds no state)
        eval_batch_end_callback: Callbacks = None,
    ) -> None:
        """Train from `begin_epoch` to `num_epoch`; a batch is one request, and nothing waits for its answer.

        Args:
            X: an iterator; or an array of samples, with its labels as `y` (n,) or (n, 1).
            eval_data: an iterator, or a pair (samples, labels); scored after each epoch.
            eval_metric: a metric, or what `mx.metric.create` makes one from.
            epoch_end_callback: called with (epoch, symbol, arg_params, aux_params).
            batch_end_callback, eval_batch_end_callback, eval_end_callback: called with a `BatchEndParam`.
            kvstore: as of `Module.init_optimizer`.
            logger: where to write; Python's `logging` when None.
            work_load_list: a number for each device.
            monitor: a `Monitor` to install.

        Raises:
            TypeError: data that is neither an iterator nor an array.
            ValueError: samples and labels that do not go together.
        """
        check_callbacks(
            {
                "epoch_end_callback": (epoch_end_callback, "epoch, symbol, arg_params, aux_params"),
                "batch_end_callback": (batch_end_callback, "param"),
                "eval_end_callback": (eval_end_callback, "param"),
                "eval_batch_end_callback": (eval_batch_end_callback, "param"),
            }
        )
        if self.num_epoch is None:
            raise TypeError("FeedForward: num_epoch: expected a number of epochs, got None: give it to FeedForward")
        if work_load_list is not None and len(work_load_list) != len(self.ctx):
            raise AssertionError(
                f"work_load_list: expected a number for each device ({len(self.ctx)}), got {len(work_load_list)}"
            )
        data = iterator(X, y, self.numpy_batch_size, training=True)
        scored = evaluation_iterator(eval_data, self.numpy_batch_size)
        if self.sym_gen is not None:
            self.symbol = self.sym_gen(data.default_bucket_key)
            self._check_arguments()
        self._init_params([*data.provide_data, *data.provide_label])
        if not isinstance(eval_metric, metrics.EvalMetric):
            eval_metric = metrics.create(eval_metric)
        logger, link = logger or logging, LinkReport()
        module = self._bound_for_training(data, logger, kvstore, monitor, work_load_list)
        data.reset()
        for epoch in range(self.begin_epoch, self.num_epoch):
            tic = time.time()
            train_epoch(module, epoch, data, self.epoch_size, eval_metric, batch_end_callback, monitor, logger)
            logger.info("Epoch[%d] Time cost=%.3f", epoch, time.time() - tic)
            if epoch_end_callback or epoch + 1 == self.num_epoch:
                self._copy_params_from(module)
            for callback in listed(epoch_end_callback):
                callback(epoch, self.symbol, self.arg_params, self.aux_params)
            if scored is not None:
                score_epoch(module, epoch, scored, eval_metric, eval_end_callback, eval_batch_end_callback)
        link.log(logger)

    def _bound_for_training(
        self, data: Any, logger: Any, kvstore: Any, monitor: Any, work_load_list: Sequence[float] | None
    ) -> AnyModule:
        """A module for the iterator's batches, with this model's parameters and an optimizer."""
        data_names = [desc[0] for desc in data.provide_data]
        label_names = [desc[0] for desc in data.provide_label]
        options: dict[str, Any] = {"logger": logger, "context": self.ctx, "work_load_list": work_load_list}
        module: AnyModule
        if self.sym_gen is None:
            module = Module(self.symbol, data_names, label_names, **options)
        else:
            sym_gen = self.sym_gen
            module = BucketingModule(
                lambda key: (sym_gen(key), data_names, label_names),
                data.default_bucket_key,
                **options,
            )
        module.bind(data.provide_data, data.provide_label)
        if monitor is not None:
            module.install_monitor(monitor)
        self._fill(module)
        module.init_optimizer(kvstore, self.optimizer, self.kwargs)
        return module

    def _fill(self, module: AnyModule) -> None:
        """Set the parameters of a bound module to this model's.

        Raises:
            ValueError: the network lacks one of them.
        """
        unknown = module._parameters.unknown(self.arg_params, self.aux_params) if isinstance(module, Module) else None
        if unknown is not None:
            raise ValueError(unknown)
        module.init_params(None, self.arg_params, self.aux_params)

    def _copy_params_from(self, module: AnyModule) -> None:
        """Take the module's parameters into this model's arrays, which stay the same objects."""
        for own, trained in zip((self.arg_params, self.aux_params), module.get_params(), strict=True):
            for name, value in trained.items():
                assert own is not None
                value.copyto(own[name])

    # ---- predicting and scoring

    def predict(self, X: Any, num_batch: int | None = None, return_data: bool = False, reset: bool = True) -> Any:
        """Run data and return the outputs without padding.

        Args:
            X: an iterator or an array of samples.
            num_batch: how many batches at most.
            return_data: whether to return the data and labels too.
            reset: whether to start the iterator anew.

        Returns:
            A numpy array, or a list of them for several outputs; with `return_data` three of these: outputs, data,
            labels.

        Raises:
            RuntimeError: the model has no parameters.
            ValueError: the iterator has no batches.
        """
        data = iterator(X, None, self.numpy_batch_size, training=False)
        outputs, fed, labels = Columns(), Columns(), Columns()
        for module, batch in self._run(data, num_batch, reset):
            rows = data.batch_size - (batch.pad or 0)
            outputs.add(module.get_outputs(), rows)
            if return_data:
                fed.add(batch.data, rows)
                labels.add(batch.label or [], rows)
        if outputs.empty:
            raise ValueError("predict: X: expected an iterator with batches, got one with none")
        return (outputs.joined(), fed.joined(), labels.joined()) if return_data else outputs.joined()

    def score(
        self,
        X: Any,
        eval_metric: Any = "acc",
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        reset: bool = True,
    ) -> Any:
        """Run an iterator's data and return the value of a metric.

        Args:
            X: an iterator with labels.
            eval_metric: a metric, or what `mx.metric.create` makes one from.
            num_batch: how many batches at most.
            batch_end_callback: called with a `BatchEndParam`.
            reset: whether to start the iterator anew.
        """
        if not isinstance(eval_metric, metrics.EvalMetric):
            eval_metric = metrics.create(eval_metric)
        data = iterator(X, None, self.numpy_batch_size, training=False)
        label_names = [desc[0] for desc in data.provide_label]
        for nbatch, (module, batch) in enumerate(self._run(data, num_batch, reset)):
            labels = zip(label_names, batch.label or (), strict=False)
            outputs = zip(module.output_names, module.get_outputs(), strict=True)
            eval_metric.update_later(
                {name: label_value(label) for name, label in labels},
                {name: out._fetch_async() for name, out in outputs},
            )
            if batch_end_callback is not None:
                param = BatchEndParam(epoch=0, nbatch=nbatch, eval_metric=eval_metric, locals=locals())
                for callback in listed(batch_end_callback):
                    callback(param)
        return eval_metric.get()[1]

    def _run(self, data: Any, num_batch: int | None, reset: bool) -> Iterator[tuple[Module, Any]]:
        """Run the iterator's batches forward, on the first device."""
        if self.arg_params is None:
            raise RuntimeError("FeedForward: the model has no parameters: call fit first, or give arg_params")
        if reset:
            data.reset()
        data_names = [desc[0] for desc in data.provide_data]
        others = [name for name in self.symbol.list_arguments() if name not in {*data_names, *self.arg_params}]
        module = Module(self.symbol, data_names, others, context=self.ctx[0])
        module.bind(data.provide_data, for_training=False)
        self._fill(module)
        for nbatch, batch in enumerate(data):
            if nbatch == num_batch:
                return
            module.forward(batch, is_train=False)
            yield module, batch
            module._flush()

    # ---- files

    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Write `<prefix>-symbol.json` and `<prefix>-<epoch>.params`; `num_epoch` when `epoch` is None."""
        epoch = self.num_epoch if epoch is None else epoch
        if epoch is None:
            raise AssertionError("save: epoch: expected a number, got None, and the model has no num_epoch")
        save_checkpoint(prefix, epoch, self.symbol, self.arg_params or {}, self.aux_params or {}, remove_amp_cast)

    @staticmethod
    def load(prefix: str, epoch: int, ctx: Any = None, **kwargs: Any) -> FeedForward:
        """A model from a checkpoint; training goes on at `epoch`.

        Args:
            prefix, epoch: as of `save`.
            ctx, kwargs: as of `FeedForward`.
        """
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
        return FeedForward(symbol, ctx=ctx, arg_params=arg_params, aux_params=aux_params, begin_epoch=epoch, **kwargs)

    @staticmethod
    def create(
        symbol: Any,
        X: Any,
        y: Any = None,
        ctx: Any = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: Any = "sgd",
        initializer: Callable[..., None] = Uniform(0.01),  # noqa: B008  (it holds no state)
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Any = "local",
        logger: Any = None,
        work_load_list: Sequence[float] | None = None,
        eval_end_callback: Callbacks = LogValidationMetricsCallback(),  # noqa: B008  (it holds no state)
        eval_batch_end_callback: Callbacks = None,
        **kwargs: Any,
    ) -> FeedForward:
        """Make a model and train it: the arguments are those of `FeedForward` and of `fit`."""
        model = FeedForward(
            symbol,
            ctx=ctx,
            num_epoch=num_epoch,
            epoch_size=epoch_size,
            optimizer=optimizer,
            initializer=initializer,
            **kwargs,
        )
        model.fit(
            X,
            y,
            eval_data=eval_data,
            eval_metric=eval_metric,
            epoch_end_callback=epoch_end_callback,
            batch_end_callback=batch_end_callback,
            kvstore=kvstore,
            logger=logger,
            work_load_list=work_load_list,
            eval_end_callback=eval_end_callback,
            eval_batch_end_callback=eval_batch_end_callback,
        )
        return model

    # ---- parameters and data

    def _check_arguments(self) -> None:
        """Check the network's names, and with `allow_extra_params` drop the parameters that it lacks."""
        arguments, states = self.symbol.list_arguments(), self.symbol.list_auxiliary_states()
        _check_arguments(self.symbol)
        if self.allow_extra_params:
            self.arg_params = _only(self.arg_params, arguments)
            self.aux_params = _only(self.aux_params, states)

    def _init_params(self, inputs: Any, overwrite: bool = False) -> tuple[list[str], list[str], list[str]]:
        """Make the parameters for inputs of these shapes, and fill those that the model has no values of.

        Args:
            inputs: descriptions or pairs (name, shape) of data and labels; or a dict of shapes by name.
            overwrite: whether to fill all of them anew.

        Returns:
            Names of the arguments, the parameters and the auxiliary states.
        """
        pairs = inputs.items() if isinstance(inputs, Mapping) else inputs
        descs = [desc if isinstance(desc, DataDesc) else DataDesc(*desc) for desc in pairs]
        fed = {desc.name for desc in descs}
        arguments, states = self.symbol.list_arguments(), self.symbol.list_auxiliary_states()
        shapes, _, state_shapes = self.symbol.infer_shape(**{desc.name: desc.shape for desc in descs})
        types, _, state_types = self.symbol.infer_type(**{desc.name: desc.dtype for desc in descs})
        context = self.ctx[0]
        arg_params = {
            name: zeros(shape, context, dtype)
            for name, shape, dtype in zip(arguments, shapes, types, strict=True)
            if name not in fed
        }
        aux_params = {
            name: zeros(shape, context, dtype)
            for name, shape, dtype in zip(states, state_shapes, state_types, strict=True)
        }
        with warnings.catch_warnings():
            # Plain names, as MXNet gives them here: the older rules, which know auxiliary states, apply on purpose.
            warnings.simplefilter("ignore", DeprecationWarning)
            for fresh, own in ((arg_params, self.arg_params or {}), (aux_params, self.aux_params or {})):
                for name, array in fresh.items():
                    if name in own and not overwrite:
                        array[:] = own[name]
                    else:
                        self.initializer(name, array)
        self.arg_params, self.aux_params = arg_params, aux_params
        return arguments, list(arg_params), states


def _only(params: Mapping[str, NDArray] | None, names: Sequence[str]) -> Mapping[str, NDArray] | None:
    return {name: value for name, value in params.items() if name in names} if params else params
