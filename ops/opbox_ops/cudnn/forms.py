"""Which products may run a convolution beside cuDNN's algorithms, the workspace of each, and when one is recommended.

A plan asks this without running anything; `products` has what the forms do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from .. import switches, trust
from ..accumulation import accumulation_type
from ..compute import Array
from ..cuda.window_columns import numbers_of
from .algorithms import (
    DATA,
    FORWARD,
    WEIGHT,
    WORKSPACE_ALIGNMENT,
    ConvolutionProblem,
    ProductForm,
    UsableAlgorithm,
    algorithm_name,
    aligned,
)
from .library import Math

__all__ = ["MAX_WORKSPACE", "ConvolutionSizes", "carved", "is_recommended", "usable_forms"]


MAX_WORKSPACE = 256 << 20
"""Bytes of workspace that a product takes at most."""
_MAX_TAPS = 64
"""Taps of a kernel whose windows are copied."""
_MAX_POSITIONS = 1024
"""Up to so many positions, samples may be copied side by side so that a product has enough columns."""
_MAX_NUMBERS, _MIN_POSITIONS = 1 << 18, 128
"""A weight with at most so many numbers is multiplied by sample, if a sample has so many positions."""
_WORTH = 1 << 26
"""Multiplications from which on a product may be recommended: fewer take no longer than a few launches."""


_Temps: TypeAlias = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shapes and types of arrays, by name."""


