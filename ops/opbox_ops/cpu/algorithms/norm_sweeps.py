"""Batch normalisation with ReLU over a matrix (positions, channels), in as few sweeps through memory as there can be.

Forward is the first two, backward the others:

    statistics   mean, variance of each channel             one sweep: a block of rows stays in the cache
    normalize    y = relu(v)                                one sweep
    sums         gbeta = sum g', ggamma = sum g' (x - mean) one sweep
    gradient     gx = ((x - mean) share + g' - less) scale  one sweep

with v = (x - mean) scale + beta, and g' = g where v > 0, else g * 0. NaN stays NaN. C kernels compute, in threads, as
soon as there are some (`CKernel`), and NumPy before, block by block in the same order: the bits are the same, whatever
the number of threads. Forward and backward are a kernel each, with what is computed for each channel between sweeps.
The statistics of blocks are put together in double precision, as Chan, Golub and LeVeque do, "Algorithms for computing
the sample variance" (1983).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import Structure, addressof, c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...bound_calls import place_of
from ...cache import elements
from ...compute import Array, Arrays, Temp
from ...nn.batch_norm import invert, move
from ..runtime.c_kernel import CKernel
from ..runtime.kernel_text import kernel_text

__all__ = ["Norm", "NormSweeps"]

TEXT = kernel_text("norm_sweeps.c")
HOT = 1 << 24
"""Elements that NumPy sweeps before kernels are asked for: some 30 ms."""
BLOCK = elements(8)
"""Elements of a block of rows, of which a gradient reads two arrays."""


class _NormSizes(Structure):
    _fields_ = [
        *[(name, c_long) for name in ("positions", "channels", "rows")],
        ("fixes_gamma", c_int),
        *[(name, c_float) for name in ("eps", "momentum", "rest")],
    ]


@dataclass(frozen=True, slots=True)
class Norm:
    """A BatchNorm's parameters: see its own for what they are."""

    eps: float
    momentum: float
    fix_gamma: bool


def new_kernels() -> dict[str, CKernel]:
    """The kernels by name, not compiled yet."""
    arrays = {"opbox_norm_forward": 12, "opbox_norm_backward": 19}
    return {
        name: CKernel(TEXT, name, [*[c_void_p] * (count + 1), c_int], HOT, threads=True)
        for name, count in arrays.items()
    }


_KERNELS = new_kernels()


