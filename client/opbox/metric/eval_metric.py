"""The base of metrics, and the registry.

A metric counts twice: since the last `reset` (global) and since the last `reset_local`, which Speedometer calls after
each line of the log.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy

from opbox_protocol.errors import MXNetError

from .. import registry
from ..io.host_array import HostArray

__all__ = [
    "EvalMetric",
    "HostMetric",
    "PendingValue",
    "Values",
    "alias",
    "check_label_shapes",
    "host",
    "pairs",
    "register",
]

Array = numpy.ndarray[Any, Any]


class PendingValue(Protocol):
    """A value that is being fetched from the engine."""

    def done(self) -> bool:
        """Return whether the value is here."""

    def result(self) -> Array:
        """The value, waited for."""


Values = Mapping[str, HostArray | PendingValue]


def host(array: Any) -> Array:
    """An array of any kind as numpy."""
    if isinstance(array, HostArray):
        return array.host()
    return array.asnumpy() if hasattr(array, "asnumpy") else numpy.asarray(array)


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """The labels and predictions, checked to be equal in number, or with `shape` in shape.

    Args:
        wrap: put single arrays into lists.

    Raises:
        ValueError: they differ.
    """
    if shape:
        expected, got = labels.shape, preds.shape
    else:
        expected, got = len(labels), len(preds)
    if expected == 0 and not shape:
        raise ValueError(
            f"metric: expected labels to compare {got} prediction{'' if got == 1 else 's'} with, got none: give the "
            "iterator labels, as in mx.io.NDArrayIter(data, label)"
        )
    if expected != got:
        raise ValueError(f"metric: expected as many predictions as labels, {expected}, got {got}")
    if wrap:
        labels = labels if isinstance(labels, (list, tuple)) else [labels]
        preds = preds if isinstance(preds, (list, tuple)) else [preds]
    return labels, preds


class _Settled:
    """A count of a metric. Whoever touches it finds all updates so far in it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, metric: EvalMetric | None, owner: type | None = None) -> Any:
        if metric is None:
            return self
        metric._settle()
        try:
            return metric.__dict__[self.name]
        except KeyError:
            raise AttributeError(f"{type(metric).__name__} has no {self.name} yet") from None

    def __set__(self, metric: EvalMetric, value: Any) -> None:
        metric._settle()
        metric.__dict__[self.name] = value


