"""_linalg_syevd and its gradient on a GPU: Jacobi's rotations in blocks, in double precision.

The matrix is cut into blocks of 16 rows, which meet in pairs, every two of them once in a sweep. For each pair one
kernel rotates the 32 x 32 numbers where its rows and columns cross until they are diagonal, in shared memory; another
applies all pairs' rotations to the rest of the matrix and to the eigenvectors. A matrix of up to 32 rows is one pair,
and done after that. Numbers below the type's precision rotate nothing, and what does not rotate is left alone: the
sweeps behind the last that is needed cost their launches. Diagonals descend from pair to pair, since equal eigenvalues
that lie apart would converge slowly (Demmel and Veselic 1992; Hari 1991).

Eigenvalues of numbers that are not finite are NaN. More than LARGEST rows are the library's to factor, outside graphs.
`linalg/factors` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one, nothing
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..linalg.factors import CLOSEST, syevd, syevd_backward
from ..params import NoParams
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, scalar, threads_for
from .matrix_parts import EXAMPLE, EXAMPLE_BYTES, MatrixPart, accepts, identity, mirror, multiply

__all__ = ["LARGEST"]

LARGEST = 512
"""Rows of a matrix: 31 rounds of two launches in a sweep."""
_HALF = 16
_SIDE = 2 * _HALF
_SWEEPS = 24
"""Over the blocks. Three clusters of equal eigenvalues among 512 rows take 18, eigenvalues over 12 decades 20."""
_ROTATIONS = 8
"""Sweeps within a pair, at the most, and while there is one pair alone four times as many."""
_THREADS = 256
_PAIRS = f"""// Two that meet in a round of a tournament among an even number of players.
__device__ void opbox_pair(int round, int number, int players, int &one, int &other) {{
  const int places = players - 1;
  const int a = number == 0 ? places : (round + number) % places;
  const int b = number == 0 ? round : (round - number + places) % places;
  one = a < b ? a : b;
  other = a < b ? b : a;
}}
__device__ int opbox_row(int one, int other, int k) {{
  return k < {_HALF} ? one * {_HALF} + k : other * {_HALF} + k - {_HALF};
}}
"""

PRECISION = KernelTemplate(
    "opbox_eigen_precision",
    "const double *x, double *least, int size, double epsilon",
    f"""  __shared__ double scratch[{_THREADS}];
  const double *matrix = x + (long long)blockIdx.x * size;
  double most = 0, odd = 0;
  for (int k = threadIdx.x; k < size; k += blockDim.x) {{
    const double number = fabs(matrix[k]);
    if (number > most) most = number;
    odd += number - number;
  }}
  // NaN where a number is not finite, and it stays.
  scratch[threadIdx.x] = most + odd;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {{
    if (threadIdx.x < half) {{
      const double other = scratch[threadIdx.x + half];
      if (other > scratch[threadIdx.x] || other != other) scratch[threadIdx.x] = other;
    }}
    __syncthreads();
  }}
  if (threadIdx.x == 0) least[blockIdx.x] = scratch[0] * epsilon;
