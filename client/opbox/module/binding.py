"""A module's symbol, bound on one device or on several that share a batch: fed with batches of any size, and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ..base import value_text
from ..context import Context
from ..executor_manager import _split_input_slice
from ..io import DataDesc
from ..ndarray import NDArray, array, concatenate
from .executors import Executors
from .feed import check_count, load_batch, slice_of
from .names import ArgumentNames, described

__all__ = ["Binding", "merged"]


class Binding:
    """The executors of a module, and the descriptions of what they are fed.

    Args:
        symbol: the network.
        contexts: the devices.
        work_loads: a number for each device: its slice of a batch is in proportion.
        names: the symbol's arguments.
        data_shapes, label_shapes: `DataDesc`s or pairs (name, shape).
        requests: the gradient request of each argument.
        group2ctxs: contexts by the symbol's groups, for all devices or for each (see `_group_contexts`).
        shared: a binding whose parameters, gradients and states this one uses.

    Attributes:
        replicas: the executors of each device; `replicas[0].current` is the first one's for the shapes at hand.
        slices: each device's slice of a batch; None where no layout has a batch axis.
        data, labels: descriptions of what is fed; of labels None without any.
        has_run: whether a batch has been run.
    """

    def __init__(
        self,
        symbol: Any,
        contexts: Sequence[Context],
        work_loads: Sequence[float],
        names: ArgumentNames,
        data_shapes: Any,
        label_shapes: Any,
        requests: Mapping[str, str],
        shared: Binding | None = None,
        group2ctxs: Any = None,
    ) -> None:
        self._symbol, self._names, self._work_loads = symbol, names, list(work_loads)
        self.data: list[DataDesc]
        self.labels: list[DataDesc] | None
        self.slices: list[slice] | None = None
        self.has_run = False
        others = shared.replicas if shared is not None else [None] * len(contexts)
        self.replicas: list[Executors] = [
            Executors(symbol, context, names.fed, requests, other, groups)
            for context, other, groups in zip(contexts, others, _group_contexts(group2ctxs, len(contexts)), strict=True)
        ]
        for replica in self.replicas[1:]:
            replica.writes = self.replicas[0].writes
        self.reshape(data_shapes, label_shapes)

    @property
    def executors(self) -> Executors:
        """The executors of the first device."""
        return self.replicas[0]

    @cached_property
    def output_axes(self) -> list[int]:
        """The batch axis of each output, by its symbol's `__layout__`; -1 for none."""
        return [DataDesc.get_batch_axis(output.attr("__layout__")) for output in self._symbol]

    def reshape(self, data_shapes: Any, label_shapes: Any) -> None:
        """Use other input shapes from now on; the parameters stay."""
        self.data, self.labels = described(self._names, data_shapes, label_shapes)
        descs = [*self.data, *(self.labels or [])]
        size = next((int(desc.shape[_axis(desc)]) for desc in descs if _axis(desc) >= 0), None)
        self.slices = None if size is None else _split_input_slice(size, self._work_loads)
        for number, replica in enumerate(self.replicas):
            replica.select([self._sliced_desc(number, desc) for desc in descs])

    def _sliced_desc(self, number: int, desc: DataDesc) -> DataDesc:
        """Return the slice of an array for device `number`."""
        axis = _axis(desc)
        if len(self.replicas) == 1 or self.slices is None or axis < 0:
            return desc
        part = self.slices[number]
        shape = (*desc.shape[:axis], part.stop - part.start, *desc.shape[axis + 1 :])
        return DataDesc(desc.name, shape, desc.dtype, desc.layout)

    def sliced(self, number: int, descs: Sequence[DataDesc], arrays: Sequence[Any]) -> list[Any]:
        """Return the slices of a batch's arrays, which `descs` describe, for device `number`."""
        if len(self.replicas) == 1 or self.slices is None:
            return list(arrays)
        part = self.slices[number]
        axes = [*map(_axis, descs), *[0] * len(arrays)]
        return [slice_of(value, axis, part) for value, axis in zip(arrays, axes, strict=False)]

    def forward(self, batch: Any, is_train: bool) -> None:
        """Feed a batch, and run it; one of other shapes than bound binds anew.

        Raises:
            TypeError: an array in the place of a batch.
            ValueError: another number of arrays than bound.
        """
        if not isinstance(getattr(batch, "data", None), list | tuple):
            raise TypeError(
                f"data_batch: expected one such as mx.io.DataBatch([array], [label]), got {value_text(batch)}"
            )
        shapes = tuple(tuple(array.shape) for array in batch.data)
        if shapes != tuple(tuple(desc.shape) for desc in self.data):
            self._reshape_to(batch, shapes)
        labels = getattr(batch, "label", None)
        for number, replica in enumerate(self.replicas):
            bound = replica.current.arg_dict
            load_batch(bound, self.data, self.sliced(number, self.data, batch.data))
            if self.labels and labels:
                load_batch(bound, self.labels, self.sliced(number, self.labels, labels))
            replica.current.forward(is_train=is_train)
        self.has_run = True

    def _reshape_to(self, batch: Any, shapes: Sequence[tuple[int, ...]]) -> None:
        check_count(self.data, shapes)
        data = getattr(batch, "provide_data", None) or [
            DataDesc(desc.name, shape, desc.dtype, desc.layout) for desc, shape in zip(self.data, shapes, strict=True)
        ]
        label = getattr(batch, "provide_label", None)
        if not label and getattr(batch, "label", None) and self.labels:
            check_count(self.labels, batch.label)
            label = [
                DataDesc(desc.name, tuple(array.shape), desc.dtype, desc.layout)
                for desc, array in zip(self.labels, batch.label, strict=True)
            ]
        self.reshape(data, label or None)

    def backward(self, out_grads: Any) -> None:
        """Compute the gradients; `out_grads` are those of the outputs, None for networks that end in a loss."""
        grads = out_grads if isinstance(out_grads, (list, tuple)) else [] if out_grads is None else [out_grads]
        heads = [grad if isinstance(grad, NDArray) else array(grad) for grad in grads]
        if len(self.replicas) == 1 or self.slices is None:
            for replica in self.replicas:
                replica.current.backward(heads or None)
            return
        for replica, part in zip(self.replicas, self.slices, strict=True):
            sliced = [slice_of(grad, axis, part) for grad, axis in zip(heads, self.output_axes, strict=False)]
            replica.current.backward(sliced or None)

    def spread_parameters(self) -> None:
        """Copy parameters and auxiliary states of the first device to the others."""
        first = self.replicas[0]
        for other in self.replicas[1:]:
            for source, target in ((first.args, other.args), (first.aux, other.aux)):
                for name, values in source.items():
                    values.copyto(target[name])

    def batch_size(self) -> int:
        """The length of the first data array's batch axis.

        Raises:
            AssertionError: no layout has such an axis.
        """
        for desc in self.data:
            if _axis(desc) >= 0:
                return int(desc.shape[_axis(desc)])
        raise AssertionError("data_shapes: expected an array whose layout has a batch axis N")