class NormSweeps:
    """The sweeps over matrices of one shape.

    Args:
        positions, channels: of the matrices, C-contiguous arrays of float32; at least 1 and 2.
    """

    def __init__(self, positions: int, channels: int) -> None:
        self.positions, self.channels = positions, channels
        self.rows = min(positions, max(1, BLOCK // channels))
        self._blocks = -(-positions // self.rows)
        counts = np.full((self._blocks, 1), self.rows, np.float64)
        counts[-1] = positions - (self._blocks - 1) * self.rows
        self._counts = counts

    @property
    def forward_temps(self) -> list[Temp]:
        """Room for the blocks' results, for the same in double precision, for their sums, and for a block."""
        of_blocks, block = (self._blocks, 2, self.channels), (self.rows, self.channels)
        return [Temp(of_blocks), Temp(of_blocks, np.float64), Temp((2, self.channels), np.float64), Temp(block)]

    @property
    def temps(self) -> list[Temp]:
        """The same for backward: for two blocks."""
        return [*self.forward_temps, self.forward_temps[-1]]

    def forward(
        self, norm: Norm, x: Array, y: Array, inputs: Arrays, results: Arrays, temps: Arrays
    ) -> Callable[[bool], None]:
        """Return a call that writes y = relu(BatchNorm(x)) and results, by the batch's statistics or the moving ones.

        Args:
            norm: BatchNorm's parameters.
            x, y: the matrices.
            inputs: gamma, which is not read where it is fixed, beta, moving mean and moving variance.
            results: mean, 1 / sqrt(variance + eps), and room for the variance and for the scale.
            temps: `forward_temps`.
        """
        run = self._kernel("opbox_norm_forward", norm, (x, y, *inputs, *results, temps[0], temps[2]))
        gamma, beta, moving_mean, moving_var = inputs
        mean, inverse, variance, scale = results

        def call(of_batch: bool) -> None:
            if run(of_batch):
                return
            if of_batch:
                self.statistics(x, mean, variance, temps)
            else:
                np.copyto(mean, moving_mean)
                np.copyto(variance, moving_var)
            invert(np, variance, norm.eps, inverse)
            np.multiply(inverse, 1 if norm.fix_gamma else gamma, out=scale)
            self.normalize(x, y, (mean, scale, beta), temps)

        return call

    def backward(
        self,
        norm: Norm,
        matrices: tuple[Array, Array, Array | None, Array | None],
        inputs: Arrays,
        results: tuple[Array | None, Array | None],
        scratches: Arrays,
        temps: Arrays,
    ) -> Callable[[bool], None]:
        """Return a call that writes the gradients, and moves the moving statistics where those of the batch are used.

        Args:
            norm: BatchNorm's parameters.
            matrices: x, g, what is added to the gradient of x, or None, and that gradient, which may be where g or the
                addend is, or None.
            inputs: gamma, beta, moving mean, moving variance, and forward's mean and 1 / sqrt(variance + eps).
            results: the gradients of gamma and beta, or None.
            scratches: five arrays, a number for each channel.
            temps: `temps`.
        """
        arrays = (*matrices, *results, *inputs, *scratches, temps[0], temps[2])
        run = self._kernel("opbox_norm_backward", norm, arrays)
        (x, g, addend, gx), (gamma, beta, moving_mean, moving_var, mean, inverse) = matrices, inputs
        scale, ggamma, gbeta, share, less = scratches
        factor = -1 / self.positions

        def call(of_batch: bool) -> None:
            if run(of_batch):
                return
            np.multiply(inverse, 1 if norm.fix_gamma else gamma, out=scale)
            numbers = (mean, scale, beta)
            self.sums(x, g, numbers, gbeta, ggamma, temps)
            if of_batch:
                ggamma[...] *= inverse
                np.multiply(ggamma, inverse, out=share)
                np.multiply(share, factor, out=share)
                np.multiply(gbeta, -factor, out=less)
            else:
                # Forward may have trained: the gradient is by the moving statistics, the ReLU by forward's.
                np.subtract(mean, moving_mean, out=less)
                np.multiply(less, gbeta, out=less)
                np.add(ggamma, less, out=ggamma, where=mean != moving_mean)
                invert(np, moving_var, norm.eps, share)
                ggamma[...] *= share
                np.multiply(share, 1 if norm.fix_gamma else gamma, out=share)
            if gx is not None:
                self.gradient((x, g, addend), gx, numbers, share, less, of_batch, temps)
            if results[0] is not None:
                results[0][...] = 0 if norm.fix_gamma else ggamma
            if results[1] is not None:
                results[1][...] = gbeta
            if of_batch:
                move(np, moving_mean, mean, norm.momentum, less)
                np.square(inverse, out=share)
                np.reciprocal(share, out=share)
                np.subtract(share, norm.eps, out=share)
                move(np, moving_var, share, norm.momentum, less)

        return call

    def _kernel(self, name: str, norm: Norm, arrays: Sequence[Array | None]) -> Callable[[bool], bool]:
        """Return a call of a kernel with `of_batch`; it returns False, and does nothing, while there is none."""
        kernel = _KERNELS[name].asked_by(self.positions * self.channels)
        sizes = _NormSizes(
            self.positions, self.channels, self.rows, norm.fix_gamma, norm.eps, norm.momentum, 1 - norm.momentum
        )
        arguments = (*map(place_of, arrays), addressof(sizes))

        def run(of_batch: bool, alive: Any = (arrays, sizes)) -> bool:
            function = kernel()
            if function is None:
                return False
            function(*arguments, of_batch)
            return True

        return run

    def _pieces(self) -> Iterator[tuple[int, slice, int]]:
        """The number of each block, its rows, and how many they are."""
        for b in range(self._blocks):
            rows = slice(b * self.rows, min((b + 1) * self.rows, self.positions))
            yield b, rows, rows.stop - rows.start

    def statistics(self, x: Array, mean: Array, variance: Array, temps: Arrays) -> None:
        """Write the mean and the biased variance of each channel."""
        partial, wide, sums, scratch, *_ = temps
        for b, rows, count in self._pieces():
            _total(x[rows], partial[b, 0])
            np.divide(partial[b, 0], np.float32(count), out=partial[b, 0])
            centred = np.subtract(x[rows], partial[b, 0], out=scratch[:count])
            _total(np.square(centred, out=centred), partial[b, 1])
        np.copyto(wide, partial)
        means, squares = wide[:, 0], wide[:, 1]
        np.multiply(means, self._counts, out=means)
        _total(means, sums[0])
        np.divide(sums[0], self.positions, out=sums[0])
        np.copyto(means, partial[:, 0])
        np.subtract(means, sums[0], out=means)
        np.square(means, out=means)
        np.multiply(means, self._counts, out=means)
        np.add(squares, means, out=squares)
        _total(squares, sums[1])
        np.divide(sums[1], self.positions, out=sums[1])
        np.copyto(mean, sums[0], casting="same_kind")
        np.copyto(variance, sums[1], casting="same_kind")

    def normalize(self, x: Array, y: Array, numbers: tuple[Array, Array, Array], temps: Arrays) -> None:
        """Write relu(v); `numbers` are mean, scale and shift."""
        mean, scale, shift = numbers
        for _, rows, count in self._pieces():
            value = np.subtract(x[rows], mean, out=temps[3][:count])
            np.multiply(value, scale, out=value)
            np.add(value, shift, out=value)
            np.maximum(value, 0, out=value)
            np.add(value, np.float32(0), out=y[rows])  # no -0

    def sums(
        self,
        x: Array,
        g: Array,
        numbers: tuple[Array, Array, Array],
        gbeta: Array,
        ggamma: Array,
        temps: Arrays,
    ) -> None:
        """Write the sums of g', and of g' (x - mean)."""
        partial, wide, sums, *_ = temps
        for b, rows, _ in self._pieces():
            centred, gradient = self._gated(x[rows], g[rows], numbers, temps)
            _total(gradient, partial[b, 0])
            _total(np.multiply(centred, gradient, out=centred), partial[b, 1])
        np.copyto(wide, partial)
        _total(wide, sums)
        np.copyto(gbeta, sums[0], casting="same_kind")
        np.copyto(ggamma, sums[1], casting="same_kind")

    def gradient(
        self,
        sources: tuple[Array, Array, Array | None],
        gx: Array,
        numbers: tuple[Array, Array, Array],
        share: Array,
        less: Array,
        of_batch: bool,
        temps: Arrays,
    ) -> None:
        """Write gx; without `of_batch` it is g' share. `sources` are x, g and what is added or None."""
        x, g, addend = sources
        factor = numbers[1] if of_batch else share
        for _, rows, _ in self._pieces():
            centred, gradient = self._gated(x[rows], g[rows], numbers, temps)
            if of_batch:
                np.multiply(centred, share, out=centred)
                np.add(centred, gradient, out=gradient)
                np.subtract(gradient, less, out=gradient)
            if addend is None:
                np.multiply(gradient, factor, out=gx[rows])
            else:
                np.multiply(gradient, factor, out=gradient)
                np.add(gradient, addend[rows], out=gx[rows])

    def _gated(self, x: Array, g: Array, numbers: tuple[Array, Array, Array], temps: Arrays) -> tuple[Array, Array]:
        """x - mean, and g', of a block."""
        mean, scale, shift = numbers
        centred = np.subtract(x, mean, out=temps[3][: len(x)])
        value = np.multiply(centred, scale, out=temps[4][: len(x)])
        np.add(value, shift, out=value)
        np.greater(value, 0, out=value)
        return centred, np.multiply(g, value, out=value)


def _total(rows: Array, out: Array) -> None:
    """Write the sum of the rows, from 0 on and one after the other, as the kernels do: 0 in place of -0."""
    np.add.reduce(rows, axis=0, out=out, initial=0)
