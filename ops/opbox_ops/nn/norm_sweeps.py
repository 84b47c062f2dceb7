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

from ..c_kernel import CKernel
from ..cache import elements
from ..compute import Array, Arrays, Temp
from .batch_norm import invert, move

__all__ = ["Norm", "NormSweeps"]

HOT = 1 << 24
"""Elements that NumPy sweeps before kernels are asked for: some 30 ms."""
BLOCK = elements(8)
"""Elements of a block of rows, of which a gradient reads two arrays."""

_TEXT = r"""
#ifdef __AVX__
#include <immintrin.h>
#endif
#define THREADS _Pragma("omp parallel for schedule(static)")
#define EACH _Pragma("GCC ivdep") for (long j = 0; j < channels; j++)
#define BLOCKS(b) for (long b = 0; b < (positions + rows - 1) / rows; b++)
#define COUNT(b) (positions - (b) * rows < rows ? positions - (b) * rows : rows)

/* Sums of a few vectors of channels stay in registers. */
#ifdef __AVX512F__
#define WIDTH 16
#define PASS(p, v) _mm512_stream_ps(p, (__m512)(v))
#else
#define WIDTH 8
#ifdef __AVX__
#define PASS(p, v) _mm256_stream_ps(p, (__m256)(v))
#endif
#endif
#define TILE 4

/* A LARGE array is written past the caches: these would read it from memory first, and lose what else they have. */
#define LARGE (3 << 20)
#ifdef PASS
#define GOES_PAST(to) (positions * channels >= LARGE && channels % WIDTH == 0 && (long)(to) % (4 * WIDTH) == 0)
#define SETTLE _mm_sfence() /* before other threads read it */
#else
#define PASS(p, v) (LOAD(p, 0) = (v))
#define GOES_PAST(to) 0
#define SETTLE
#endif
typedef float Lanes __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int Masks __attribute__((vector_size(4 * WIDTH)));
#define LANES _Pragma("GCC unroll 4") for (int k = 0; k < TILE; k++)
#define LOAD(p, k) (*(Lanes *)((p) + WIDTH * (k)))
#define ONE ((Lanes){0} + 1.0f)
#define VECTORS(j) for (long j = 0; j < channels; j += WIDTH)
#define AT(p) LOAD((p) + j, 0)
#define GROUP 8
#define GROUPS(from, to, n) \
    for (long from = 0, to; to = from + GROUP < (n) ? from + GROUP : (n), from < (n); from = to)
#define TILES(j, n) for (long j = 0; j + TILE * WIDTH <= (n); j += TILE * WIDTH)
#define REST(j, n) for (long j = (n) / (TILE * WIDTH) * (TILE * WIDTH); j < (n); j++)

static void add_rows(const float *x, const float *mean, float *sums, long count, long channels)
{
    GROUPS(from, to, count) {
        TILES(j, channels) {
            Lanes sum[TILE], middle[TILE];
            LANES { sum[k] = LOAD(sums + j, k); middle[k] = mean ? LOAD(mean + j, k) : (Lanes){0}; }
            if (mean)
                for (long i = from; i < to; i++)
                    LANES { const Lanes d = LOAD(x + i * channels + j, k) - middle[k]; sum[k] += d * d; }
            else
                for (long i = from; i < to; i++) LANES sum[k] += LOAD(x + i * channels + j, k);
            LANES LOAD(sums + j, k) = sum[k];
        }
        REST(j, channels) {
            float sum = sums[j];
            for (long i = from; i < to; i++) {
                const float d = mean ? x[i * channels + j] - mean[j] : x[i * channels + j];
                sum += mean ? d * d : d;
            }
            sums[j] = sum;
        }
    }
}

static void statistics(const float *x, float *partial, double *sums, float *mean, float *variance, long positions,
                       long channels, long rows)
{
    THREADS
    BLOCKS(b) {
        const long count = COUNT(b);
        const float *block = x + b * rows * channels, number = count;
        float *middle = partial + 2 * b * channels, *square = middle + channels;
        EACH middle[j] = square[j] = 0;
        add_rows(block, 0, middle, count, channels);
        EACH middle[j] = middle[j] / number;
        add_rows(block, middle, square, count, channels);
    }
    double *squares = sums + channels;
    EACH sums[j] = squares[j] = 0;
    BLOCKS(b) {
        const float *middle = partial + 2 * b * channels;
        const double count = COUNT(b);
        EACH sums[j] += middle[j] * count;
    }
    EACH sums[j] = sums[j] / positions;
    BLOCKS(b) {
        const float *middle = partial + 2 * b * channels, *square = middle + channels;
        const double count = COUNT(b);
        EACH { const double d = middle[j] - sums[j]; squares[j] += square[j] + d * d * count; }
    }
    EACH { mean[j] = sums[j]; variance[j] = squares[j] / positions; }
}

static void normalize(const float *x, float *y, const float *mean, const float *scale, const float *shift,
                      long positions, long channels, long rows)
{
    const int past = GOES_PAST(y) && y != x;
    THREADS
    BLOCKS(b) {
        for (long i = b * rows; i < b * rows + COUNT(b); i++) {
            const float *from = x + i * channels;
            float *to = y + i * channels;
            if (past)
                VECTORS(j) {
                    const Lanes v = (AT(from) - AT(mean)) * AT(scale) + AT(shift);
                    PASS(to + j, (Lanes)((Masks)v & ~(v <= 0)));
                }
            else EACH { const float v = (from[j] - mean[j]) * scale[j] + shift[j]; to[j] = v <= 0 ? 0.0f : v; }
        }
        if (past) SETTLE;
    }
}

static void sums(const float *x, const float *g, float *partial, const float *mean, const float *scale,
                 const float *shift, double *totals, float *gbeta, float *ggamma, long positions, long channels,
                 long rows)
{
    THREADS
    BLOCKS(b) {
        const float *from = x + b * rows * channels, *of = g + b * rows * channels;
        float *sums = partial + 2 * b * channels, *products = sums + channels;
        EACH sums[j] = products[j] = 0;
        GROUPS(first, last, COUNT(b)) {
            TILES(j, channels) {
                Lanes sum[TILE], product[TILE];
                LANES { sum[k] = LOAD(sums + j, k); product[k] = LOAD(products + j, k); }
                for (long i = first; i < last; i++)
                    LANES {
                        const Lanes c = LOAD(from + i * channels + j, k) - LOAD(mean + j, k);
                        const Lanes v = c * LOAD(scale + j, k) + LOAD(shift + j, k);
                        const Lanes m = LOAD(of + i * channels + j, k) * (Lanes)((v > 0) & (Masks)ONE);
                        sum[k] += m;
                        product[k] += c * m;
                    }
                LANES { LOAD(sums + j, k) = sum[k]; LOAD(products + j, k) = product[k]; }
            }
            REST(j, channels)
                for (long i = first; i < last; i++) {
                    const float c = from[i * channels + j] - mean[j], v = c * scale[j] + shift[j];
                    const float m = of[i * channels + j] * (v > 0 ? 1.0f : 0.0f);
                    sums[j] += m;
                    products[j] += c * m;
                }
        }
    }
    double *products = totals + channels;
    EACH totals[j] = products[j] = 0;
    BLOCKS(b) {
        const float *sum = partial + 2 * b * channels, *product = sum + channels;
        EACH { totals[j] += sum[j]; products[j] += product[j]; }
    }
    EACH { gbeta[j] = totals[j]; ggamma[j] = products[j]; }
}

static void gradient(const float *x, const float *g, const float *addend, float *gx, const float *mean,
                     const float *scale, const float *shift, const float *share, const float *less, int of_batch,
                     long positions, long channels, long rows)
{
#define VALUES const float c = from[j] - mean[j], v = c * scale[j] + shift[j], m = of[j] * (v > 0 ? 1.0f : 0.0f)
#define OF_BATCH (c * share[j] + m - less[j]) * scale[j]
#define OF_ALL m * scale[j]
    const int past = GOES_PAST(gx) && gx != x && gx != g && gx != addend;
    THREADS
    BLOCKS(b) {
        for (long i = b * rows; i < b * rows + COUNT(b); i++) {
            const float *from = x + i * channels, *of = g + i * channels, *more = addend ? addend + i * channels : 0;
            float *to = gx + i * channels;
            if (past)
                VECTORS(j) {
                    const Lanes c = AT(from) - AT(mean), v = c * AT(scale) + AT(shift);
                    const Lanes m = AT(of) * (Lanes)((v > 0) & (Masks)ONE);
                    Lanes sum = of_batch ? (c * AT(share) + m - AT(less)) * AT(scale) : m * AT(scale);
                    if (addend) sum += AT(more);
                    PASS(to + j, sum);
                }
            else if (of_batch && addend) EACH { VALUES; to[j] = OF_BATCH + more[j]; }
            else if (of_batch) EACH { VALUES; to[j] = OF_BATCH; }
            else if (addend) EACH { VALUES; to[j] = OF_ALL + more[j]; }
            else EACH { VALUES; to[j] = OF_ALL; }
        }
        if (past) SETTLE;
    }
}

typedef struct { long positions, channels, rows; int fixes_gamma; float eps, momentum, rest; } Norm;

void opbox_norm_forward(const float *x, float *y, float *gamma, const float *beta, const float *moving_mean,
                        const float *moving_var, float *mean, float *inverse, float *variance, float *scale,
                        float *partial, double *totals, const Norm *norm, int of_batch)
{
    const long positions = norm->positions, channels = norm->channels, rows = norm->rows;
    if (norm->fixes_gamma) EACH gamma[j] = 1;
    if (of_batch) statistics(x, partial, totals, mean, variance, positions, channels, rows);
    else EACH { mean[j] = moving_mean[j]; variance[j] = moving_var[j]; }
    EACH inverse[j] = 1 / __builtin_sqrtf(variance[j] + norm->eps);
    EACH scale[j] = inverse[j] * gamma[j];
    normalize(x, y, mean, scale, beta, positions, channels, rows);
}

/* gx, out_gamma, out_beta and addend may be NULL. */
void opbox_norm_backward(const float *x, const float *g, const float *addend, float *gx, float *out_gamma,
                         float *out_beta, const float *gamma, const float *beta, float *moving_mean, float *moving_var,
                         const float *mean, const float *inverse, float *scale, float *ggamma, float *gbeta,
                         float *share, float *less, float *partial, double *totals, const Norm *norm, int of_batch)
{
    const long positions = norm->positions, channels = norm->channels, rows = norm->rows;
    const float one_less = -1.0 / positions, one_more = 1.0 / positions;
    EACH scale[j] = norm->fixes_gamma ? inverse[j] : inverse[j] * gamma[j];
    sums(x, g, partial, mean, scale, beta, totals, gbeta, ggamma, positions, channels, rows);
    EACH ggamma[j] = ggamma[j] * inverse[j];
    if (gx) {
        EACH { share[j] = ggamma[j] * inverse[j] * one_less; less[j] = gbeta[j] * one_more; }
        gradient(x, g, addend, gx, mean, scale, beta, share, less, of_batch, positions, channels, rows);
    }
    if (out_gamma) EACH out_gamma[j] = norm->fixes_gamma ? 0 : ggamma[j];
    if (out_beta) EACH out_beta[j] = gbeta[j];
    if (of_batch) EACH {
        const float variance = 1 / (inverse[j] * inverse[j]) - norm->eps;
        moving_mean[j] = moving_mean[j] * norm->momentum + mean[j] * norm->rest;
        moving_var[j] = moving_var[j] * norm->momentum + variance * norm->rest;
    }
}
"""


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
        name: CKernel(_TEXT, name, [*[c_void_p] * (count + 1), c_int], HOT, threads=True)
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
    def temps(self) -> list[Temp]:
        """Room for the blocks' results, for the same in double precision, for their sums, and for two blocks."""
        of_blocks, block = (self._blocks, 2, self.channels), (self.rows, self.channels)
        return [
            Temp(of_blocks),
            Temp(of_blocks, np.float64),
            Temp((2, self.channels), np.float64),
            Temp(block),
            Temp(block),
        ]

    def forward(
        self, norm: Norm, x: Array, y: Array, inputs: Arrays, results: Arrays, temps: Arrays
    ) -> Callable[[bool], None]:
        """Return a call that writes y = relu(BatchNorm(x)) and results, by the batch's statistics or the moving ones.

        Args:
            norm: BatchNorm's parameters.
            x, y: the matrices.
            inputs: gamma, which is written where it is fixed, beta, moving mean and moving variance.
            results: mean, 1 / sqrt(variance + eps), and room for the variance and for the scale.
            temps: `temps`.
        """
        run = self._kernel("opbox_norm_forward", norm, (x, y, *inputs, *results, temps[0], temps[2]))
        gamma, beta, moving_mean, moving_var = inputs
        mean, inverse, variance, scale = results

        def call(of_batch: bool) -> None:
            if run(of_batch):
                return
            if norm.fix_gamma:
                gamma[...] = 1
            if of_batch:
                self.statistics(x, mean, variance, temps)
            else:
                np.copyto(mean, moving_mean)
                np.copyto(variance, moving_var)
            invert(np, variance, norm.eps, inverse)
            np.multiply(inverse, gamma, out=scale)
            self.normalize(x, y, (mean, scale, beta), temps)

        return call

    def backward(
        self,
        norm: Norm,
        matrices: tuple[Array, Array, Array | None, Array | None],
        inputs: Arrays,
        results: tuple[Array | None, Array | None],
        rooms: Arrays,
        temps: Arrays,
    ) -> Callable[[bool], None]:
        """Return a call that writes the gradients, and moves the moving statistics where those of the batch are used.

        Args:
            norm: BatchNorm's parameters.
            matrices: x, g, what is added to the gradient of x, or None, and that gradient, which may be where g or the
                addend is, or None.
            inputs: gamma, beta, moving mean, moving variance, and forward's mean and 1 / sqrt(variance + eps).
            results: the gradients of gamma and beta, or None.
            rooms: five arrays, a number for each channel.
            temps: `temps`.
        """
        arrays = (*matrices, *results, *inputs, *rooms, temps[0], temps[2])
        run = self._kernel("opbox_norm_backward", norm, arrays)
        (x, g, addend, gx), (gamma, beta, moving_mean, moving_var, mean, inverse) = matrices, inputs
        scale, ggamma, gbeta, share, less = rooms
        factor = -1 / self.positions

        def call(of_batch: bool) -> None:
            if run(of_batch):
                return
            np.multiply(inverse, 1 if norm.fix_gamma else gamma, out=scale)
            numbers = (mean, scale, beta)
            self.sums(x, g, numbers, gbeta, ggamma, temps)
            ggamma[...] *= inverse
            if gx is not None:
                np.multiply(ggamma, inverse, out=share)
                np.multiply(share, factor, out=share)
                np.multiply(gbeta, -factor, out=less)
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
        arguments = (*[None if array is None else _place(array) for array in arrays], addressof(sizes))

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
        partial, wide, sums, room, _ = temps
        for b, rows, count in self._pieces():
            _total(x[rows], partial[b, 0])
            np.divide(partial[b, 0], np.float32(count), out=partial[b, 0])
            centred = np.subtract(x[rows], partial[b, 0], out=room[:count])
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
        """Write gx; without `of_batch` it is g' scale. `sources` are x, g and what is added or None."""
        x, g, addend = sources
        for _, rows, _ in self._pieces():
            centred, gradient = self._gated(x[rows], g[rows], numbers, temps)
            if of_batch:
                np.multiply(centred, share, out=centred)
                np.add(centred, gradient, out=gradient)
                np.subtract(gradient, less, out=gradient)
            if addend is None:
                np.multiply(gradient, numbers[1], out=gx[rows])
            else:
                np.multiply(gradient, numbers[1], out=gradient)
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


def _place(array: Array) -> int:
    place: int = array.__array_interface__["data"][0]
    return place
