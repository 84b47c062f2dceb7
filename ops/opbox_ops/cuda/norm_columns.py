"""Gradients of gamma and beta of normalisation layers on a GPU: sums over rows, by slices of rows and in one order.

    ggamma = sum gout x, gbeta = sum gout, x = (data - mean) / deviation

LayerNorm's rows lie along the middle axis of (outer, n, inner). With inner 1 the sums go along the rows at once; else
first along inner, for each (outer, n), and then along outer. Groups have both sums for each row already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array, OpContext, Temp
from .fours import by_rows
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved
from .row_blocks import APPLY, JOIN, ROW, ROW_SIZES, STATISTICS, RowBlocks

__all__ = ["column_parts", "column_sums", "row_parts", "row_sums"]

_ROWS, _WIDTH = 8192, 1024
_ELEMENTS = _ROWS * _WIDTH


def _sums_kernel(
    name: str, parameters: str, reads: dict[str, str], write: str, example: tuple[str, int]
) -> KernelTemplate:
    """The kernel that adds a row's `product` and `g` up, which `reads` are of its elements, and writes the sums."""
    what, moved = example
    return KernelTemplate(
        name,
        f"{parameters}, A *parts, int writes, {ROW_SIZES}, int phase",
        f"""  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
  const int rows = outer * inner;
  A products = 0, sum = 0;
  if (phase != {APPLY}) {{
{by_rows(reads, "products += product; sum += g;")}  }} else {{
    {JOIN} {{
      products += parts[s * rows + row.number];
      sum += parts[(slices + s) * rows + row.number];
    }}
  }}
  products = add_over_lanes(products, scratch, width, lanes);
  sum = add_over_lanes(sum, scratch, width, lanes);
  if (row.lane > 0 || row.slice > 0 && phase != {STATISTICS} || !row.inside) return;
  if (phase == {STATISTICS}) {{
    parts[row.slice * rows + row.number] = products;
    parts[(slices + row.slice) * rows + row.number] = sum;
    return;
  }}
{write}""",
        (what, lambda: Moved(moved, moved)),
        declares=ROW,
        types=tuple(WITH_BFLOAT16),
    )


_WRITE = """  if (writes & 1) ggamma[row.number] = T(products);
  if (writes & 2) gbeta[row.number] = T(sum);
"""
_ROW_OF = "unsigned(row.number / columns) * beside + i"
OF_LAYERS = _sums_kernel(
    "opbox_norm_column_sums",
    "const T *gout, const T *data, const A *means, const A *inverses, A *of_rows, T *ggamma, T *gbeta, "
    "int columns, int beside",
    {
        "g": "A(gout[at])",
        "product": f"A(gout[at]) * ((A(data[at]) - means[{_ROW_OF}]) * inverses[{_ROW_OF}])",
    },
    """  if (writes & 4) {
    of_rows[row.number] = products;
    of_rows[rows + row.number] = sum;
  }
"""
    + _WRITE,
    ("8,192 rows of 1,024", 4 * 2 * _ELEMENTS),
)
OF_ROWS = _sums_kernel(
    "opbox_norm_row_sums",
    "const A *of_rows, T *ggamma, T *gbeta",
    {"product": "of_rows[at]", "g": "of_rows[unsigned(outer) * n * inner + at]"},
    _WRITE,
    ("two sums of each of 64 samples and 512 channels", 4 * 2 * 64 * 512),
)
KERNELS += [OF_LAYERS, OF_ROWS]


def column_parts(blocks: RowBlocks, dtype: Any) -> list[Temp]:
    """The temporaries for `column_sums` of LayerNorm's rows, of data of `dtype`."""
    if blocks.inner == 1:
        return [_along_rows(blocks).parts(2, dtype)]
    beside = _along_inner(blocks)
    return [
        beside.parts(2, dtype),
        Temp((2, beside.rows), accumulation_type(dtype)),
        row_parts(blocks.outer, blocks.n, dtype),
    ]


def column_sums(
    ctx: OpContext,
    blocks: RowBlocks,
    arrays: Sequence[Array],
    of_rows: Array,
    temps: Sequence[Array],
    gradients: Sequence[Array | None],
) -> list[Callable[[], Any]]:
    """The calls that write the gradients of gamma and beta, each where it is wanted.

    Args:
        ctx: the node's context.
        blocks: LayerNorm's rows.
        arrays: gout and data.
        of_rows: (2, rows), the mean and 1 / deviation of each row.
        temps: what `column_parts` asked for.
        gradients: of gamma and beta.
    """
    parts, *further = temps
    once = not further
    along = _along_rows(blocks) if once else _along_inner(blocks)
    spare = of_rows if once else further[0]
    targets, writes = _targets(arrays[0], gradients)
    numbers = (blocks.n, blocks.inner)
    arguments = (*arrays, *of_rows, spare, *targets, *map(np.int32, numbers), parts, np.int32(writes if once else 4))
    calls = along.calls(ctx, OF_LAYERS, arrays[0].dtype, arguments)
    if not once:
        calls += row_sums(ctx, further[0], blocks.n, further[1], gradients, arrays[0])
    return calls


def row_parts(batch: int, groups: int, dtype: Any) -> Temp:
    """The temporary for `row_sums`."""
    return RowBlocks(1, batch, groups).parts(2, dtype)


def row_sums(
    ctx: OpContext, of_rows: Array, groups: int, parts: Array, gradients: Sequence[Array | None], spare: Array
) -> list[Callable[[], Any]]:
    """The calls that write the sums of `of_rows` (2, batch * groups) along batch, where a gradient is wanted.

    `spare` is any array of the gradients' type.
    """
    blocks = RowBlocks(1, of_rows.shape[1] // groups, groups)
    targets, writes = _targets(spare, gradients)
    return blocks.calls(ctx, OF_ROWS, spare.dtype, (of_rows, *targets, parts, np.int32(writes)))


def _targets(spare: Array, gradients: Sequence[Array | None]) -> tuple[list[Array], int]:
    """The gradients, `spare` for those that nobody wants, and a bit for each that somebody does."""
    writes = sum(1 << k for k, gradient in enumerate(gradients) if gradient is not None)
    return [spare if gradient is None else gradient for gradient in gradients], writes


def _along_rows(blocks: RowBlocks) -> RowBlocks:
    return RowBlocks(1, blocks.outer, blocks.n)


def _along_inner(blocks: RowBlocks) -> RowBlocks:
    return RowBlocks(blocks.outer * blocks.n, blocks.inner, 1)
