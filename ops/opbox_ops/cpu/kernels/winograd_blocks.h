/* Winograd's convolution by blocks of tiles.

   Where a transformed weight stays in a core's second cache, nothing is gained by dividing it among the threads, and
   much is lost: what one has transformed another reads, out of the first one's cache. So a thread takes a block of
   tiles, transforms, multiplies and transforms them back, and waits for no other. */
#pragma once

#include "winograd_tiles.h"

/* A block has MAX_BLOCK_TILES at most, and BLOCK_NUMBERS numbers of transformed data or gradients. */
enum { BLOCK_NUMBERS = 1 << 17, MAX_BLOCK_TILES = 48 };

/* m [element][tile][PANEL] of a panel of u, of `panels`: the products of all elements of `count` tiles, whose rows of
   `terms` numbers lie `row` apart in v. */
static inline void multiply_block(const float *v, long of_v, long row, const float *u, long panels, long panel,
                                  float *m, long of_m, long count, long terms)
{
    for (int e = 0; e < 36; e++)
        for (long k = 0; k < terms; k += DEPTH)
            all_rows(v + e * of_v + k, row, 1, u + e * u_numbers(panels, terms) + (panel * terms + k) * PANEL,
                     m + e * of_m, PANEL, count, MIN(terms - k, DEPTH), k > 0);
}

/* y, as opbox_winograd gives it, to the bit, in blocks of sizes->tiles tiles. */
void opbox_winograd_blocks(const float *restrict x, const float *restrict u, const float *bias, float *restrict y,
                           const Sizes *sizes, int adds)
{
    const Sizes s = *sizes;
    const Grid g = grid_of(&s);
    const long row = padded(s.channels), of_v = s.tiles * row + AHEAD, of_m = s.tiles * PANEL + AHEAD;
    const int threads = omp_get_max_threads();
    Share blocks[threads];
    GIVE(blocks, (g.all + s.tiles - 1) / s.tiles);
    THREADS
    {
        float v[BLOCK_NUMBERS] __attribute__((aligned(64)));
        float m[36 * (MAX_BLOCK_TILES * PANEL + AHEAD)] __attribute__((aligned(64)));
        SHARED(blocks, block, 1) {
            const long first = block * s.tiles, count = count_of(&s, &g, first);
            const Place begin = place_of(&g, first);
            Place at = begin;
            for (long t = 0; t < count; t++, at = next_place(&g, at))
                for (long c = 0; c < s.channels; c += WIDTH) transform_data(&s, x, c, at, v + t * row + c, of_v);
            for (long panel = 0; panel < g.panels; panel++) {
                multiply_block(v, of_v, row, u, g.panels, panel, m, of_m, count, s.channels);
                at = begin;
                for (long t = 0; t < count; t++, at = next_place(&g, at))
                    for (long k = 0; k < MIN(PANEL, s.filters - panel * PANEL); k += WIDTH)
                        transform_out(&s, &g, at, m + t * PANEL + k, of_m, bias, y, panel * PANEL + k, adds);
            }
        }
    }
}

/* B: six numbers to six. */
static inline void from_data(const Lanes z[6], Lanes t[6])
{
    const Lanes both = ALL(-97.0f / 36), aa = ALL(-4.0f / 9), bb = ALL(-9.0f / 4);
    const Lanes p = z[1] + z[2], q = ALL(2.0f / 3) * (z[1] - z[2]), r = z[3] + z[4], s = ALL(1.5f) * (z[3] - z[4]);
    t[0] = z[0];
    t[1] = MULTIPLY_ADD(bb, q, MULTIPLY_ADD(aa, s, z[5]));
    t[2] = MULTIPLY_ADD(both, z[0], MULTIPLY_ADD(bb, p, aa * r));
    t[3] = MULTIPLY_ADD(both, z[5], q + s);
    t[4] = z[0] + (p + r);
    t[5] = z[5];
}

/* Adds B m B.T of elements e, at m + e * of_m, to the 6 x 6 numbers of a tile of x, as many channels from c on as a
   vector has; `whole`: all of these are within x. */
static inline __attribute__((always_inline)) void add_tile(const Sizes *s, Place at, const float *m, long of_m,
                                                           float *x, long c, const int whole)
{
    const long row = at.row - s->above, column = at.column - s->before;
    const long height = s->height, width = s->width, channels = s->channels, of_row = width * channels;
    float *to = x + ((at.image * height + row) * width + column) * channels + c;
    const Part part = first_numbers(channels - c);
    Lanes mid[6][6], d[6], t[6];
    for (int j = 0; j < 6; j++) {
        for (int i = 0; i < 6; i++) d[i] = LOAD(m + (i * 6 + j) * of_m);
        from_data(d, t);
        for (int i = 0; i < 6; i++) mid[i][j] = t[i];
    }
    for (int i = 0; i < 6; i++) {
        if (row + i < 0 || row + i >= height) continue;
        from_data(mid[i], t);
        for (int j = 0; j < 6; j++) {
            float *place = to + i * of_row + j * channels;
            if (whole) STORE(place, LOAD(place) + t[j]);
            else if (column + j >= 0 && column + j < width) STORE_PART(place, part, LOAD_PART(place, part) + t[j]);
        }
    }
}

