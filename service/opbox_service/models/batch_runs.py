"""BatchRuns: runs a model on the examples of several requests, one behind the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from opbox_ops.backend import Backend
from opbox_protocol.errors import BadRequestError

from ..settings import cores
from .inner_values import InnerValues
from .model_config import ModelConfig
from .model_plans import ModelPlans, PlanKind
from .request_queue import WaitingRequest

__all__ = ["BatchRuns", "batch_sizes", "runs_at_once"]

Array: TypeAlias = "np.ndarray[Any, Any]"


class BatchRuns:
    """The runs of one model's plans. Safe to call from many threads.

    Args:
        plans: of the model.
        inputs: the names of its inputs, in order.
        inner: the values that a request may name.
        backend: where they run.
        axis: that counts examples.
        sizes: the lengths of that axis that plans are made for, in order.
    """

    def __init__(
        self,
        plans: ModelPlans,
        inputs: Sequence[str],
        inner: InnerValues,
        backend: Backend,
        axis: int,
        sizes: Sequence[int],
    ) -> None:
        self._plans = plans
        self._inputs = inputs
        self._inner = inner
        self._backend: Any = backend
        self._axis = axis
        self._sizes = sizes
        self._in_place = backend.device_type == "cpu"

    def outputs_of(self, entries: Sequence[WaitingRequest]) -> list[dict[str, Array]]:
        """Each request's outputs, in memory that is no plan's.

        Args:
            entries: of one key. Behind their examples stand zeros, up to a size that there is a plan for.

        Raises:
            BadRequestError: an output does not have the axis.
        """
        axis = self._axis
        total = sum(entry.examples for entry in entries)
        size = next(size for size in self._sizes if size >= total)
        first = [(name, entries[0].tensors[name]) for name in self._inputs]
        forms = {name: ((*t.shape[:axis], size, *t.shape[axis + 1 :]), t.dtype) for name, t in first}
        needed = self._inner.needed(entries[0].outputs)
        computed = self._inner.names_of(needed)
        kind = PlanKind(needed, inner=not self._inner.are_outputs(needed))
        with self._plans.running(self._inner.graph_of(needed), kind, forms) as plan:
            for name, array in plan.inputs.items():
                parts = [entry.tensors[name] for entry in entries]
                if self._in_place:
                    self._fill(array, parts)
                else:
                    self._backend.write(array, self._joined(parts, array.shape))
            plan.bound.forward(is_train=False, parameters=0)
            names = {name for entry in entries for name in entry.outputs}
            values = {
                name: self._rows(name, self._backend.get(plan.bound.outputs[i]), size, total)
                for i, name in enumerate(computed)
                if name in names
            }
        answers, begin, before = [], 0, (slice(None),) * axis
        for entry in entries:
            rows = (*before, slice(begin, begin + entry.examples))
            answers.append({name: values[name][rows] for name in entry.outputs})
            begin += entry.examples
        return answers

    def _fill(self, array: Array, parts: Sequence[Array]) -> None:
        """Write the parts into an array, one behind the other, and zeros behind them."""
        rows = np.moveaxis(array, self._axis, 0) if self._axis else array
        begin = 0
        for part in parts:
            end = begin + part.shape[self._axis]
            rows[begin:end] = np.moveaxis(part, self._axis, 0) if self._axis else part
            begin = end
        if begin < len(rows):
            rows[begin:] = 0

    def _joined(self, parts: Sequence[Array], shape: Sequence[int]) -> Array:
        """The parts one behind the other, with zeros behind them, in one array of this shape."""
        joined = np.empty(tuple(shape), parts[0].dtype)
        self._fill(joined, parts)
        return joined

    def _rows(self, name: str, value: Array, size: int, total: int) -> Array:
        """The examples of an output, without those that were padding, as a copy."""
        if value.ndim <= self._axis or value.shape[self._axis] != size:
            raise BadRequestError(
                f"output {name!r}: expected an axis {self._axis} of {size} examples, got shape {list(value.shape)}: "
                "the model's max_batch is to be 1"
            )
        return value[(slice(None),) * self._axis + (slice(total),)].copy()


def batch_sizes(config: ModelConfig) -> list[int]:
    """The sizes of runs: those of the model's file, or powers of two, up to the largest.

    Example:
        >>> batch_sizes(ModelConfig(max_batch=12))
        [1, 2, 4, 8, 12]
    """
    sizes = config.batch_sizes or [1 << power for power in range(config.max_batch.bit_length())]
    return sorted({size for size in sizes if size < config.max_batch} | {config.max_batch})


def runs_at_once(backend: Backend) -> int:
    """How many runs of a model at a time use the whole device: on a CPU, its cores by the threads that one has."""
    if backend.device_type != "cpu":
        return 1
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return max(1, cores() // int(threads)) if threads.isdigit() and int(threads) else 1
