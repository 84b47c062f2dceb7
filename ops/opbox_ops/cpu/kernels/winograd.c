/* Winograd's convolution of windows of TAPS rows and columns, with tiles that threads share. */

#include "loops.h"
#include "transpose.h"
#include "vectors.h"
#include "product_term.h"
#include "winograd_tiles.h"

/* c (rows, PANEL) = or += a (rows, depth) b (depth, PANEL). */
static inline __attribute__((always_inline)) void product(const int rows, const float *restrict a, long row, long term,
                                                          const float *restrict b, float *restrict c, long c_row,
                                                          long depth, int adds)
{
    Lanes sums[ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) {
        sums[r][0] = adds ? LOAD(c + r * c_row) : ALL(0);
        sums[r][1] = adds ? LOAD(c + r * c_row + WIDTH) : ALL(0);
    }
    for (long k = 0; k < depth; k++) ADD_TERM(rows, 2, a + k * term, row, b + k * PANEL, sums, 0);
    UNROLL for (int r = 0; r < rows; r++) {
        STORE(c + r * c_row, sums[r][0]);
        STORE(c + r * c_row + WIDTH, sums[r][1]);
    }
}

#define FEWER(n) case n: product(n, a, row, term, b, c, c_row, depth, adds); break;
static void few_rows(int rows, const float *a, long row, long term, const float *b, float *c, long c_row, long depth,
                     int adds)
{
    switch (rows) { FEWER(1) FEWER(2) FEWER(3) FEWER(4) FEWER(5) FEWER(6) FEWER(7) }
}

/* All rows of a product for a panel. */
static inline __attribute__((always_inline)) void all_rows(const float *a, long row, long term, const float *b,
                                                           float *c, long c_row, long rows, long depth, int adds)
{
    for (long t = 0, n; t < rows; t += n) {
        n = next_height(rows - t, ROWS);
        if (n == ROWS) product(ROWS, a + t * row, row, term, b, c + t * c_row, c_row, depth, adds);
        else few_rows(n, a + t * row, row, term, b, c + t * c_row, c_row, depth, adds);
    }
}

/* u [element][panel][channel][PANEL] = G w G.T. */
void opbox_winograd_weight(const Weight *weight, float *u, const float *g)
{
    const Weight w = *weight;
    const long panels = (w.filters + PANEL - 1) / PANEL, groups = (w.channels + CHANNELS - 1) / CHANNELS;
    const long of_u = u_numbers(panels, w.channels);
    const int past = 36 * of_u > LARGE && (long)u % (4 * WIDTH) == 0;
    const int threads = omp_get_max_threads();
    IN_THREADS(job, panels * groups, SOME) {
        const long panel = job / groups, first = job % groups * CHANNELS;
        const long count = w.channels - first < CHANNELS ? w.channels - first : CHANNELS;
        float own[36 * OF_OWN] __attribute__((aligned(64)));
        for (long c = 0; c < count; c++) transform_weight(&w, g, panel, first + c, own + c * PANEL, OF_OWN);
        for (int e = 0; e < 36; e++) {
            float *to = u + e * of_u + (panel * w.channels + first) * PANEL;
            for (long i = 0; i < count * PANEL; i += WIDTH)
                if (past) PASS(to + i, LOAD(own + e * OF_OWN + i));
                else STORE(to + i, LOAD(own + e * OF_OWN + i));
        }
        if (past) _mm_sfence(); /* before other threads read it */
    }
}

