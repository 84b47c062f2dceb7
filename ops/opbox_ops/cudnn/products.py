"""Convolutions as products of cuBLAS, beside cuDNN's algorithms: further candidates for a problem, and how they run.

    BY_SAMPLE  a product for each sample, in one call; a weight's gradient is then the sum of the samples' products
    WHOLE      one product over all samples: with the channels second, the samples are copied side by side before it

A kernel of 1 without padding is multiplied as it lies or, with a stride, after one copy of what it visits. With another
kernel and a stride, out reads columns of windows, and the gradient of data sums up columns; the gradient of any weight
reads columns. All sums are in one order. Columns take a bounded workspace: as many samples at a time as there is room
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..bound_calls import Call, as_one
from ..compute import Array
from ..cuda.product import product
from ..cuda.window_columns import joined, swapped, window_columns, window_sums
from .algorithms import DATA, FORWARD, ConvolutionProblem, ProductForm, UsableAlgorithm, usable_algorithms
from .forms import ConvolutionSizes, carved, is_recommended, usable_forms
from .library import DeviceHandle
from .planned import ConvolutionArrays, PlannedConvolution, bias_behind, channels_second

__all__ = ["PlannedProducts", "planned", "usable"]


class PlannedProducts:
    """A problem with one of the products that run it."""

    def __init__(self, cupy: Any, problem: ConvolutionProblem, algorithm: UsableAlgorithm) -> None:
        self._xp, self._problem = cupy, problem
        self._form, self._sizes = ProductForm(algorithm.number), ConvolutionSizes(problem)

    def bind(self, arrays: ConvolutionArrays) -> Callable[[], Any]:
        """A call that computes the direction's result from the others, in the current stream."""
        direction, sizes = self._problem.direction, self._sizes
        memory = carved(sizes.temps(self._form) or {}, arrays.workspace)
        if direction is FORWARD:
            calls = list(self._forward(arrays, memory))
        elif direction is DATA:
            calls = list(self._data_gradient(arrays, memory))
        else:
            calls = list(self._weight_gradient(arrays, memory))
        if arrays.bias is not None:
            out = channels_second(arrays.out) if sizes.last else arrays.out
            calls.append(bias_behind(self._xp, out, arrays.bias))
        return as_one(calls)

    def _product(self, a: Array, b: Array, out: Array, *, add: bool = False) -> Call:
        """out = a @ b, of matrices or as many of them as out has."""
        lead = out.shape[:-2] or (1,)
        a, b = (self._xp.broadcast_to(array, (*lead, *array.shape[-2:])) for array in (a, b))
        return product(self._xp, a[:, None], b[:, None], out.reshape(*lead, *out.shape[-2:])[:, None], add=add)

    def _forward(self, arrays: ConvolutionArrays, memory: dict[str, Array]) -> Iterator[Call]:
        """out = weight @ columns."""
        z, xp = self._sizes, self._xp
        weight = arrays.weight.reshape(z.filters, z.depth)
        data, out = (array.reshape(z.samples, -1) for array in (arrays.data, arrays.out))
        if self._form is ProductForm.WHOLE and not z.last:
            if z.is_plain:
                columns, products = memory["beside"], memory["columns"]
                yield swapped(xp, data, columns, (z.samples, z.channels, z.positions))
            else:
                columns, products = memory["columns"], memory["products"]
                yield window_columns(xp, data, columns, z.samples, z.numbers, (z.places, z.positions))
            yield self._product(weight, columns, products)
            yield self._apart(products, out.reshape(z.samples, z.filters, z.positions))
            return
        for block in z.blocks():
            columns, samples = data[block], block.stop - block.start
            if not z.is_plain:
                columns = memory["columns"].reshape(-1)[: samples * z.depth * z.positions]
                steps = None if z.last else (z.positions, z.depth * z.positions)
                yield window_columns(xp, data[block], columns, samples, z.numbers, steps)
            if z.last:
                yield self._product(columns.reshape(-1, z.depth), weight.T, out[block].reshape(-1, z.filters))
            else:
                shape = (samples, -1, z.positions)
                yield self._product(weight, columns.reshape(shape), out[block].reshape(shape))

    def _apart(self, columns: Array, out: Array) -> Call:
        """Samples that lie side by side, each in its place."""
        z, (samples, channels, positions) = self._sizes, out.shape
        if columns.dtype == out.dtype:
            return swapped(self._xp, columns, out, (channels, samples, positions))
        return window_sums(self._xp, columns, out, samples, z.plain_numbers(channels), (z.places, positions))

    def _data_gradient(self, arrays: ConvolutionArrays, memory: dict[str, Array]) -> Iterator[Call]:
        """Columns = weight.T @ gout, summed up at their places."""
        z, xp = self._sizes, self._xp
        weight = arrays.weight.reshape(z.filters, z.depth)
        if z.last:
            yield from self._last_data_gradient(weight, arrays, memory)
            return
        gout = arrays.out.reshape(z.samples, z.filters, z.positions)
        gdata = arrays.data.reshape(z.samples, z.channels, -1)
        if self._form is ProductForm.WHOLE:
            beside, columns = memory["beside"], memory["columns"]
            yield swapped(xp, gout, beside, gout.shape)
            yield self._product(weight.T, beside, columns)
            if z.is_plain:
                yield self._apart(columns, gdata)
            else:
                yield window_sums(xp, columns, gdata, z.samples, z.numbers, (z.places, z.positions))
            return
        if z.is_plain:
            yield self._product(weight.T, gout, gdata)
            return
        for block in z.blocks():
            columns = memory["columns"][: block.stop - block.start]
            yield self._product(weight.T, gout[block], columns)
            yield window_sums(xp, columns, gdata[block], len(columns), z.numbers, (z.positions, z.depth * z.positions))

    def _last_data_gradient(self, weight: Array, arrays: ConvolutionArrays, memory: dict[str, Array]) -> Iterator[Call]:
        z = self._sizes
        gout = arrays.out.reshape(z.samples, z.positions, z.filters)
        gdata = arrays.data.reshape(z.samples, -1, z.channels)
        if z.is_plain:
            yield self._product(gout.reshape(z.places, -1), weight, gdata.reshape(z.places, -1))
            return
        for block in z.blocks():
            samples = block.stop - block.start
            columns = memory["columns"][: samples * z.positions]
            yield self._product(gout[block].reshape(len(columns), -1), weight, columns)
            yield window_sums(self._xp, columns, gdata[block], samples, z.numbers, None)

    def _weight_gradient(self, arrays: ConvolutionArrays, memory: dict[str, Array]) -> Iterator[Call]:
        """gweight = gout @ columns.T, over all samples."""
        z, xp = self._sizes, self._xp
        gweight = arrays.weight.reshape(z.filters, z.depth)
        if self._form is ProductForm.BY_SAMPLE:
            columns, gout = arrays.data, arrays.out.reshape(z.samples, z.filters, z.positions)
            if not z.is_plain:
                columns, steps = memory["columns"], (z.positions, z.depth * z.positions)
                yield window_columns(xp, arrays.data, columns, z.samples, z.numbers, steps)
            columns = columns.reshape(z.samples, z.depth, z.positions)
            yield self._product(gout, columns.swapaxes(1, 2), memory["parts"])
            yield joined(xp, memory["parts"], gweight, z.samples)
            return
        total = memory.get("total", gweight)
        for block in z.blocks():
            gout, columns, copies = self._block(arrays, memory, block)
            yield from copies
            yield self._product(gout, columns, total, add=block.start > 0)
        if total is not gweight:
            yield joined(xp, total, gweight, 1)

    def _block(
        self, arrays: ConvolutionArrays, memory: dict[str, Array], block: slice
    ) -> tuple[Array, Array, list[Call]]:
        """A block's gout (filters, windows) and columns (windows, depth), and the calls that copy them."""
        z, xp = self._sizes, self._xp
        data, gout = (array.reshape(z.samples, -1)[block] for array in (arrays.data, arrays.out))
        samples, copies = len(data), list[Call]()
        places = samples * z.positions
        if z.last:
            if z.is_plain:
                columns = data.reshape(places, z.depth)
            else:
                columns = memory["columns"][:places]
                copies.append(window_columns(xp, data, columns, samples, z.numbers, None))
            return gout.reshape(places, z.filters).T, columns, copies
        if z.is_plain and samples == 1:
            columns = data.reshape(z.depth, places)
        else:
            columns = memory["columns"].reshape(-1)[: z.depth * places].reshape(z.depth, places)
            if z.is_plain:
                copies.append(swapped(xp, data, columns, (samples, z.depth, z.positions)))
            else:
                copies.append(window_columns(xp, data, columns, samples, z.numbers, (places, z.positions)))
        if samples == 1:
            return gout.reshape(z.filters, places), columns.T, copies
        beside = memory["beside"].reshape(-1)[: z.filters * places].reshape(z.filters, places)
        copies.append(swapped(xp, gout, beside, (samples, z.filters, z.positions)))
        return beside, columns.T, copies


def usable(handle: DeviceHandle, problem: ConvolutionProblem) -> list[UsableAlgorithm]:
    """What may run a problem on the current device, the recommended first; empty where cuDNN has no algorithm for it.

    Nothing runs.
    """
    algorithms = usable_algorithms(handle, problem)
    if not algorithms:
        return []
    forms = usable_forms(problem)
    first = [form for form in forms if is_recommended(problem, form)]
    return [*first, *algorithms, *(form for form in forms if form not in first)]


def planned(
    handle: DeviceHandle, problem: ConvolutionProblem, algorithm: UsableAlgorithm
) -> PlannedConvolution | PlannedProducts:
    """A problem with what is to run it."""
    if algorithm.is_product:
        return PlannedProducts(handle.cupy, problem, algorithm)
    return PlannedConvolution(handle, problem, algorithm)
