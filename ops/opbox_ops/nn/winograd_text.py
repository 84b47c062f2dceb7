"""The C of Winograd's convolution; `winograd` says what it computes, and compiles it."""

from __future__ import annotations

__all__ = ["TEXT"]

TEXT = r"""
#include <stdlib.h>

#if defined(__AVX512F__)
enum { ROWS = 8 };
#else
enum { ROWS = 6 };
#endif

/* PANEL columns of a product are computed together, DEPTH of its terms at a time. AHEAD numbers keep streams out of one
   another's places in a cache. CHANNELS of a weight are transformed together, past the caches where it is LARGE, and
   those LATER are fetched. A thread takes SOME tiles or products at a time, or MANY small pieces. */
enum { PANEL = 2 * WIDTH, DEPTH = 256, AHEAD = 16, CHANNELS = 8, LATER = 4, LARGE = 1 << 22, SOME = 2, MANY = 16,
       OF_OWN = CHANNELS * PANEL + AHEAD };
#define THREADS _Pragma("omp parallel") FLUSHED
#define BARRIER _Pragma("omp barrier")
#define LEAST(x, y) ((x) < (y) ? (x) : (y))
#define SOON(p) __builtin_prefetch(p)

int opbox_winograd_width(void) { return WIDTH; }

/* `norm`: what out would be becomes (out - norm[0]) norm[1] + norm[2], rows that lie `norm_row` apart, unless it is
   NULL; `rectifies`: and then the larger of that and 0. */
typedef struct {
    long batch, height, width, channels, filters, above, before, tiles, rectifies, norm_row;
    const float *norm;
} Sizes;
typedef struct { long out_height, out_width, down, across, all, panels; } Grid;
typedef struct { long image, row, column; } Place;

static inline Grid grid_of(const Sizes *s)
{
    Grid g;
    g.out_height = s->height + 2 * s->above - 2;
    g.out_width = s->width + 2 * s->before - 2;
    g.down = (g.out_height + 3) / 4;
    g.across = (g.out_width + 3) / 4;
    g.all = s->batch * g.down * g.across;
    g.panels = (s->filters + PANEL - 1) / PANEL;
    return g;
}

/* How many tiles are worked off together, from `first` on. */
static inline long count_of(const Sizes *s, const Grid *g, long first)
{
    return first < g->all ? LEAST(g->all - first, s->tiles) : 0;
}

static inline Place place_of(const Grid *g, long tile)
{
    return (Place){tile / (g->down * g->across), tile / g->across % g->down * 4, tile % g->across * 4};
}

/* B.T: six numbers of a row or column to six. Points a and -a: an even and an odd part, added and subtracted. */
static inline void into_data(const Lanes d[6], Lanes t[6])
{
    const Lanes both = ALL(-97.0f / 36), aa = ALL(-4.0f / 9), bb = ALL(-9.0f / 4);
    t[0] = MULTIPLY_ADD(both, d[2], d[4] + d[0]);
    Lanes even = MULTIPLY_ADD(bb, d[2], d[4]), odd = MULTIPLY_ADD(bb, d[1], d[3]) * ALL(2.0f / 3);
    t[1] = even + odd;
    t[2] = even - odd;
    even = MULTIPLY_ADD(aa, d[2], d[4]);
    odd = MULTIPLY_ADD(aa, d[1], d[3]) * ALL(1.5f);
    t[3] = even + odd;
    t[4] = even - odd;
    t[5] = MULTIPLY_ADD(both, d[3], d[5] + d[1]);
}

/* A.T: six to four. */
static inline void out_of(const Lanes m[6], Lanes y[4])
{
    const Lanes p = m[1] + m[2], q = m[1] - m[2], r = m[3] + m[4], s = m[3] - m[4];
    y[0] = m[0] + (p + r);
    y[1] = MULTIPLY_ADD(ALL(2.0f / 3), q, ALL(1.5f) * s);
    y[2] = MULTIPLY_ADD(ALL(4.0f / 9), p, ALL(2.25f) * r);
    y[3] = MULTIPLY_ADD(ALL(8.0f / 27), q, MULTIPLY_ADD(ALL(3.375f), s, m[5]));
}

/* A: four to six. */
static inline void into_gradient(const Lanes y[4], Lanes m[6])
{
    const Lanes even_a = MULTIPLY_ADD(ALL(4.0f / 9), y[2], y[0]), even_b = MULTIPLY_ADD(ALL(2.25f), y[2], y[0]);
    const Lanes odd_a = MULTIPLY_ADD(ALL(8.0f / 27), y[3], ALL(2.0f / 3) * y[1]);
    const Lanes odd_b = MULTIPLY_ADD(ALL(3.375f), y[3], ALL(1.5f) * y[1]);
    m[0] = y[0];
    m[1] = even_a + odd_a;
    m[2] = even_a - odd_a;
    m[3] = even_b + odd_b;
    m[4] = even_b - odd_b;
    m[5] = y[3];
}

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

/* The 6 x 6 numbers of a tile of x, as many channels as a vector has, transformed: element e to to + e * stride. */
static inline void transform_data(const Sizes *s, const float *x, Place at, float *to, long stride)
{
    Lanes mid[6][6], d[6], t[6];
    for (int j = 0; j < 6; j++) {
        const long column = at.column - s->before + j;
        for (int i = 0; i < 6; i++) {
            const long row = at.row - s->above + i;
            const int inside = row >= 0 && row < s->height && column >= 0 && column < s->width;
            d[i] = inside ? LOAD(x + ((at.image * s->height + row) * s->width + column) * s->channels) : ALL(0);
        }
        into_data(d, t);
        for (int i = 0; i < 6; i++) mid[i][j] = t[i];
    }
    for (int i = 0; i < 6; i++) {
        into_data(mid[i], t);
        for (int j = 0; j < 6; j++) STORE(to + (i * 6 + j) * stride, t[j]);
    }
}

/* G: three numbers to six. g has its rows; those of a and -a differ in the sign of the second number. */
static inline void into_weight(const float *g, const Lanes w[3], Lanes t[6])
{
    t[0] = ALL(g[0]) * w[0];
    for (int i = 1; i < 5; i += 2) {
        const Lanes even = MULTIPLY_ADD(ALL(g[3 * i + 2]), w[2], ALL(g[3 * i]) * w[0]);
        t[i] = MULTIPLY_ADD(ALL(g[3 * i + 1]), w[1], even);
        t[i + 1] = MULTIPLY_ADD(ALL(-g[3 * i + 1]), w[1], even);
    }
    t[5] = ALL(g[17]) * w[2];
}

/* G.T: six to three. */
static inline void out_of_weight(const float *g, const Lanes t[6], Lanes w[3])
{
    const Lanes p = t[1] + t[2], q = t[1] - t[2], r = t[3] + t[4], s = t[3] - t[4];
    w[0] = MULTIPLY_ADD(ALL(g[9]), r, MULTIPLY_ADD(ALL(g[3]), p, ALL(g[0]) * t[0]));
    w[1] = MULTIPLY_ADD(ALL(g[10]), s, ALL(g[4]) * q);
    w[2] = MULTIPLY_ADD(ALL(g[11]), r, MULTIPLY_ADD(ALL(g[5]), p, ALL(g[17]) * t[5]));
}

/* A weight, or its gradient, of any strides. Where the nine numbers of a window lie together, forwards or backwards,
   they are read and written eight by eight. */
typedef struct { float *numbers; long filters, channels, of_filter, of_channel, of_row, of_column; } Weight;

static inline int lies_together(const Weight *w, long panel)
{
    return (panel + 1) * PANEL <= w->filters && w->of_row == 3 * w->of_column && labs(w->of_column) == 1;
}

/* G w G.T of a channel, for a panel of filters: element e to to + e * of_element. */
static inline void transform_weight(const Weight *w, const float *g, long panel, long channel, float *to,
                                    long of_element)
{
    float in[9][PANEL];
    const float *from = w->numbers + panel * PANEL * w->of_filter + channel * w->of_channel;
    const int together = lies_together(w, panel), backwards = together && w->of_column < 0;
    if (together) {
        from -= backwards ? 8 : 0;
        if (w->of_filter == 9) /* lines that no stream of rows has announced */
            for (long i = 0; i < 9 * PANEL; i += 16) SOON(from + LATER * w->of_channel + i);
        for (long k = 0; k < PANEL; k += 8) turn(from + k * w->of_filter, w->of_filter, in[0] + k, PANEL);
        for (long k = 0; k < PANEL; k++) in[8][k] = from[k * w->of_filter + 8];
    } else
        for (long k = 0; k < PANEL; k++)
            for (int i = 0; i < 9; i++)
                in[i][k] = panel * PANEL + k < w->filters
                    ? from[k * w->of_filter + i / 3 * w->of_row + i % 3 * w->of_column] : 0;
    for (int half = 0; half < PANEL; half += WIDTH) {
        Lanes mid[6][3], d[3], t[6];
        for (int j = 0; j < 3; j++) {
            for (int i = 0; i < 3; i++) d[i] = LOAD(in[backwards ? 8 - 3 * i - j : 3 * i + j] + half);
            into_weight(g, d, t);
            for (int i = 0; i < 6; i++) mid[i][j] = t[i];
        }
        for (int i = 0; i < 6; i++) {
            into_weight(g, mid[i], t);
            for (int j = 0; j < 6; j++) STORE(to + (i * 6 + j) * of_element + half, t[j]);
        }
    }
}

/* w = G.T from G of a channel, for a panel of filters. */
static inline void transform_back(const float *from, long of_element, const float *g, const Weight *w, long panel,
                                  long channel)
{
    float out[9][PANEL];
    for (int half = 0; half < PANEL; half += WIDTH) {
        Lanes mid[3][6], d[6], t[3];
        for (int j = 0; j < 6; j++) {
            for (int i = 0; i < 6; i++) d[i] = LOAD(from + (i * 6 + j) * of_element + half);
            out_of_weight(g, d, t);
            for (int i = 0; i < 3; i++) mid[i][j] = t[i];
        }
        for (int i = 0; i < 3; i++) {
            out_of_weight(g, mid[i], t);
            for (int j = 0; j < 3; j++) STORE(out[3 * i + j] + half, t[j]);
        }
    }
    float *to = w->numbers + panel * PANEL * w->of_filter + channel * w->of_channel;
    if (lies_together(w, panel) && w->of_column > 0) {
        for (long k = 0; k < PANEL; k += 8) turn(out[0] + k, PANEL, to + k * w->of_filter, w->of_filter);
        for (long k = 0; k < PANEL; k++) to[k * w->of_filter + 8] = out[8][k];
    } else
        for (long k = 0; k < PANEL && panel * PANEL + k < w->filters; k++)
            for (int i = 0; i < 9; i++) to[k * w->of_filter + i / 3 * w->of_row + i % 3 * w->of_column] = out[i][k];
}

/* u [element][panel][channel][PANEL] = G w G.T. */
void opbox_winograd_weight(const Weight *weight, float *u, const float *g)
{
    const Weight w = *weight;
    const long panels = (w.filters + PANEL - 1) / PANEL, groups = (w.channels + CHANNELS - 1) / CHANNELS;
    const long of_u = panels * w.channels * PANEL + AHEAD;
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

/* Elements e from m + e * of_m to 4 x 4 numbers of y, as many filters as a vector has from k on. */
static inline void transform_out(const Sizes *s, const Grid *g, Place at, const float *m, long of_m, const float *bias,
                                 float *y, long k, int adds)
{
    const long rows = g->out_height - at.row, right = g->out_width - at.column;
    float *to = y + ((at.image * g->out_height + at.row) * g->out_width + at.column) * s->filters + k;
    Lanes mid[4][6], d[6], r[4];
    for (int j = 0; j < 6; j++) {
        for (int i = 0; i < 6; i++) d[i] = LOAD(m + (i * 6 + j) * of_m);
        out_of(d, r);
        for (int i = 0; i < 4; i++) mid[i][j] = r[i];
    }
    const Lanes more = bias ? LOAD(bias + k) : ALL(0);
    const float *norm = s->norm ? s->norm + k : 0;
    const Lanes mean = norm ? LOAD(norm) : ALL(0), scale = norm ? LOAD(norm + s->norm_row) : ALL(0);
    const Lanes shift = norm ? LOAD(norm + 2 * s->norm_row) : ALL(0);
    for (int i = 0; i < 4 && i < rows; i++) {
        out_of(mid[i], r);
        for (int j = 0; j < 4 && j < right; j++) {
            float *place = to + (i * g->out_width + j) * s->filters;
            Lanes sum = r[j];
            if (bias) sum += more;
            if (adds) sum += LOAD(place);
            if (norm) sum = (sum - mean) * scale + shift;
            if (s->rectifies) sum = RECTIFY(sum);
            STORE(place, sum);
        }
    }
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

/* y (batch, out height, out width, filters); `adds`: to what is there. v and m have room for sizes->tiles tiles. */
void opbox_winograd(const float *restrict x, const float *restrict u, const float *bias, float *restrict y,
                    float *restrict v, float *restrict m, const Sizes *sizes, int adds)
{
    const Sizes s = *sizes;
    const Grid g = grid_of(&s);
    const long columns = g.panels * PANEL, of_v = s.tiles * s.channels + AHEAD, of_m = s.tiles * columns + AHEAD;
    const int threads = omp_get_max_threads();
    Share into[threads], products[threads], out[threads];
    GIVE(into, count_of(&s, &g, 0));
    GIVE(products, 36 * g.panels);
    THREADS
    for (long first = 0; first < g.all; first += s.tiles) {
        const long count = count_of(&s, &g, first);
        GIVE(out, count);
        SHARED(into, t, SOME)
            for (long c = 0; c < s.channels; c += WIDTH)
                transform_data(&s, x + c, place_of(&g, first + t), v + t * s.channels + c, of_v);
        BARRIER
        GIVE(into, count_of(&s, &g, first + s.tiles));
        SHARED(products, job, SOME) {
            const long e = job / g.panels, panel = job % g.panels;
            for (long k = 0; k < s.channels; k += DEPTH) {
                const long depth = s.channels - k < DEPTH ? s.channels - k : DEPTH;
                const float *b = u + job * s.channels * PANEL + e * AHEAD + k * PANEL, *a = v + e * of_v + k;
                float *c = m + e * of_m + panel * PANEL;
                all_rows(a, s.channels, 1, b, c, columns, count, depth, k > 0);
            }
        }
        BARRIER
        GIVE(products, 36 * g.panels);
        SHARED(out, t, SOME)
            for (long k = 0; k < s.filters; k += WIDTH)
                transform_out(&s, &g, place_of(&g, first + t), m + t * columns + k, of_m, bias, y, k, adds);
        BARRIER
    }
}

/* z [element][panel][tile][PANEL] of tile t, of those from `first` on. */
static inline void transform_gradient(const Sizes *s, const Grid *g, const float *gy, long first, long t, float *z,
                                      long of_z)
{
    const Place at = place_of(g, first + t);
    const float *from = gy + ((at.image * g->out_height + at.row) * g->out_width + at.column) * s->filters;
    for (long k = 0; k < g->panels * PANEL; k += WIDTH) {
        float *to = z + (k / PANEL * s->tiles + t) * PANEL + k % PANEL;
        Lanes mid[6][4], d[4], r[6];
        for (int j = 0; j < 4; j++) {
            const int inside = k < s->filters && at.column + j < g->out_width;
            for (int i = 0; i < 4; i++) {
                const float *place = from + (i * g->out_width + j) * s->filters + k;
                d[i] = inside && at.row + i < g->out_height ? LOAD(place) : ALL(0);
            }
            into_gradient(d, r);
            for (int i = 0; i < 6; i++) mid[i][j] = r[i];
        }
        for (int i = 0; i < 6; i++) {
            into_gradient(mid[i], r);
            for (int j = 0; j < 6; j++) STORE(to + (i * 6 + j) * of_z, r[j]);
        }
    }
}

/* du [element][panel][channel][PANEL], the gradient of u. */
void opbox_winograd_sums(const float *restrict x, const float *restrict gy, float *restrict v, float *restrict z,
                         float *restrict du, const Sizes *sizes)
{
    const Sizes s = *sizes;
    const Grid g = grid_of(&s);
    const long of_tile = s.channels + AHEAD, of_v = s.tiles * of_tile + AHEAD;
    const long of_z = s.tiles * g.panels * PANEL + AHEAD;
    const int threads = omp_get_max_threads();
    Share into[threads], products[threads];
    GIVE(into, count_of(&s, &g, 0));
    THREADS
    for (long first = 0; first < g.all; first += s.tiles) {
        const long count = count_of(&s, &g, first);
        GIVE(products, 36 * g.panels);
        SHARED(into, t, SOME) {
            for (long c = 0; c < s.channels; c += WIDTH)
                transform_data(&s, x + c, place_of(&g, first + t), v + t * of_tile + c, of_v);
            transform_gradient(&s, &g, gy, first, t, z, of_z);
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

/* gw = G.T du G. */
void opbox_winograd_weight_gradient(const float *du, const Weight *gw, const float *g)
{
    const Weight w = *gw;
    const long panels = (w.filters + PANEL - 1) / PANEL, of_u = panels * w.channels * PANEL + AHEAD;
    const int threads = omp_get_max_threads();
    IN_THREADS(job, panels * w.channels, MANY) {
        const float *from = du + job * PANEL;
        for (int e = 0; e < 36; e++) SOON(from + e * of_u + 4 * PANEL);
        transform_back(from, of_u, g, &w, job / w.channels, job % w.channels);
    }
}
"""