class ConvolutionSizes:
    """What is multiplied for a problem of one group.

    Attributes:
        samples, channels, filters: of data and out.
        taps: of the kernel.
        positions: windows of a sample.
        last: whether the channels lie last.
        dtype, wide: the type of the arrays, and the one that is added up in.
    """

    def __init__(self, problem: ConvolutionProblem) -> None:
        wide, weight, narrow = problem.shapes
        self.problem, self.last = problem, problem.last
        self.samples, self.channels, self.filters = wide[0], wide[1], weight[0]
        self.taps, self.positions = math.prod(weight[2:]), math.prod(narrow[2:])
        self.dtype = np.dtype(problem.dtype)
        self.wide = accumulation_type(self.dtype)

    @property
    def depth(self) -> int:
        """Numbers of a window: channels times taps."""
        return self.channels * self.taps

    @property
    def places(self) -> int:
        """Windows of all samples."""
        return self.samples * self.positions

    @property
    def is_pointwise(self) -> bool:
        """Whether a window is a place of data."""
        return self.taps == 1 and not any(self.problem.window[2])

    @property
    def is_plain(self) -> bool:
        """Whether data are the columns: every place is a window."""
        return self.is_pointwise and set(self.problem.window[0]) == {1}

    @cached_property
    def numbers(self) -> tuple[Any, ...]:
        """The sizes, for the kernels that copy windows."""
        wide, weight, narrow = (shape[2:] for shape in self.problem.shapes)
        return numbers_of(self.channels, wide, narrow, weight, self.problem.window)

    def plain_numbers(self, channels: int) -> tuple[Any, ...]:
        """The same where every place is a window, for another number of channels."""
        return numbers_of(channels, (self.positions,), (self.positions,), (1,), ((1,), (1,), (0,)))

    def block(self) -> int:
        """Samples that are copied at a time: of those whose columns have room in the workspace; 0 if none has."""
        if self.is_plain and (self.last or self.problem.direction is FORWARD):
            return self.samples
        lines = self.depth
        itemsize = self.wide.itemsize if self.problem.direction is DATA else self.dtype.itemsize
        if self.problem.direction is WEIGHT and not self.last:
            lines += self.filters
        return min(self.samples, max(0, self.column_bytes) // (lines * self.positions * itemsize))

    def blocks(self) -> Iterator[slice]:
        """The samples, in blocks."""
        step = self.block()
        for start in range(0, self.samples, step):
            yield slice(start, min(start + step, self.samples))

    @property
    def column_bytes(self) -> int:
        """Bytes of workspace that columns may take."""
        return min(self.problem.most, MAX_WORKSPACE) - 8 * WORKSPACE_ALIGNMENT

    def temps(self, form: ProductForm) -> _Temps | None:
        """The arrays in the workspace; None where the form does not run the problem."""
        arrays = {FORWARD: self._of_forward, DATA: self._of_data, WEIGHT: self._of_weight}[self.problem.direction](form)
        if arrays is None or _bytes_of(arrays) > min(self.problem.most, MAX_WORKSPACE):
            return None
        return arrays

    def _of_forward(self, form: ProductForm) -> _Temps | None:
        if self.is_plain:
            return self._side_by_side(form, self.channels, self.filters)
        if max(self.problem.window[0]) == 1 or not self._copies_windows:
            return None
        block, whole = self.block(), form is ProductForm.WHOLE
        if self.last or not whole:
            shape = (block * self.positions, self.depth) if self.last else (block, self.depth, self.positions)
            return {"columns": (shape, self.dtype)} if block and whole == self.last else None
        if self.samples == 1 or self.positions > _MAX_POSITIONS:
            return None
        return {
            "columns": ((self.depth, self.places), self.dtype),
            "products": ((self.filters, self.places), self.wide),
        }

    @property
    def _copies_windows(self) -> bool:
        """Whether windows are worth copying: not where tensor cores are faster than that, or windows are large."""
        return self.taps <= _MAX_TAPS and (self.is_pointwise or self.dtype == self.wide)

    def _of_data(self, form: ProductForm) -> _Temps | None:
        stride, dilate, _ = self.problem.window
        overlaps = all(1 in pair for pair in zip(stride, dilate, strict=True))
        if not (self.is_plain or (overlaps and max(stride) > 1 and self.taps <= _MAX_TAPS)):
            return None
        if self.is_plain or form is not (ProductForm.WHOLE if self.last else ProductForm.BY_SAMPLE):
            return self._side_by_side(form, self.filters, self.depth)
        block = self.block()
        shape = (block * self.positions, self.depth) if self.last else (block, self.depth, self.positions)
        return {"columns": (shape, self.wide)} if block else None

    def _side_by_side(self, form: ProductForm, read: int, written: int) -> _Temps | None:
        """Of a product that reads and writes so many lines: as they lie, or with the samples side by side."""
        if form is (ProductForm.WHOLE if self.last else ProductForm.BY_SAMPLE):
            return {}
        if form is not ProductForm.WHOLE or self.samples == 1 or self.positions > _MAX_POSITIONS:
            return None
        return {"beside": ((read, self.places), self.dtype), "columns": ((written, self.places), self.wide)}

    def _of_weight(self, form: ProductForm) -> _Temps | None:
        if not self._copies_windows:
            return None
        result = (self.filters, self.depth)
        if form is ProductForm.BY_SAMPLE:
            if self.last or self.samples == 1:
                return None
            columns: _Temps = (
                {} if self.is_plain else {"columns": ((self.samples, self.depth, self.positions), self.dtype)}
            )
            return {**columns, "parts": ((self.samples, *result), self.wide)}
        block = self.block()
        if not block:
            return None
        total: _Temps = {"total": (result, self.wide)} if self.dtype != self.wide and block < self.samples else {}
        places = block * self.positions
        if self.last:
            return total if self.is_plain else {"columns": ((places, self.depth), self.dtype), **total}
        copies = {"columns": ((self.depth, places), self.dtype), "beside": ((self.filters, places), self.dtype)}
        return {**copies, **total}


def _bytes_of(temps: _Temps) -> int:
    return sum(aligned(math.prod(shape) * dtype.itemsize) for shape, dtype in temps.values())


def carved(temps: _Temps, workspace: Array) -> dict[str, Array]:
    """The arrays of `ConvolutionSizes.temps`, one behind the other in a workspace of bytes."""
    arrays, start = dict[str, Array](), 0
    if temps:
        start = aligned(workspace.data.ptr) - workspace.data.ptr
    for name, (shape, dtype) in temps.items():
        nbytes = math.prod(shape) * dtype.itemsize
        arrays[name] = workspace[start : start + nbytes].view(dtype).reshape(shape)
        start += aligned(nbytes)
    return arrays


def usable_forms(problem: ConvolutionProblem) -> list[UsableAlgorithm]:
    """The products that may run a problem."""
    if problem.groups > 1 or switches.is_off("convolution-products"):
        return []
    sizes, usable = ConvolutionSizes(problem), []
    for form in ProductForm:
        temps = sizes.temps(form)
        if temps is not None:
            algorithm = UsableAlgorithm(int(form), problem.math, _bytes_of(temps))
            if trust.is_trusted(algorithm_name(problem, algorithm), problem.dtype):
                usable.append(algorithm)
    return usable


def is_recommended(problem: ConvolutionProblem, form: UsableAlgorithm) -> bool:
    """Return whether a product is taken where nothing was measured: in float32 without TF32, by an H100's figures.

    Of a plain kernel of 1 all three directions are; of others the gradients, where there is a stride. cuDNN's only
    algorithm that repeats the bits of a weight's gradient has a fraction of a product's speed.
    """
    sizes = ConvolutionSizes(problem)
    is_worth = sizes.places * sizes.filters * sizes.depth >= _WORTH
    is_strided = max(problem.window[0]) > 1
    is_one = sizes.is_plain or (is_strided and problem.direction is not FORWARD)
    if problem.math != Math.FMA or problem.biased or not is_worth or not is_one:
        return False
    if problem.last:
        wanted = ProductForm.WHOLE
    elif problem.direction is WEIGHT:
        few = sizes.filters * sizes.channels <= _MAX_NUMBERS and sizes.positions >= _MIN_POSITIONS
        wanted = ProductForm.BY_SAMPLE if few and sizes.taps == 1 and sizes.samples > 1 else ProductForm.WHOLE
    else:
        together = sizes.taps > 1 and sizes.positions <= _MAX_POSITIONS and sizes.samples > 1
        wanted = ProductForm.WHOLE if together else ProductForm.BY_SAMPLE
    return form.number == wanted
