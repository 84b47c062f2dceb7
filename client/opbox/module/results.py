"""Outputs, gradients and states after a batch, and a metric's update. `Module` has these functions as its methods."""

from __future__ import annotations

from typing import Any

from ..foreign import is_array
from ..io import DataDesc
from .binding import merged
from .feed import label_value
from .nan_watch import OutputWatch

__all__ = ["get_input_grads", "get_outputs", "get_states", "set_states", "update_metric"]


def get_outputs(self: Any, merge_multi_context: bool = True) -> list[Any]:
    """The outputs of the batch run last; each belongs to the executor, and changes with the next batch.

    Args:
        merge_multi_context: join the slices of several devices along the outputs' batch axes, on the first device;
            False: a list for each output, with its array on each device.

    Raises:
        AssertionError: no batch has been run, and the outputs' memory holds whatever it held before.
    """
    self._check_ready()
    if not self._bound.has_run:
        raise AssertionError("get_outputs: expected a batch to have been run, got none yet: call forward(batch) first")
    outputs = [list(parts) for parts in zip(*(one.current.outputs for one in self._bound.replicas), strict=True)]
    return merged(outputs, self._bound.output_axes) if merge_multi_context else outputs


def get_input_grads(self: Any, merge_multi_context: bool = True) -> list[Any]:
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


def get_states(self: Any, merge_multi_context: bool = True) -> list[Any]:
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


def set_states(self: Any, states: Any = None, value: Any = None) -> None:
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


def update_metric(self: Any, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
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
