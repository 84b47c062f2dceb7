"""Contraction: a sum of products over the labels that the result lacks, in Einstein's notation.

    operands (i, j) and (j, k), result (i, k):  out[i, k] = sum over j of a[i, j] * b[j, k]

A label that one operand repeats takes its diagonal. An axis of length 1 is repeated where its label is longer
elsewhere. Arrays are multiplied from left to right, each pair as one batch of matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

from ..accumulation import accumulation_type
from ..compute import Array, Temp
from .product import product

__all__ = ["Contraction", "Labels", "contraction"]

Labels: TypeAlias = tuple[str, ...]


@dataclass
class _Run:
    """The arrays of one call."""

    xp: Any
    arrays: Sequence[Array]
    out: Array
    temps: Sequence[Array]


@dataclass(frozen=True)
class _Value:
    """An array with one axis for each of `labels`.

    Attributes:
        read: returns the array in a call.
        dtype: its element type.
        contiguous: whether its elements lie in row-major order.
    """

    labels: Labels
    read: Callable[[_Run], Array]
    dtype: Any
    contiguous: bool


class Contraction:
    """A contraction of arrays of certain shapes.

    Args:
        operands: the labels of each array's axes.
        out: the labels of the result's axes.
        sizes: the length of each label.
        shapes: of the arrays.
        out_shape: of the result, 1 where it is summed over a label's whole length.
        dtype: the element type of all arrays.

    Attributes:
        temps: the scratch that a call needs.

    Example:
        >>> rule = contraction((("i", "j"), ("j", "k")), ("i", "k"), (("i", 2), ("j", 3), ("k", 4)),
        ...                    ((2, 3), (3, 4)), (2, 4), np.dtype("float32"))
        >>> rule(np, [a, b], out, [np.empty(t.shape, t.dtype) for t in rule.temps])
    """

    def __init__(
        self,
        operands: Sequence[Labels],
        out: Labels,
        sizes: dict[str, int],
        shapes: Sequence[tuple[int, ...]],
        out_shape: tuple[int, ...],
        dtype: Any,
    ) -> None:
        self.temps: list[Temp] = []
        self._sizes = sizes
        self._dtype, self._wide = dtype, accumulation_type(dtype)
        self._out, self._out_shape = out, out_shape
        self._target = self._unique(out, out_shape)
        values = [self._operand(i, *pair) for i, pair in enumerate(zip(operands, shapes, strict=True))]
        value = values[0]
        for i in range(1, len(values)):
            rest = {label for later in values[i + 1 :] for label in later.labels} | set(self._target)
            value = self._pair(value, values[i], rest, last=i == len(values) - 1)
        self._value = self._summed(value, set(self._target))

    def __call__(self, xp: Any, arrays: Sequence[Array], out: Array, temps: Sequence[Array]) -> None:
        """Contract `arrays` into `out`."""
        run = _Run(xp, arrays, out, temps)
        value = self._value.read(run)
        if value is out:
            return
        labels, target = self._value.labels, self._view(xp, out, self._out, self._out_shape)
        if len(self._target) < len(self._own_axes(self._out, self._out_shape)):
            out.fill(0)  # beside the diagonal
        order = [labels.index(label) for label in self._target if label in labels]
        value = value.transpose(order)
        for axis, label in enumerate(self._target):
            if label not in labels:
                value = xp.expand_dims(value, axis)
        xp.copyto(target, value, casting="unsafe")

    def _own_axes(self, labels: Labels, shape: tuple[int, ...]) -> list[int]:
        """The axes that are not of length 1 beside a longer label."""
        return [i for i, label in enumerate(labels) if shape[i] != 1 or self._sizes[label] == 1]

    def _unique(self, labels: Labels, shape: tuple[int, ...]) -> Labels:
        """The labels of these axes, once."""
        return tuple(dict.fromkeys(labels[i] for i in self._own_axes(labels, shape)))

    def _view(self, xp: Any, array: Array, labels: Labels, shape: tuple[int, ...]) -> Array:
        """An array with one axis for each label that counts."""
        axes = self._own_axes(labels, shape)
        if len(axes) < len(labels):
            array = array[tuple(slice(None) if i in axes else 0 for i in range(len(labels)))]
        names = [labels[i] for i in axes]
        unique = tuple(dict.fromkeys(names))
        if len(unique) == len(names):
            return array
        strides = tuple(
            sum(step for step, name in zip(array.strides, names, strict=True) if name == one) for one in unique
        )
        return xp.lib.stride_tricks.as_strided(array, tuple(self._sizes[label] for label in unique), strides)

    def _operand(self, i: int, labels: Labels, shape: tuple[int, ...]) -> _Value:
        unique = self._unique(labels, shape)
        plain = len(unique) == len(self._own_axes(labels, shape))
        return _Value(unique, lambda run: self._view(run.xp, run.arrays[i], labels, shape), self._dtype, plain)

    def _temp(self, labels: Labels) -> int:
        """The number of a new temporary array with these axes."""
        self.temps.append(Temp(self._shape(labels), self._wide))
        return len(self.temps) - 1

    def _shape(self, labels: Labels) -> tuple[int, ...]:
        return tuple(self._sizes[label] for label in labels)

    def _size(self, labels: Labels) -> int:
        return prod(self._shape(labels))

    def _summed(self, value: _Value, wanted: set[str]) -> _Value:
        """The value, summed over the labels that nobody wants."""
        axes = tuple(i for i, label in enumerate(value.labels) if label not in wanted)
        if not axes:
            return value
        labels = tuple(label for label in value.labels if label in wanted)
        number = self._temp(labels)

        def read(run: _Run) -> Array:
            total = run.temps[number]
            run.xp.sum(value.read(run), axis=axes, dtype=total.dtype, out=total)
            return total

        return _Value(labels, read, self._wide, True)

    def _matrices(self, value: _Value, batch: Labels, rows: Labels, columns: Labels) -> Callable[[_Run], Array]:
        """Reads the value as matrices (batch, rows, columns): as it lies where it can, else as a copy."""
        shape = (self._size(batch), self._size(rows), self._size(columns))
        order = (*batch, *rows, *columns)
        if value.contiguous and value.dtype == self._wide:
            if value.labels == order:
                return lambda run: value.read(run).reshape(shape)
            if value.labels == (*batch, *columns, *rows):
                return lambda run: value.read(run).reshape(shape[0], shape[2], shape[1]).swapaxes(1, 2)
        number, axes = self._temp(order), [value.labels.index(label) for label in order]

        def copied(run: _Run) -> Array:
            copy = run.temps[number]
            run.xp.copyto(copy, value.read(run).transpose(axes))
            return copy.reshape(shape)

        return copied

    def _pair(self, a: _Value, b: _Value, wanted: set[str], *, last: bool) -> _Value:
        """The product of two values, summed over the labels that nobody wants."""
        a, b = self._summed(a, wanted | set(b.labels)), self._summed(b, wanted | set(a.labels))
        batch = tuple(label for label in a.labels if label in b.labels and label in wanted)
        rows = tuple(label for label in a.labels if label not in b.labels)
        columns = tuple(label for label in b.labels if label not in a.labels)
        inner = tuple(label for label in a.labels if label in b.labels and label not in wanted)
        if last and self._out == self._target:  # in the result's own order, where that saves a copy
            place = self._out.index
            batch, rows, columns = (tuple(sorted(labels, key=place)) for labels in (batch, rows, columns))
        left, right = self._matrices(a, batch, rows, inner), self._matrices(b, batch, inner, columns)
        labels = (*batch, *rows, *columns)
        shape = (self._size(batch), self._size(rows), self._size(columns))
        direct = last and labels == self._out and self._shape(labels) == self._out_shape and self._wide == self._dtype
        number = -1 if direct else self._temp(labels)

        def read(run: _Run) -> Array:
            result = run.out if direct else run.temps[number]
            one, other, matrices = left(run), right(run), result.reshape(shape)
            if shape[0] == 1:
                one, other, matrices = one[0], other[0], matrices[0]
            product(run.xp, one, other, matrices, ())
            return result

        return _Value(labels, read, self._wide, True)


@lru_cache(maxsize=1024)
def contraction(
    operands: tuple[Labels, ...],
    out: Labels,
    sizes: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[int, ...], ...],
    out_shape: tuple[int, ...],
    dtype: Any,
) -> Contraction:
    """The contraction, which is made once."""
    return Contraction(operands, out, dict(sizes), shapes, out_shape, dtype)