""",
    (EXAMPLE, lambda: Moved(2 * EXAMPLE_BYTES, 2 * EXAMPLE_BYTES)),
)
ROTATE_PAIRS = KernelTemplate(
    "opbox_rotate_pairs",
    "double *x, double *rotations, int *rotated, const double *least, int n, int blocks, int round, int size, "
    "int sweeps",
    f"""  __shared__ double s[{_SIDE}][{_SIDE + 1}];
  __shared__ double g[{_SIDE}][{_SIDE + 1}];
  __shared__ double sines[{_HALF}], halves[{_HALF}];
  __shared__ int firsts[{_HALF}], seconds[{_HALF}], kinds[{_HALF}];
  const int pairs = blocks / 2, matrix = blockIdx.x / pairs;
  double *numbers = x + (long long)matrix * n * n;
  const double smallest = least[matrix];
  int one, other;
  opbox_pair(round, blockIdx.x % pairs, blocks, one, other);
  for (int number = threadIdx.x; number < {_SIDE} * {_SIDE}; number += blockDim.x) {{
    const int i = number / {_SIDE}, j = number % {_SIDE};
    const int row = opbox_row(one, other, i > j ? i : j), column = opbox_row(one, other, i > j ? j : i);
    s[i][j] = row < n && column < n ? numbers[(long long)row * n + column] : 0;
    g[i][j] = i == j;
  }}
  __syncthreads();
  bool any = false;
  for (int sweep = 0; sweep < sweeps; ++sweep) {{
    bool now = false;
    for (int number = threadIdx.x; number < size * size; number += blockDim.x) {{
      const int i = number / size, j = number % size;
      now |= i < j && fabs(s[i][j]) > smallest;
    }}
    if (!__syncthreads_or(now)) break;
    any = true;
    for (int step = 0; step < size - 1; ++step) {{
      if (threadIdx.x < size / 2) {{
        int p, q;
        opbox_pair(step, threadIdx.x, size, p, q);
        const double beside = s[p][q], gap = s[q][q] - s[p][p];
        const bool rotates = fabs(beside) > smallest;
        double tangent = 0;
        if (rotates) {{
          const double slope = gap / (2 * beside);
          tangent = (slope < 0 ? -1 : 1) / (fabs(slope) + sqrt(slope * slope + 1));
        }}
        const double cosine = 1 / sqrt(tangent * tangent + 1), sine = tangent * cosine;
        firsts[threadIdx.x] = p;
        seconds[threadIdx.x] = q;
        sines[threadIdx.x] = sine;
        halves[threadIdx.x] = sine / (1 + cosine);
        kinds[threadIdx.x] = !rotates ? 0 : gap + 2 * tangent * beside > 0 ? 2 : 1;
      }}
      __syncthreads();
      for (int item = threadIdx.x; item < size / 2 * size; item += blockDim.x) {{
        const int k = item / size, j = item % size, kind = kinds[k];
        if (!kind) continue;
        const int p = firsts[k], q = seconds[k], up = kind == 2 ? q : p, down = kind == 2 ? p : q;
        const double sine = sines[k], half = halves[k];
        const double a = s[p][j], b = s[q][j], c = g[p][j], d = g[q][j];
        s[up][j] = a - sine * (b + half * a);
        s[down][j] = b + sine * (a - half * b);
        g[up][j] = c - sine * (d + half * c);
        g[down][j] = d + sine * (c - half * d);
      }}
      __syncthreads();
      for (int item = threadIdx.x; item < size / 2 * size; item += blockDim.x) {{
        const int k = item / size, i = item % size, kind = kinds[k];
        if (!kind) continue;
        const int p = firsts[k], q = seconds[k], up = kind == 2 ? q : p, down = kind == 2 ? p : q;
        const double sine = sines[k], half = halves[k], a = s[i][p], b = s[i][q];
        s[i][up] = i == down ? 0 : a - sine * (b + half * a);
        s[i][down] = i == up ? 0 : b + sine * (a - half * b);
      }}
      __syncthreads();
    }}
  }}
  if (threadIdx.x == 0) rotated[blockIdx.x] = any;
  if (!any) return;
  for (int number = threadIdx.x; number < {_SIDE} * {_SIDE}; number += blockDim.x) {{
    const int i = number / {_SIDE}, j = number % {_SIDE};
    const int row = opbox_row(one, other, i), column = opbox_row(one, other, j);
    if (row < n && column < n) numbers[(long long)row * n + column] = s[i][j];
    rotations[(long long)blockIdx.x * {_SIDE * _SIDE} + number] = g[i][j];
  }}
