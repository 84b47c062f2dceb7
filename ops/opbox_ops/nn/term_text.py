"""The C of one term of a tile of a product, and how high tiles are.

For texts that have vectors `Lanes` of WIDTH numbers, with LOAD, ALL, MULTIPLY_ADD, KEEP and UNROLL.
"""

from __future__ import annotations

__all__ = ["TERM"]

TERM = r"""
/* Adds a term to `sums`, rows by two vectors: numbers of a, one a row and `row` apart, times 2 * WIDTH numbers of b.
   These are kept in registers: a compiler loads them again for each of up to four rows, and the loads of three and four
   take longer than the multiplications. One and two rows wait for their additions anyway. */
#define ADD_TERM(rows, a, row, b, sums) \
    do { \
        Lanes left = LOAD(b), right = LOAD((b) + WIDTH); \
        if ((rows) > 2) { KEEP(left); KEEP(right); } \
        UNROLL for (int r = 0; r < (rows); r++) { \
            const Lanes x = ALL((a)[r * (row)]); \
            sums[r][0] = MULTIPLY_ADD(x, left, sums[r][0]); \
            sums[r][1] = MULTIPLY_ADD(x, right, sums[r][1]); \
        } \
    } while (0)

/* The height of the next tile of `left` rows, of `most` at most. One to three rows take nearly as long as four, as
   their additions wait for one another: so a rest of so few makes two tiles of like height with the tile before. */
static inline long next_height(long left, long most)
{
    return left <= most ? left : left < most + 4 ? (left + 1) / 2 : most;
}
"""
