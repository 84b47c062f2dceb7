"""SequentialModule: a chain of modules, each fed with the outputs of the one before."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from opbox_protocol.signal_shield import whole

from ..initializer import Uniform
from ..ndarray import NDArray
from .base_module import BaseModule

__all__ = ["SequentialModule"]


class SequentialModule(BaseModule):
    """Modules run one after the other as one module; a training step of the whole chain is one request.

    Args:
        logger: where `fit` writes.

    Attributes:
        META_TAKE_LABELS: a keyword of `add`: the module gets the batch's labels, and updates metrics.
        META_AUTO_WIRING: a keyword of `add`: the module's data names stand for the outputs before it, in their order,
            whatever those are called.

    Example:
        >>> chain = mx.mod.SequentialModule()
        >>> chain.add(features).add(classifier, take_labels=True, auto_wiring=True)
        >>> chain.fit(train, num_epoch=5)
    """

    META_TAKE_LABELS = "take_labels"
    META_AUTO_WIRING = "auto_wiring"

    def __init__(self, logger: Any = logging) -> None:
        super().__init__(logger)
        self._modules: list[BaseModule] = []
        self._metas: list[dict[str, Any]] = []
        self._label_shapes: Any = None

    def add(self, module: BaseModule, **kwargs: Any) -> SequentialModule:
        """Append a module; the chain has to be bound again.

        Args:
            module: takes the outputs of the module before.
            kwargs: take_labels, auto_wiring: see the attributes.

        Returns:
            This chain, for a further `add`.

        Raises:
            AssertionError: another keyword.
        """
        known = (self.META_TAKE_LABELS, self.META_AUTO_WIRING)
        for key in kwargs:
            if key not in known:
                raise AssertionError(f"SequentialModule.add: expected the keywords {' and '.join(known)}, got {key!r}")
        self._modules.append(module)
        self._metas.append(kwargs)
        self.binded = self.params_initialized = self.optimizer_initialized = False
        return self

    def _takes_labels(self, position: int) -> bool:
        return bool(self._metas[position].get(self.META_TAKE_LABELS))

    # ---- what it is

    @property
    def data_names(self) -> list[str]:
        return self._modules[0].data_names if self._modules else []

    @property
    def output_names(self) -> list[str]:
        return self._modules[-1].output_names if self._modules else []

    @property
    def data_shapes(self) -> list[Any]:
        self._check_ready(params=False)
        return self._modules[0].data_shapes

    @property
    def label_shapes(self) -> list[Any] | None:
        self._check_ready(params=False)
        shapes: list[Any] | None = self._label_shapes
        return shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        self._check_ready(params=False)
        return self._modules[-1].output_shapes

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
        """Bind all modules, each to the output shapes of the one before.

        Args:
            data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind, grad_req: as of `Module.bind`.
            shared_module: must be None.

        Raises:
            AssertionError: the chain is empty; or a module has another number of data names than there are outputs.
        """
        if self.binded and not force_rebind:
            self.logger.warning("bind: bound already, and stays so: force_rebind=True binds anew")
            return
        if inputs_need_grad and not for_training:
            raise AssertionError("inputs_need_grad: there are no gradients without for_training")
        if shared_module is not None:
            raise AssertionError("shared_module: expected None: a chain shares no parameters")
        if not self._modules:
            raise AssertionError("bind: expected a chain with modules, got an empty one: add modules first")
        shapes = data_shapes
        for position, module in enumerate(self._modules):
            if self._metas[position].get(self.META_AUTO_WIRING):
                shapes = _renamed(module.data_names, shapes, position)
            module.bind(
                data_shapes=shapes,
                label_shapes=label_shapes if self._takes_labels(position) else None,
                for_training=for_training,
                inputs_need_grad=inputs_need_grad or (for_training and position > 0),
                force_rebind=force_rebind,
                grad_req=grad_req,
            )
            shapes = module.output_shapes
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        labelled = any(self._takes_labels(position) for position in range(len(self._modules)))
        self._label_shapes = label_shapes if labelled else None
        self.binded = True

    # ---- parameters and optimizers

    def init_params(
        self,
        initializer: Any = Uniform(0.01),  # noqa: B008  (it holds no state)
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """As of `Module`, in each module: values of the other modules' need `allow_extra`.

        Raises:
            AssertionError: two modules have a parameter of one name.
        """
        if self.params_initialized and not force_init:
            return
        self._check_ready(params=False)
        for module in self._modules:
            module.init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        for kind in (0, 1):
            _check_distinct([module.get_params()[kind] for module in self._modules])
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and auxiliary states of all modules, by name."""
        self._check_ready()
        arguments: dict[str, Any] = {}
        states: dict[str, Any] = {}
        for module in self._modules:
            own_arguments, own_states = module.get_params()
            arguments |= own_arguments
            states |= own_states
        return arguments, states

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """As of `Module`; each module has an optimizer of its own."""
        self._check_ready()
        if self.optimizer_initialized and not force_init:
            self.logger.warning(
                "init_optimizer: there is an optimizer already, and it stays: force_init=True makes a new one"
            )
            return
        for module in self._modules:
            module.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True

    @whole
    def update(self) -> None:
        """Update the parameters of all modules."""
        self._check_ready(optimizer=True)
        for module in self._modules:
            module.update()

    # ---- running

    def _run(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch through the chain."""
        self._check_ready()
        batch = copy.copy(data_batch)
        for module in self._modules:
            # A module of the user's own has a `forward` of its own.
            run = module._run if type(module).forward is BaseModule.forward else module.forward
            run(batch, is_train)
            batch.data = module.get_outputs()
            if hasattr(batch, "provide_data"):
                names = [name for name, _ in module.output_shapes]
                batch.provide_data = [(name, one.shape) for name, one in zip(names, batch.data, strict=True)]

    @whole
    def backward(self, out_grads: Any = None) -> None:
        """Compute gradients from the last module to the first."""
        self._check_ready()
        for module in reversed(self._modules):
            module.backward(out_grads)
            if module is not self._modules[0]:
                out_grads = module.get_input_grads()

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The outputs of the last module."""
        self._check_ready()
        return self._modules[-1].get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The gradients of the first module's data."""
        self._check_ready()
        if not self.inputs_need_grad:
            raise AssertionError("re-bind with inputs_need_grad=True to have gradients of the inputs")
        return self._modules[0].get_input_grads(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Take the outputs of the modules that get labels into a metric."""
        self._check_ready()
        for position, module in enumerate(self._modules):
            if self._takes_labels(position):
                module.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        """Attach a monitor to the executors of all modules."""
        self._check_ready(params=False)
        for module in self._modules:
            module.install_monitor(mon)

    def _flush(self) -> None:
        for module in self._modules:
            module._flush()


def _renamed(names: list[str], shapes: Any, position: int) -> list[tuple[str, Any]]:
    """Shapes under a module's own data names."""
    if len(names) != len(shapes):
        raise AssertionError(
            f"SequentialModule: module {position}: expected {len(names)} inputs ({', '.join(names)}), "
            f"got {len(shapes)} outputs of the module before"
        )
    return [(name, desc[1]) for name, desc in zip(names, shapes, strict=True)]


def _check_distinct(params: Iterable[Mapping[str, Any]]) -> None:
    """AssertionError when two modules have a parameter of one name."""
    owners: dict[str, int] = {}
    for position, own in enumerate(params):
        for name in own:
            if name in owners:
                raise AssertionError(
                    f"SequentialModule: module {position}: expected parameters of other names than before, got "
                    f"{name!r}, which module {owners[name]} has: name the operators apart"
                )
            owners[name] = position
