"""Modules written in Python: PythonModule, a base without parameters, and PythonLossModule, a loss by its gradient."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..initializer import Uniform
from ..ndarray import NDArray, array
from .base_module import BaseModule
from .feed import label_value

__all__ = ["PythonLossModule", "PythonModule"]


class PythonModule(BaseModule):
    """Base of modules whose computation is Python code; it has no parameters unless a subclass adds some.

    A subclass defines `forward`, `backward`, `get_outputs`, `get_input_grads` and `_compute_output_shapes`.

    Args:
        data_names, label_names: names of the inputs; label_names is None without labels.
        output_names: names of the outputs.
        logger: where `fit` writes.
    """

    def __init__(
        self,
        data_names: Sequence[str],
        label_names: Sequence[str] | None,
        output_names: Sequence[str],
        logger: Any = logging,
    ) -> None:
        super().__init__(logger)
        self._data_names = list(data_names)
        self._label_names = None if label_names is None else list(label_names)
        self._output_names = list(output_names)
        self._data_shapes: Any = None
        self._label_shapes: Any = None
        self._output_shapes: Any = None

    @property
    def data_names(self) -> list[str]:
        return self._data_names

    @property
    def output_names(self) -> list[str]:
        return self._output_names

    @property
    def data_shapes(self) -> list[Any]:
        shapes: list[Any] = self._data_shapes
        return shapes

    @property
    def label_shapes(self) -> list[Any] | None:
        shapes: list[Any] | None = self._label_shapes
        return shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        shapes: list[tuple[str, tuple[int, ...]]] = self._output_shapes
        return shapes

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
        """Note the shapes, and compute those of the outputs.

        Raises:
            AssertionError: a gradient request other than "write", or names that are not the module's.
        """
        if self.binded and not force_rebind:
            self.logger.warning("bind: bound already, and stays so: force_rebind=True binds anew")
            return
        if grad_req != "write":
            raise AssertionError(f"grad_req: expected 'write', got {grad_req!r}: a module in Python writes gradients")
        self._check_names("data_shapes", self._data_names, data_shapes)
        if label_shapes is not None:
            self._check_names("label_shapes", self._label_names or [], label_shapes)
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self._data_shapes, self._label_shapes = data_shapes, label_shapes
        self._output_shapes = self._compute_output_shapes()
        self.binded = True

    def _check_names(self, argument: str, names: Sequence[str], shapes: Any) -> None:
        given_names = [desc[0] for desc in shapes]
        if given_names != list(names):
            raise AssertionError(
                f"{type(self).__name__}: {argument}: expected the names {', '.join(names) or 'of no input'}, "
                f"got {', '.join(given_names)}"
            )

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the outputs, from `data_shapes` and `label_shapes`."""
        raise self._undefined("_compute_output_shapes")

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Two empty dicts: there are no parameters."""
        return {}, {}

    def init_params(
        self,
        initializer: Any = Uniform(0.01),  # noqa: B008  (it holds no state)
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Do nothing: there are no parameters."""
        self.params_initialized = True

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Do nothing: there are no parameters."""
        self.optimizer_initialized = True

    def update(self) -> None:
        """Do nothing: there are no parameters."""

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Take the outputs into a metric, if the module is bound with labels.

        Raises:
            RuntimeError: `pre_sliced`, which concerns several devices.
        """
        if self._label_shapes is None:
            return
        if pre_sliced:
            raise RuntimeError("pre_sliced: there is one device, and no slices")
        eval_metric.update_later(
            {name: label_value(label) for name, label in zip(self._label_names or [], labels, strict=False)},
            {name: label_value(out) for name, out in zip(self._output_names, self.get_outputs(), strict=True)},
        )

    def install_monitor(self, mon: Any) -> None:
        """Do nothing: there is no executor."""


class PythonLossModule(PythonModule):
    """A loss that is given by the gradient of its scores; its output is the scores themselves.

    Args:
        name: the output's name is this and "_output".
        data_names, label_names: the name of the scores, and of the label.
        logger: where `fit` writes.
        grad_func: from scores and labels (NDArrays) to the scores' gradient, an NDArray or a numpy array. Without it a
            subclass defines `_backward_impl`.

    Raises:
        AssertionError: several names, or a grad_func that is no function.

    Example:
        >>> def gradient(scores, labels):
        ...     return scores - mx.nd.one_hot(labels, 10)
        >>> chain.add(mx.mod.PythonLossModule(grad_func=gradient), take_labels=True, auto_wiring=True)
    """

    def __init__(
        self,
        name: str = "pyloss",
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] = ("softmax_label",),
        logger: Any = logging,
        grad_func: Callable[[NDArray, NDArray], Any] | None = None,
    ) -> None:
        super().__init__(data_names, label_names, [f"{name}_output"], logger)
        for argument, names in (("data_names", data_names), ("label_names", label_names)):
            if len(names) != 1:
                raise AssertionError(f"PythonLossModule: {argument}: expected one name, got {len(names)}")
        if grad_func is not None and not callable(grad_func):
            raise AssertionError(f"PythonLossModule: grad_func: expected a function, got {type(grad_func).__name__}")
        self._name = name
        self._grad_func = grad_func
        self._scores: Any = None
        self._labels: Any = None
        self._scores_grad: Any = None

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(self._output_names[0], self._data_shapes[0][1])]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Keep the scores, and in training the labels."""
        self._scores = data_batch.data[0]
        if self.for_training if is_train is None else is_train:
            self._labels = data_batch.label[0]

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The scores."""
        return [self._scores]

    def backward(self, out_grads: Any = None) -> None:
        """Compute the scores' gradient.

        Raises:
            AssertionError: gradients of the output are given, or the module is not bound for training.
        """
        if out_grads is not None:
            raise AssertionError("PythonLossModule: out_grads: expected None, for nothing comes after a loss")
        if not self.for_training:
            raise AssertionError("backward: the module was bound without gradients: bind it with for_training=True")
        self._backward_impl()

    def _backward_impl(self) -> None:
        """Set `_scores_grad` from `_scores` and `_labels`."""
        if self._grad_func is None:
            raise NotImplementedError(
                f"{type(self).__name__}: expected a gradient: give grad_func, or define _backward_impl in a subclass"
            )
        grad = self._grad_func(self._scores, self._labels)
        self._scores_grad = grad if isinstance(grad, NDArray) else array(grad)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The scores' gradient."""
        return [self._scores_grad]
