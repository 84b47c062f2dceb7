"""A matrix unit's instructions in C, for texts that use one, on processors with AVX-512 that may have none."""

from __future__ import annotations

__all__ = ["with_unit_in_c"]

_UNIT = r"""
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#ifndef __AMX_BF16__
#define __AMX_BF16__ 1
#endif
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__)
#error "no vectors that split"
#endif

static _Thread_local struct { int rows; uint32_t pairs[16][16]; } tiles_in_c[8];

static inline void load_in_c(int tile, const void *from, long stride)
{
    for (int r = 0; r < tiles_in_c[tile].rows; r++)
        memcpy(tiles_in_c[tile].pairs[r], (const char *)from + r * stride, 64);
}

static inline void store_in_c(int tile, void *to, long stride)
{
    for (int r = 0; r < tiles_in_c[tile].rows; r++) memcpy((char *)to + r * stride, tiles_in_c[tile].pairs[r], 64);
}

static inline float half_in_c(uint32_t pair, int upper)
{
    const uint32_t bits = upper ? pair & 0xffff0000 : pair << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

/* c += a b: of b, rows of pairs of terms; sums of lower and of upper halves apart, as the unit has them. */
static void multiply_in_c(int c, int a, int b)
{
    for (int r = 0; r < tiles_in_c[c].rows; r++)
        for (int n = 0; n < 16; n++) {
            float sums[2] = {0, 0}, sum;
            for (int k = 0; k < 16; k++)
                for (int upper = 0; upper < 2; upper++)
                    sums[upper] = __builtin_fmaf(half_in_c(tiles_in_c[a].pairs[r][k], upper),
                                                 half_in_c(tiles_in_c[b].pairs[k][n], upper), sums[upper]);
            memcpy(&sum, &tiles_in_c[c].pairs[r][n], 4);
            sum += sums[0] + sums[1];
            memcpy(&tiles_in_c[c].pairs[r][n], &sum, 4);
        }
}

static inline void shape_in_c(const void *shapes)
{
    for (int tile = 0; tile < 8; tile++) {
        tiles_in_c[tile].rows = ((const unsigned char *)shapes)[48 + tile];
        memset(tiles_in_c[tile].pairs, 0, sizeof tiles_in_c[tile].pairs);
    }
}

#define LOAD_TILE(tile, from, stride) load_in_c(tile, from, stride)
#define STORE_TILE(tile, to, stride) store_in_c(tile, to, stride)
#define CLEAR_TILE(tile) memset(tiles_in_c[tile].pairs, 0, sizeof tiles_in_c[tile].pairs)
#define MULTIPLY_TILES(c, a, b) multiply_in_c(c, a, b)
#define SHAPE_TILES(shapes) shape_in_c(shapes)
#define LEAVE_TILES() shape_in_c((const unsigned char[64]){0})
"""


def with_unit_in_c(text: str) -> str:
    """The text, whose tiles are arrays of a thread; it does not compile without vectors of 16 numbers."""
    return _UNIT + text