""",
    (EXAMPLE, lambda: Moved(6 * EXAMPLE_BYTES, 6 * EXAMPLE_BYTES)),
    _PAIRS,
    contracts=True,
)
APPLY_ROTATIONS = KernelTemplate(
    "opbox_apply_rotations",
    "double *x, double *vectors, const double *rotations, const int *rotated, int n, int blocks, int round",
    f"""  __shared__ double left[{_SIDE}][{_SIDE + 1}];
  __shared__ double right[{_SIDE}][{_SIDE + 1}];
  __shared__ double tile[{_SIDE}][{_SIDE + 1}];
  const int pairs = blocks / 2, matrix = blockIdx.x / (2 * pairs * pairs), pair = blockIdx.x / (2 * pairs) % pairs;
  const bool of_vectors = blockIdx.x % (2 * pairs) >= pairs;
  const int across = blockIdx.x % pairs, first = matrix * pairs;
  // Where a pair meets itself its numbers are there already.
  if (!of_vectors && across == pair) return;
  if (!rotated[first + pair] && (of_vectors || !rotated[first + across])) return;
  double *numbers = (of_vectors ? vectors : x) + (long long)matrix * n * n;
  int one, other, column_one = 2 * across, column_other = 2 * across + 1;
  opbox_pair(round, pair, blocks, one, other);
  if (!of_vectors) opbox_pair(round, across, blocks, column_one, column_other);
  for (int number = threadIdx.x; number < {_SIDE} * {_SIDE}; number += blockDim.x) {{
    const int i = number / {_SIDE}, j = number % {_SIDE};
    const int row = opbox_row(one, other, i), column = opbox_row(column_one, column_other, j);
    tile[i][j] = row < n && column < n ? numbers[(long long)row * n + column] : 0;
    // What rotates nothing has left nothing there.
    left[i][j] = rotated[first + pair] ? rotations[(long long)(first + pair) * {_SIDE * _SIDE} + number] : i == j;
    right[i][j] = of_vectors || !rotated[first + across]
        ? i == j : rotations[(long long)(first + across) * {_SIDE * _SIDE} + number];
  }}
  __syncthreads();
  double sums[{_SIDE * _SIDE // _THREADS}];
  for (int m = 0; m < {_SIDE * _SIDE // _THREADS}; ++m) {{
    const int number = threadIdx.x + m * {_THREADS}, i = number / {_SIDE}, j = number % {_SIDE};
    sums[m] = 0;
    for (int k = 0; k < {_SIDE}; ++k) sums[m] += left[i][k] * tile[k][j];
  }}
  __syncthreads();
  for (int m = 0; m < {_SIDE * _SIDE // _THREADS}; ++m) {{
    const int number = threadIdx.x + m * {_THREADS};
    tile[number / {_SIDE}][number % {_SIDE}] = sums[m];
  }}
  __syncthreads();
  for (int m = 0; m < {_SIDE * _SIDE // _THREADS}; ++m) {{
    const int number = threadIdx.x + m * {_THREADS}, i = number / {_SIDE}, j = number % {_SIDE};
    const int row = opbox_row(one, other, i), column = opbox_row(column_one, column_other, j);
    if (row >= n || column >= n) continue;
    double sum = of_vectors ? tile[i][j] : 0;
    if (!of_vectors)
      for (int k = 0; k < {_SIDE}; ++k) sum += tile[i][k] * right[j][k];
    numbers[(long long)row * n + column] = sum;
  }}
""",
    (EXAMPLE, lambda: Moved(6 * EXAMPLE_BYTES, 6 * EXAMPLE_BYTES)),
    _PAIRS,
    contracts=True,
)
ORDER_EIGENPAIRS = KernelTemplate(
    "opbox_order_eigenpairs",
    "const double *x, const double *vectors, const double *least, T *u, T *values, int n, int what",
    f"""  __shared__ double largest[{_THREADS}];
  __shared__ int places[{_THREADS}];
  const int matrix = blockIdx.x / n, i = blockIdx.x % n, t = threadIdx.x;
  const double *numbers = x + (long long)matrix * n * n;
  const double *row = vectors + ((long long)matrix * n + i) * n;
  const double value = numbers[(long long)i * n + i];
  const bool finite = least[matrix] - least[matrix] == 0;
  int before = 0, place = n;
  double most = -1;
  for (int j = t; j < n; j += blockDim.x) {{
    const double other = numbers[(long long)j * n + j];
    before += other < value || (other == value && j < i);
    if (fabs(row[j]) > most) {{
      most = fabs(row[j]);
      place = j;
    }}
  }}
  largest[t] = before;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {{
    if (t < half) largest[t] += largest[t + half];
    __syncthreads();
  }}
  // The rank of what is no number would be another's.
  const int rank = finite ? int(largest[0]) : i;
  __syncthreads();
  largest[t] = most;
  places[t] = place;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {{
    if (t < half) {{
      const double other = largest[t + half];
      if (other > largest[t] || (other == largest[t] && places[t + half] < places[t])) {{
        largest[t] = other;
        places[t] = places[t + half];
      }}
    }}
    __syncthreads();
  }}
  const double nan = least[matrix] - least[matrix];
  const double sign = finite ? (row[places[0]] < 0 ? -1 : 1) : nan;
  if (what & 1)
    for (int j = t; j < n; j += blockDim.x) u[((long long)matrix * n + rank) * n + j] = T(sign * row[j]);
  if ((what & 2) && t == 0) values[(long long)matrix * n + rank] = T(finite ? value : nan);
""",
    (EXAMPLE, lambda: Moved(3 * EXAMPLE_BYTES, 3 * EXAMPLE_BYTES)),
)
MIDDLE = KernelTemplate(
    "opbox_eigen_middle",
    "T *x, const T *gl, const T *values, int elements, int n, A closest",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int j = number % n, i = number / n % n, first = number - i * n - j, line = number / n / n * n;
  if (i == j) x[number] = gl[line + i];
  if (i <= j) return;
  const A apart = A(values[line + i]) - A(values[line + j]);
  const A half = (A(x[number]) - A(x[first + j * n + i])) / (2 * (apart > closest ? apart : closest));
  x[number] = T(half);
  x[first + j * n + i] = T(half);
""",
    (EXAMPLE, lambda: Moved(2 * EXAMPLE_BYTES, 2 * EXAMPLE_BYTES)),
)
KERNELS += [PRECISION, ROTATE_PAIRS, APPLY_ROTATIONS, ORDER_EIGENPAIRS, MIDDLE]


def _blocks(n: int) -> int:
    """The blocks of a matrix: an even number, of which the last may be short or empty."""
    return 2 * -(-n // _SIDE)


def _accepts(p: NoParams, call: CallSpec) -> bool:
    return accepts(p, call) and call.inputs[0].shape[-1] <= LARGEST


def _temps(p: NoParams, call: CallSpec) -> list[Temp]:
    """The matrices, their eigenvectors, what counts as 0, the rotations of all pairs, and which pairs have any."""
    a = call.inputs[0]
    count, n = size_of(a.shape[:-2]), a.shape[-1]
    pairs = count * _blocks(n) // 2
    double = [Temp(shape, np.float64) for shape in (a.shape, a.shape, (count,), (pairs, _SIDE, _SIDE))]
    return [*double, Temp((pairs,), np.int32)]


def _diagonalised(ctx: OpContext, dtype: Any, n: int) -> list[Callable[[], Any]]:
    """Calls that leave the eigenvalues on the matrices' diagonals."""
    x, vectors, least, rotations, rotated = ctx.temp
    blocks, count, double = _blocks(n), len(least), np.float64
    # A quarter of the last bit of the largest number: rotations that small change no digit.
    arguments = (x, least, np.int32(n * n), double(np.finfo(dtype).eps / 4))
    calls = [mirror(ctx, x), *identity(vectors), PRECISION.call(ctx, double, count, _THREADS, arguments)]
    alone = blocks == 2
    size = n + n % 2 if alone else _SIDE
    block = threads_for(size * size // 2, _THREADS) if alone else _THREADS
    for _ in range(1 if alone else _SWEEPS):
        for number in range(blocks - 1):
            place = map(np.int32, (n, blocks, number, size, 4 * _ROTATIONS if alone else _ROTATIONS))
            pairs = ROTATE_PAIRS.call(ctx, double, len(rotated), block, (x, rotations, rotated, least, *place))
            place = map(np.int32, (n, blocks, number))
            tiles = len(rotated) * blocks
            applied = (x, vectors, rotations, rotated, *place)
            calls += [pairs, APPLY_ROTATIONS.call(ctx, double, tiles, _THREADS, applied)]
    return calls


@syevd.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (u, values), (x, vectors, least, *_) = outputs, ctx.temp
    if u is None and values is None:
        return nothing
    a, n = inputs[0], inputs[0].shape[-1]
    out = u if values is None else values
    arguments = (x, vectors, least, *(out if array is None else array for array in (u, values)))
    what = np.int32((u is not None) + 2 * (values is not None))
    block = threads_for(n, _THREADS)
    ordered = ORDER_EIGENPAIRS.call(ctx, a.dtype, len(least) * n, block, (*arguments, np.int32(n), what))
    return as_one([partial(ctx.xp.copyto, x, a), *_diagonalised(ctx, a.dtype, n), ordered])


@syevd_backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=accepts,
    temps=lambda p, call: [Temp(call.inputs[0].shape, call.inputs[0].dtype)] * 2,
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (gu, gl, u, values), copies = contiguous(ctx, inputs)
    middle, product = ctx.temp
    elements, n = u.size, u.shape[-1]
    sizes = (np.int32(elements), np.int32(n), scalar(CLOSEST[u.dtype.name], u.dtype))
    block = threads_for(elements, _THREADS)
    vectors = MatrixPart.of(u)
    return as_one(
        [
            *copies,
            multiply(ctx, MatrixPart.of(gu), vectors.T, MatrixPart.of(middle)),
            MIDDLE.call(ctx, u.dtype, -(-elements // block), block, (middle, gl, values, *sizes)),
            multiply(ctx, vectors.T, MatrixPart.of(middle), MatrixPart.of(product)),
            multiply(ctx, MatrixPart.of(product), vectors, MatrixPart.of(outputs[0])),
        ]
    )