def merged(arrays: Sequence[Sequence[NDArray]], axes: Sequence[int]) -> list[NDArray]:
    """Join each array's slices of several devices along its batch axis, on the first device; -1: the first one's."""
    joined = []
    for parts, axis in zip(arrays, axes, strict=True):
        first = parts[0]
        if len(parts) == 1 or axis < 0:
            joined.append(first)
        else:
            near = [one if one._session == first._session else one.as_in_context(first.context) for one in parts]
            whole, shape = concatenate(near, axis), first.shape
            whole._shape = (
                *shape[:axis],
                sum(one.shape[axis] for one in near),
                *shape[axis + 1 :],
            )  # not to be asked for
            joined.append(whole)
    return joined


def _axis(desc: DataDesc) -> int:
    return DataDesc.get_batch_axis(desc.layout)


def _group_contexts(group2ctxs: Any, devices: int) -> list[Any]:
    """Each device's contexts by group, from a dict for all, or a list with a dict for each.

    A value of the one dict is a context, or a list of them: one for all devices, or one for each.

    Raises:
        AssertionError: something else, or a list of another length.
    """
    if group2ctxs is None:
        return [None] * devices
    if isinstance(group2ctxs, list):
        if len(group2ctxs) != devices:
            raise AssertionError(f"group2ctxs: expected a dict for each of {devices} devices, got {len(group2ctxs)}")
        return group2ctxs
    if not isinstance(group2ctxs, Mapping):
        raise AssertionError(
            f"group2ctxs: expected a dict of contexts by group, or a list, got {value_text(group2ctxs)}"
        )
    rows: list[dict[str, Any]] = [{} for _ in range(devices)]
    for group, value in group2ctxs.items():
        listed = list(value) if isinstance(value, list | tuple) else [value]
        if len(listed) not in (1, devices):
            raise AssertionError(
                f"group2ctxs: {group}: expected a context, or one for each of {devices} devices, got {len(listed)}"
            )
        for number, row in enumerate(rows):
            row[group] = listed[number % len(listed)]
    return rows
