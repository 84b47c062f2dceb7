"""Outputs, gradients and states after a batch, and a metric's update. `Module` has these functions as its methods."""

from __future__ import annotations

from typing import Any

from ..foreign import is_array
from ..ndarray import NDArray
from .feed import label_value
from .nan_watch import OutputWatch

__all__ = ["get_input_grads", "get_outputs", "get_states", "set_states", "update_metric"]


def get_outputs(self: Any, merge_multi_context: bool = True) -> list[NDArray]:
    """The outputs of the batch run last; each belongs to the executor, and changes with the next batch.

    Raises:
        AssertionError: no batch has been run, and the outputs' memory holds whatever it held before.
    """
    self._check_ready()
    if not self._bound.has_run:
        raise AssertionError("get_outputs: expected a batch to have been run, got none yet: call forward(batch) first")
    return list(self._exec.outputs)


def get_input_grads(self: Any, merge_multi_context: bool = True) -> list[NDArray]:
    """The gradients of the data of the batch run last, in the order of `data_shapes`."""
    self._check_ready()
    if not self.inputs_need_grad:
        raise AssertionError("re-bind with inputs_need_grad=True to have gradients of the inputs")
    return [self._exec.grad_dict[desc.name] for desc in self.data_shapes]


def get_states(self: Any, merge_multi_context: bool = True) -> list[NDArray]:
    """The arrays of `state_names`."""
    self._check_ready()
    return [self._exec.arg_dict[name] for name in self._names.states]


def set_states(self: Any, states: Any = None, value: Any = None) -> None:
    """Set the arrays of `state_names`.

    Args:
        states: an array for each, in their order, or MXNet's list for each of its arrays by device.
        value: what all of them are filled with.

    Raises:
        ValueShapeError: a state of another shape than bound.
        ValueError: another number of states.
    """
    self._check_ready()
    if (states is None) == (value is None):
        raise AssertionError("set_states: expected either states or value")
    bound = self.get_states()
    if states is None:
        for array in bound:
            array[:] = value
        return
    if len(states) != len(bound):
        names = ", ".join(self._names.states) or "none"
        raise ValueError(f"set_states: expected {len(bound)} states ({names}), got {len(states)}")
    for name, array, state in zip(self._names.states, bound, states, strict=True):
        by_device = isinstance(state, list | tuple) and len(state) == 1 and is_array(state[0])
        array._fill(state[0] if by_device else state, f"set_states: {name}")


def update_metric(self: Any, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
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
    fetched = {name: out._fetch_async() for name, out in outputs if name in wanted}
    watch = OutputWatch.of(eval_metric)
    if watch is not None:
        watch.take(fetched)
    eval_metric.update_later(values, fetched)