/* gx of the same convolution: B ((G w G.T) * (A gy A.T)) B.T, summed over the tiles of gy, which are fewer than those
   of gx where windows are not all over padding. A block is of whole images. u is of a weight whose filters are the
   convolution's channels. */
void opbox_winograd_block_data_gradient(const float *restrict gy, const float *restrict u, float *restrict gx,
                                        const Sizes *sizes)
{
    const Sizes s = *sizes;
    const Grid g = grid_of(&s);
    const long row = padded(s.filters), of_v = s.tiles * row + AHEAD, of_m = s.tiles * PANEL + AHEAD;
    const long panels = (s.channels + PANEL - 1) / PANEL, of_image = s.height * s.width * s.channels;
    const int threads = omp_get_max_threads();
    Share blocks[threads];
    GIVE(blocks, (g.all + s.tiles - 1) / s.tiles);
    THREADS
    {
        float v[BLOCK_NUMBERS] __attribute__((aligned(64)));
        float m[36 * (MAX_BLOCK_TILES * PANEL + AHEAD)] __attribute__((aligned(64)));
        SHARED(blocks, block, 1) {
            const long first = block * s.tiles, count = count_of(&s, &g, first);
            const Place begin = place_of(&g, first);
            Place at = begin;
            memset(gx + begin.image * of_image, 0, count / (g.down * g.across) * of_image * sizeof *gx);
            for (long t = 0; t < count; t++, at = next_place(&g, at))
                for (long k = 0; k < s.filters; k += WIDTH)
                    transform_gradient(&s, &g, gy, at, k, v + t * row + k, of_v);
            for (long panel = 0; panel < panels; panel++) {
                multiply_block(v, of_v, row, u, panels, panel, m, of_m, count, s.filters);
                at = begin;
                for (long t = 0; t < count; t++, at = next_place(&g, at)) {
                    const long down = at.row - s.above, right = at.column - s.before;
                    const int inside = down >= 0 && down + 6 <= s.height && right >= 0 && right + 6 <= s.width;
                    for (long c = 0; c < MIN(PANEL, s.channels - panel * PANEL); c += WIDTH)
                        if (inside && panel * PANEL + c + WIDTH <= s.channels)
                            add_tile(&s, at, m + t * PANEL + c, of_m, gx, panel * PANEL + c, 1);
                        else add_tile(&s, at, m + t * PANEL + c, of_m, gx, panel * PANEL + c, 0);
                }
            }
        }
    }
}

/* du as opbox_winograd_sums has it, of `parts` parts of the blocks, each of which is added up in order: what comes out
   does not depend on who adds up which. */
void opbox_winograd_block_sums(const float *restrict x, const float *restrict gy, float *restrict du,
                               const Sizes *sizes, long parts)
{
    const Sizes s = *sizes;
    const Grid g = grid_of(&s);
    const long row = padded(s.channels) + AHEAD, of_v = s.tiles * row + AHEAD, of_u = u_numbers(g.panels, s.channels);
    const long of_z = s.tiles * g.panels * PANEL + AHEAD, blocks = (g.all + s.tiles - 1) / s.tiles;
    const int threads = omp_get_max_threads();
    Share jobs[threads];
    GIVE(jobs, parts);
    THREADS
    {
        float v[BLOCK_NUMBERS] __attribute__((aligned(64))), z[BLOCK_NUMBERS] __attribute__((aligned(64)));
        SHARED(jobs, part, 1) {
            const long begin = blocks * part / parts, end = blocks * (part + 1) / parts;
            for (long block = begin; block < end; block++) {
                const long first = block * s.tiles, count = count_of(&s, &g, first);
                Place at = place_of(&g, first);
                for (long t = 0; t < count; t++, at = next_place(&g, at)) {
                    for (long c = 0; c < s.channels; c += WIDTH) transform_data(&s, x, c, at, v + t * row + c, of_v);
                    transform_gradients(&s, &g, gy, at, t, z, of_z);
                }
                for (int e = 0; e < 36; e++)
                    for (long panel = 0; panel < g.panels; panel++)
                        all_rows(v + e * of_v, 1, row, z + e * of_z + panel * s.tiles * PANEL,
                                 du + part * 36 * of_u + e * of_u + panel * s.channels * PANEL, PANEL, s.channels,
                                 count, block > begin);
            }
        }
    }
}