/* y (batch, out height, out width, filters); `adds`: to what is there. v and m have room for sizes->tiles tiles. */
void opbox_winograd(const float *restrict x, const float *restrict u, const float *bias, float *restrict y,
                    float *restrict v, float *restrict m, const Sizes *sizes, int adds)
{
    const Sizes s = *sizes;
    const Grid g = grid_of(&s);
    const long row = padded(s.channels), of_v = s.tiles * row + AHEAD;
    const long columns = g.panels * PANEL, of_m = s.tiles * columns + AHEAD;
    const int threads = omp_get_max_threads();
    Share into[threads], products[threads], out[threads];
    GIVE(into, count_of(&s, &g, 0));
    GIVE(products, 36 * g.panels);
    THREADS
    for (long first = 0; first < g.all; first += s.tiles) {
        const long count = count_of(&s, &g, first);
        GIVE(out, count);
        SHARED(into, t, SOME) {
            const Place at = place_of(&g, first + t);
            for (long c = 0; c < s.channels; c += WIDTH) transform_data(&s, x, c, at, v + t * row + c, of_v);
        }
        BARRIER
        GIVE(into, count_of(&s, &g, first + s.tiles));
        SHARED(products, job, SOME) {
            const long e = job / g.panels, panel = job % g.panels;
            for (long k = 0; k < s.channels; k += DEPTH) {
                const long depth = s.channels - k < DEPTH ? s.channels - k : DEPTH;
                const float *b = u + job * s.channels * PANEL + e * AHEAD + k * PANEL, *a = v + e * of_v + k;
                float *c = m + e * of_m + panel * PANEL;
                all_rows(a, row, 1, b, c, columns, count, depth, k > 0);
            }
        }
        BARRIER
        GIVE(products, 36 * g.panels);
        SHARED(out, t, SOME) {
            const Place at = place_of(&g, first + t);
            for (long k = 0; k < s.filters; k += WIDTH)
                transform_out(&s, &g, at, m + t * columns + k, of_m, bias, y, k, adds);
        }
        BARRIER
    }
}

/* du [element][panel][channel][PANEL], the gradient of u. */
void opbox_winograd_sums(const float *restrict x, const float *restrict gy, float *restrict v, float *restrict z,
                         float *restrict du, const Sizes *sizes)
{
    const Sizes s = *sizes;
    const Grid g = grid_of(&s);
    const long of_tile = padded(s.channels) + AHEAD, of_v = s.tiles * of_tile + AHEAD;
    const long of_z = s.tiles * g.panels * PANEL + AHEAD;
    const int threads = omp_get_max_threads();
    Share into[threads], products[threads];
    GIVE(into, count_of(&s, &g, 0));
    THREADS
    for (long first = 0; first < g.all; first += s.tiles) {
        const long count = count_of(&s, &g, first);
        GIVE(products, 36 * g.panels);
        SHARED(into, t, SOME) {
            const Place at = place_of(&g, first + t);
            for (long c = 0; c < s.channels; c += WIDTH) transform_data(&s, x, c, at, v + t * of_tile + c, of_v);
            transform_gradients(&s, &g, gy, at, t, z, of_z);
        }
        BARRIER
        GIVE(into, count_of(&s, &g, first + s.tiles));
        SHARED(products, job, SOME) {
            const long e = job / g.panels;
            const float *b = z + e * of_z + job % g.panels * s.tiles * PANEL;
            float *c = du + job * s.channels * PANEL + e * AHEAD;
            all_rows(v + e * of_v, 1, of_tile, b, c, PANEL, s.channels, count, first > 0);
        }
        BARRIER
    }
}

/* gw = G.T du G, of the sum of `parts` parts of du. */
void opbox_winograd_weight_gradient(const float *du, const Weight *gw, const float *g, long parts)
{
    const Weight w = *gw;
    const long panels = (w.filters + PANEL - 1) / PANEL, of_u = u_numbers(panels, w.channels);
    const int threads = omp_get_max_threads();
    IN_THREADS(job, panels * w.channels, MANY) {
        const float *from = du + job * PANEL;
        for (int e = 0; e < 36; e++) PREFETCH(from + e * of_u + 4 * PANEL);
        float sums[36 * PANEL] __attribute__((aligned(64)));
        for (int e = 0; e < 36 && parts > 1; e++)
            for (int k = 0; k < PANEL; k += WIDTH) {
                const float *place = from + e * of_u + k;
                Lanes sum = LOAD(place);
                for (long part = 1; part < parts; part++) sum += LOAD(place + part * 36 * of_u);
                STORE(sums + e * PANEL + k, sum);
            }
        const int in_parts = parts > 1;
        transform_back(in_parts ? sums : from, in_parts ? PANEL : of_u, g, &w, job / w.channels, job % w.channels);
    }
}

#include "winograd_few.h"
#include "winograd_blocks.h"