class EvalMetric:
    """Base of metrics. A subclass defines `update(labels, preds)`, which adds to `sum_metric` and `num_inst`.

    Args:
        name: what the metric is reported as.
        output_names, label_names: which outputs and labels `update_dict` passes on; None for all.
        has_global_stats: whether the subclass also keeps `global_sum_metric` and `global_num_inst`.

    Attributes:
        deferred: whether `fit` may hold updates back until the metric is read, so that training does not wait for
            values. A subclass of one's own is updated at once unless it sets this: deferral needs that its
            state is read through `sum_metric` and `num_inst`, or by `get`.
    """

    deferred: ClassVar[bool] = False

    sum_metric: Any = _Settled()
    num_inst: Any = _Settled()
    global_sum_metric: Any = _Settled()
    global_num_inst: Any = _Settled()

    _pending: deque[tuple[Values, Values]] | None = None
    _asked = _taken = 0

    def __init__(
        self,
        name: Any,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.name = str(name)
        self.output_names = output_names
        self.label_names = label_names
        self._has_global_stats = kwargs.pop("has_global_stats", False)
        self._kwargs = kwargs
        self.reset()

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which `create` makes an equal metric."""
        return {
            **self._kwargs,
            "metric": type(self).__name__,
            "name": self.name,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Update from labels and outputs by name."""
        preds = [pred[n] for n in self.output_names] if self.output_names is not None else list(pred.values())
        labels = [label[n] for n in self.label_names] if self.label_names is not None else list(label.values())
        self.update(labels, preds)

    def update(self, labels: Any, preds: Any) -> None:
        """Take a batch's labels and predictions (lists of arrays) into account."""
        raise NotImplementedError(f"{type(self).__name__} must define update(labels, preds)")

    def update_later(self, label: Values, pred: Values) -> None:
        """Update from values under way: now as far as they are here, the rest when the metric is read."""
        self._asked += 1
        if not self.deferred:
            self.update_dict(_arrays(label), _arrays(pred))
            self._taken += 1
            return
        if self._pending is None:
            self._pending = deque()
        self._pending.append((label, pred))
        self._settle(wait=False)

    def _settle(self, wait: bool = True) -> None:
        """Make up for updates held back, oldest first; without `wait`, those whose values are here."""
        queue = self._pending
        if not queue:
            return
        self._pending = None  # the updates below touch the counts, and must not come back here
        try:
            while queue and (wait or all(_here(value) for values in queue[0] for value in values.values())):
                label, pred = queue.popleft()
                self.update_dict(_arrays(label), _arrays(pred))
                self._taken += 1
        finally:
            self._pending = queue or None

    def drop_lost(self) -> list[tuple[EvalMetric, int]]:
        """Leave out the updates held back whose values were lost with their session; the others are made up for.

        Returns:
            How many were lost since the last time, of this metric or of each that it consists of.
        """
        while self._pending:
            with contextlib.suppress(MXNetError):
                self._settle()
        lost, self._asked, self._taken = self._asked - self._taken, 0, 0
        return [(self, lost)]

    def reset(self) -> None:
        """Reset all counts."""
        self.num_inst = 0
        self.sum_metric = 0.0
        self.global_num_inst = 0
        self.global_sum_metric = 0.0

    def reset_local(self) -> None:
        """Forget what `get` reports; `get_global` goes on."""
        self.num_inst = 0
        self.sum_metric = 0.0

    def get(self) -> tuple[Any, Any]:
        """Name and value since the last `reset_local`; nan when nothing came."""
        if self.num_inst == 0:
            return self.name, float("nan")
        return self.name, _plain(self.sum_metric / self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        """Name and value since the last `reset`."""
        if not self._has_global_stats:
            return self.get()
        if self.global_num_inst == 0:
            return self.name, float("nan")
        return self.name, _plain(self.global_sum_metric / self.global_num_inst)

    def so_far(self) -> list[tuple[str, Any]]:
        """As `get_global_name_value`, of those updates whose values are here: it waits for none. Empty before any."""
        self._settle(wait=False)
        held_back, self._pending = self._pending, None
        try:
            return self.get_global_name_value() if self.__dict__.get("num_inst") else []
        finally:
            self._pending = held_back

    def get_name_value(self) -> list[tuple[str, Any]]:
        """Return pairs of name and value, one for each metric."""
        return pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, Any]]:
        """Pairs of name and value since the last `reset`."""
        return pairs(*(self.get_global() if self._has_global_stats else self.get()))


def _plain(value: Any) -> Any:
    """A number of Python's, which prints as a number; anything else as it is."""
    return value.item() if isinstance(value, numpy.generic) else value


def _here(value: Any) -> bool:
    return isinstance(value, HostArray) or bool(value.done())


def _arrays(arrays: Mapping[str, Any]) -> dict[str, HostArray]:
    return {
        name: array if isinstance(array, HostArray) else HostArray(array.result()) for name, array in arrays.items()
    }


def pairs(name: Any, value: Any) -> list[tuple[str, Any]]:
    """Names and values of a metric's `get` side by side, single ones or lists."""
    names = name if isinstance(name, list) else [name]
    values = value if isinstance(value, list) else [value]
    return list(zip(names, values, strict=False))


register = registry.get_register_func(EvalMetric, "metric")
alias = registry.get_alias_func(EvalMetric, "metric")


class HostMetric(EvalMetric):
    """A metric computed on numpy arrays, that counts both locally and globally."""

    deferred = True

    def __init__(
        self,
        name: Any,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, output_names, label_names, **{"has_global_stats": True, **kwargs})

    def _add(self, total: Any, count: Any) -> None:
        self.sum_metric += total
        self.global_sum_metric += total
        self.num_inst += count
        self.global_num_inst += count
