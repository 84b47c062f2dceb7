"""A module's symbol, bound on a device: fed with batches of any size, and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..base import value_text
from ..context import Context
from ..io import DataDesc
from ..ndarray import NDArray, array
from .executors import Executors
from .feed import check_count, load_batch
from .names import ArgumentNames, described

__all__ = ["Binding"]


class Binding:
    """The executors of a module, and the descriptions of what they are fed.

    Args:
        symbol: the network.
        context: the device.
        names: the symbol's arguments.
        data_shapes, label_shapes: `DataDesc`s or pairs (name, shape).
        requests: the gradient request of each argument.
        shared: a binding whose parameters, gradients and states this one uses.

    Attributes:
        executors: they; `executors.current` is the one for the shapes at hand.
        data, labels: descriptions of what is fed; of labels None without any.
        has_run: whether a batch has been run.
    """

    def __init__(
        self,
        symbol: Any,
        context: Context,
        names: ArgumentNames,
        data_shapes: Any,
        label_shapes: Any,
        requests: Mapping[str, str],
        shared: Binding | None = None,
    ) -> None:
        self._names = names
        self.data: list[DataDesc]
        self.labels: list[DataDesc] | None
        self.has_run = False
        arrays = shared.executors if shared is not None else None
        self.executors: Executors = Executors(symbol, context, names.fed, requests, arrays)
        self.reshape(data_shapes, label_shapes)

    def reshape(self, data_shapes: Any, label_shapes: Any) -> None:
        """Use other input shapes from here on; the parameters stay."""
        self.data, self.labels = described(self._names, data_shapes, label_shapes)
        self.executors.select([*self.data, *(self.labels or [])])

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
        executor = self.executors.current
        load_batch(executor.arg_dict, self.data, batch.data)
        labels = getattr(batch, "label", None)
        if self.labels and labels:
            load_batch(executor.arg_dict, self.labels, labels)
        executor.forward(is_train=is_train)
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
        if out_grads is None:
            self.executors.current.backward()
        else:
            grads = out_grads if isinstance(out_grads, (list, tuple)) else [out_grads]
            self.executors.current.backward([grad if isinstance(grad, NDArray) else array(grad) for grad in grads])

    def batch_size(self) -> int:
        """The length of the first data array's batch axis.

        Raises:
            AssertionError: no layout has such an axis.
        """
        for desc in self.data:
            axis = DataDesc.get_batch_axis(desc.layout)
            if axis >= 0:
                return int(desc.shape[axis])
        raise AssertionError("data_shapes: expected an array whose layout has a batch axis N")
