/* Winograd's convolution of few tiles.

   A transformed weight takes four times the memory of the weight. Where it is read for few tiles alone, writing and
   reading it takes longer than all products. So a panel of filters is transformed some channels at a time, to where it
   stays in the second cache, and is multiplied there; a gradient of a weight is transformed back from there. */
#pragma once

#include "winograd_tiles.h"

/* MAX_TILES_TOGETHER tiles at most; TERMS_TOGETHER channels of a panel are transformed together, and BACK channels of a
 * gradient. */
enum {
    MAX_TILES_TOGETHER = 64,
    TERMS_TOGETHER = 64,
    BACK = 64,
    OF_U = TERMS_TOGETHER * PANEL + AHEAD,
    OF_DU = BACK * PANEL + AHEAD
};

/* y, as opbox_winograd gives it, to the bit. v has room for sizes->tiles tiles, MAX_TILES_TOGETHER at most:
   TERMS_TOGETHER channels of all of them after the others, as they are read for each panel. */
void opbox_winograd_few(const float *restrict x, const Weight *weight, const float *g, const float *bias,
                        float *restrict y, float *restrict v, const Sizes *sizes, int adds)
{
    const Sizes s = *sizes;
    const Weight w = *weight;
    const Grid grid = grid_of(&s);
    const long of_v = s.tiles * TERMS_TOGETHER + AHEAD, of_m = s.tiles * PANEL + AHEAD;
    const int threads = omp_get_max_threads();
    Share into[threads], panels[threads];
    GIVE(into, count_of(&s, &grid, 0));
    THREADS
    {
        float u[36 * OF_U] __attribute__((aligned(64))),
            m[36 * (MAX_TILES_TOGETHER * PANEL + AHEAD)] __attribute__((aligned(64)));
        for (long first = 0; first < grid.all; first += s.tiles) {
            const long count = count_of(&s, &grid, first);
            GIVE(panels, grid.panels);
            SHARED(into, t, SOME) {
                const Place at = place_of(&grid, first + t);
                for (long c = 0; c < s.channels; c += WIDTH)
                    transform_data(&s, x, c, at,
                                   v + c / TERMS_TOGETHER * 36 * of_v + t * TERMS_TOGETHER + c % TERMS_TOGETHER, of_v);
            }
            BARRIER
            GIVE(into, count_of(&s, &grid, first + s.tiles));
            SHARED(panels, panel, 1) {
                for (long k = 0; k < s.channels; k += TERMS_TOGETHER) {
                    const long depth = s.channels - k < TERMS_TOGETHER ? s.channels - k : TERMS_TOGETHER;
                    for (long c = 0; c < depth; c++) transform_weight(&w, g, panel, k + c, u + c * PANEL, OF_U);
                    for (int e = 0; e < 36; e++)
                        all_rows(v + (k / TERMS_TOGETHER * 36 + e) * of_v, TERMS_TOGETHER, 1, u + e * OF_U,
                                 m + e * of_m, PANEL, count, depth, k > 0);
                }
                Place at = place_of(&grid, first);
                for (long t = 0; t < count; t++, at = next_place(&grid, at))
                    for (long k = 0; k < PANEL && panel * PANEL + k < s.filters; k += WIDTH)
                        transform_out(&s, &grid, at, m + t * PANEL + k, of_m, bias, y, panel * PANEL + k, adds);
            }
            BARRIER
        }
    }
}

/* gw. v, as opbox_winograd_few has it, and z have room for all tiles. */
void opbox_winograd_few_sums(const float *restrict x, const float *restrict gy, float *restrict v, float *restrict z,
                             const Weight *gweight, const float *g, const Sizes *sizes)
{
    const Sizes s = *sizes;
    const Weight gw = *gweight;
    const Grid grid = grid_of(&s);
    const long of_v = grid.all * BACK + AHEAD, of_z = grid.all * grid.panels * PANEL + AHEAD;
    const long blocks = (s.channels + BACK - 1) / BACK;
    const int threads = omp_get_max_threads();
    Share into[threads], jobs[threads];
    GIVE(into, grid.all);
    GIVE(jobs, grid.panels * blocks);
    THREADS
    {
        float du[36 * OF_DU] __attribute__((aligned(64)));
        SHARED(into, t, SOME) {
            const Place at = place_of(&grid, t);
            for (long c = 0; c < s.channels; c += WIDTH)
                transform_data(&s, x, c, at, v + c / BACK * 36 * of_v + t * BACK + c % BACK, of_v);
            transform_gradients(&s, &grid, gy, at, t, z, of_z);
        }
        BARRIER
        SHARED(jobs, job, 1) {
            const long panel = job / blocks, first = job % blocks * BACK;
            const long count = s.channels - first < BACK ? s.channels - first : BACK;
            for (int e = 0; e < 36; e++)
                all_rows(v + (job % blocks * 36 + e) * of_v, 1, BACK, z + e * of_z + panel * grid.all * PANEL,
                         du + e * OF_DU, PANEL, count, grid.all, 0);
            for (long j = 0; j < count; j++) transform_back(du + j * PANEL, OF_DU, g, &gw, panel, first + j);
        }
    }
}
