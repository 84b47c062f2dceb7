/* One term of a tile of a product, and how high tiles are.

   It stands behind vectors `Lanes` of WIDTH numbers, with LOAD, ALL, MULTIPLY_ADD, KEEP and UNROLL (vectors.h). */
#pragma once

/* Adds a term to `sums`, rows by vectors: numbers of a, one a row and `row` apart, times `vectors` vectors of b, four
   at most, which it also writes to `copy` if that is not NULL. They are kept in registers: a compiler loads them again
   for each of up to four rows, and the loads of three and four take longer than the multiplications. One and two rows
   wait for their additions anyway. */
#define ADD_TERM(rows, vectors, a, row, b, sums, copy)                                                       \
    do {                                                                                                     \
        Lanes factors[4];                                                                                    \
        UNROLL for (int v = 0; v < (vectors); v++)                                                           \
        {                                                                                                    \
            factors[v] = LOAD((b) + v * WIDTH);                                                              \
            if ((rows) > 2) KEEP(factors[v]);                                                                \
            if (copy) STORE((float *)(copy) + v * WIDTH, factors[v]);                                        \
        }                                                                                                    \
        UNROLL for (int r = 0; r < (rows); r++)                                                              \
        {                                                                                                    \
            const Lanes x = ALL((a)[r * (row)]);                                                             \
            UNROLL for (int v = 0; v < (vectors); v++) sums[r][v] = MULTIPLY_ADD(x, factors[v], sums[r][v]); \
        }                                                                                                    \
    } while (0)

/* The height of the next tile of `left` rows, of `most` at most. One to three rows take nearly as long as four, as
   their additions wait for one another: so a rest of so few makes two tiles of like height with the tile before. */
static inline long next_height(long left, long most)
{
    return left <= most ? left : left < most + 4 ? (left + 1) / 2 : most;
}
