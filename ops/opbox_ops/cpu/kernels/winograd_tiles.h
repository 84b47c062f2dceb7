/* The transforms of tiles and weights in Winograd's convolution, of windows of TAPS rows and columns. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "transpose.h"
#include "vectors.h"

#if defined(__AVX512F__)
enum { ROWS = 8 };
#else
enum { ROWS = 6 };
#endif

/* Windows are TAPS x TAPS, in all NUMBERS of a weight, and tiles of out SIDE x SIDE. PANEL columns of a product are
   computed together, DEPTH of its terms at a time. AHEAD numbers keep streams out of one another's places in a cache.
   CHANNELS of a weight are transformed together, past the caches where it is LARGE, and those LATER are fetched. A
   thread takes SOME tiles or products at a time, or MANY small pieces. */
enum { NUMBERS = TAPS * TAPS, SIDE = 7 - TAPS };
enum {
    PANEL = 2 * WIDTH,
    DEPTH = 256,
    AHEAD = 16,
    CHANNELS = 8,
    LATER = 4,
    LARGE = 1 << 22,
    SOME = 2,
    MANY = 16,
    OF_OWN = CHANNELS * PANEL + AHEAD
};
#define THREADS _Pragma("omp parallel") FLUSHED
#define BARRIER _Pragma("omp barrier")
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define PREFETCH(p) __builtin_prefetch(p)

int opbox_winograd_width(void) { return WIDTH; }

/* `norm`: what out would be becomes (out - norm[0]) norm[1] + norm[2], rows that lie `norm_row` apart, unless it is
   NULL; `relu`: and then the larger of that and 0. */
typedef struct {
    long batch, height, width, channels, filters, above, before, tiles, relu, norm_row;
    const float *norm;
} Sizes;
typedef struct {
    long out_height, out_width, down, across, all, panels;
} Grid;
typedef struct {
    long image, row, column;
} Place;

/* A vector, or a part of it and zeros; `whole`: it is all. */
static inline __attribute__((always_inline)) Lanes some(const float *from, Part part, const int whole)
{
    return whole ? LOAD(from) : LOAD_PART(from, part);
}

/* Room for a row of numbers that are written by whole vectors. */
static inline long padded(long count) { return (count + WIDTH - 1) / WIDTH * WIDTH; }

static inline Grid grid_of(const Sizes *s)
{
    Grid g;
    g.out_height = s->height + 2 * s->above - (TAPS - 1);
    g.out_width = s->width + 2 * s->before - (TAPS - 1);
    g.down = (g.out_height + SIDE - 1) / SIDE;
    g.across = (g.out_width + SIDE - 1) / SIDE;
    g.all = s->batch * g.down * g.across;
    g.panels = (s->filters + PANEL - 1) / PANEL;
    return g;
}

/* How many tiles are worked off together, from `first` on. */
static inline long count_of(const Sizes *s, const Grid *g, long first)
{
    return first < g->all ? MIN(g->all - first, s->tiles) : 0;
}

static inline Place place_of(const Grid *g, long tile)
{
    return (Place){tile / (g->down * g->across), tile / g->across % g->down * SIDE, tile % g->across * SIDE};
}

static inline Place next_place(const Grid *g, Place at)
{
    at.column += SIDE;
    if (at.column < g->across * SIDE) return at;
    at.row += SIDE;
    return at.row < g->down * SIDE ? (Place){at.image, at.row, 0} : (Place){at.image + 1, 0, 0};
}

/* Numbers of an element of a transformed weight. */
static inline long u_numbers(long panels, long channels) { return panels * channels * PANEL + AHEAD; }

/* B.T: six numbers of a row or column to six, two of these at a time: pair 0 is those of the points 0 and infinity, in
   places 0 and 5, pairs 1 and 2 those of a and -a, in places 1 and 2, 3 and 4. Points a and -a: an even and an odd
   part, added and subtracted. Two rows of six stay in registers. */
static inline __attribute__((always_inline)) void pair_of_data(const int pair, const Lanes d[6], Lanes t[2])
{
    if (pair == 0) {
        const Lanes both = ALL(-97.0f / 36);
        t[0] = MULTIPLY_ADD(both, d[2], d[4] + d[0]);
        t[1] = MULTIPLY_ADD(both, d[3], d[5] + d[1]);
    } else {
        const float point = pair == 1 ? 2.0f / 3 : 1.5f;
        const Lanes other = ALL(pair == 1 ? -9.0f / 4 : -4.0f / 9);
        const Lanes even = MULTIPLY_ADD(other, d[2], d[4]), odd = MULTIPLY_ADD(other, d[1], d[3]);
        t[0] = MULTIPLY_ADD(ALL(point), odd, even);
        t[1] = MULTIPLY_ADD(ALL(-point), odd, even);
    }
}

/* A compiler that knows how places depend on one another computes all of them before, and has no registers for them. */
#define HERE(place) __asm__("" : "+r"(place))
#define FIRST_OF(pair) ((pair) == 0 ? 0 : 2 * (pair) - 1)
#define SECOND_OF(pair) ((pair) == 0 ? 5 : 2 * (pair))

/* A.T: six to SIDE. */
static inline void out_of(const Lanes m[6], Lanes y[SIDE])
{
    const Lanes p = m[1] + m[2], q = m[1] - m[2], r = m[3] + m[4], s = m[3] - m[4];
    y[0] = m[0] + (p + r);
    const Lanes last = SIDE == 2 ? m[5] : ALL(0);
    y[1] = MULTIPLY_ADD(ALL(2.0f / 3), q, MULTIPLY_ADD(ALL(1.5f), s, last));
    if (SIDE == 4) {
        y[2] = MULTIPLY_ADD(ALL(4.0f / 9), p, ALL(2.25f) * r);
        y[3] = MULTIPLY_ADD(ALL(8.0f / 27), q, MULTIPLY_ADD(ALL(3.375f), s, m[5]));
    }
}

/* A: SIDE to six. */
static inline void into_gradient(const Lanes y[SIDE], Lanes m[6])
{
    Lanes even_a = y[0], even_b = y[0], odd_a = ALL(2.0f / 3) * y[1], odd_b = ALL(1.5f) * y[1];
    if (SIDE == 4) {
        even_a = MULTIPLY_ADD(ALL(4.0f / 9), y[2], even_a);
        even_b = MULTIPLY_ADD(ALL(2.25f), y[2], even_b);
        odd_a = MULTIPLY_ADD(ALL(8.0f / 27), y[3], odd_a);
        odd_b = MULTIPLY_ADD(ALL(3.375f), y[3], odd_b);
    }
    m[0] = y[0];
    m[1] = even_a + odd_a;
    m[2] = even_a - odd_a;
    m[3] = even_b + odd_b;
    m[4] = even_b - odd_b;
    m[5] = y[SIDE - 1];
}

/* The 6 x 6 numbers of a tile of x, as many channels from c on as a vector has, transformed: element e to
   to + e * stride. `inside`: all its rows and columns are within x; `whole`: all these channels are. */
static inline __attribute__((always_inline)) void transform_tile(const Sizes *s, const float *x, long c, Place at,
                                                                 float *to, long stride, const int inside,
                                                                 const int whole)
{
    const long row = at.row - s->above, column = at.column - s->before;
    const long height = s->height, width = s->width, channels = s->channels, of_row = width * channels;
    const float *from = x + ((at.image * height + row) * width + column) * channels + c;
    const Part all = first_numbers(channels - c), none = first_numbers(0);
    Part rows[6], columns[6];
    for (int i = 0; i < 6; i++) {
        rows[i] = row + i >= 0 && row + i < height ? all : none;
        columns[i] = column + i >= 0 && column + i < width ? all : none;
    }
    UNROLL for (int pair = 0; pair < 3; pair++) {
        Lanes mid[2][6], d[6], t[2];
        const float *place = from;
        UNROLL for (int j = 0; j < 6; j++) {
            UNROLL for (int i = 0; i < 6; i++) {
                if (pair > 0 && i % 5 == 0) continue;
                d[i] = inside ? some(place + i * of_row, all, whole)
                              : LOAD_PART(place + i * of_row, rows[i] & columns[j]);
            }
            place += channels;
            HERE(place);
            pair_of_data(pair, d, t);
            mid[0][j] = t[0];
            mid[1][j] = t[1];
        }
        UNROLL for (int half = 0; half < 2; half++) {
            float *row_of = to + (half ? SECOND_OF(pair) : FIRST_OF(pair)) * 6 * stride;
            HERE(row_of);
            UNROLL for (int other = 0; other < 3; other++) {
                pair_of_data(other, mid[half], t);
                STORE(row_of + FIRST_OF(other) * stride, t[0]);
                STORE(row_of + SECOND_OF(other) * stride, t[1]);
            }
        }
    }
}

static inline void transform_data(const Sizes *s, const float *x, long c, Place at, float *to, long stride)
{
    const long row = at.row - s->above, column = at.column - s->before;
    const int inside = row >= 0 && row + 6 <= s->height && column >= 0 && column + 6 <= s->width;
    if (!inside) transform_tile(s, x, c, at, to, stride, 0, 0);
    else if (c + WIDTH <= s->channels) transform_tile(s, x, c, at, to, stride, 1, 1);
    else transform_tile(s, x, c, at, to, stride, 1, 0);
}

/* G: TAPS numbers to six. g has its rows; those of a and -a differ in the sign of each second number. */
static inline void into_weight(const float *g, const Lanes w[TAPS], Lanes t[6])
{
    t[0] = ALL(g[0]) * w[0];
    for (int i = 1; i < 5; i += 2) {
        const float *row = g + TAPS * i;
        Lanes even = ALL(row[0]) * w[0];
        for (int k = 2; k < TAPS; k += 2) even = MULTIPLY_ADD(ALL(row[k]), w[k], even);
        t[i] = t[i + 1] = even;
        for (int k = 1; k < TAPS; k += 2) {
            t[i] = MULTIPLY_ADD(ALL(row[k]), w[k], t[i]);
            t[i + 1] = MULTIPLY_ADD(ALL(-row[k]), w[k], t[i + 1]);
        }
    }
    t[5] = ALL(g[6 * TAPS - 1]) * w[TAPS - 1];
}

/* G.T: six to TAPS. */
static inline void out_of_weight(const float *g, const Lanes t[6], Lanes w[TAPS])
{
    const Lanes both[4] = {t[1] + t[2], t[1] - t[2], t[3] + t[4], t[3] - t[4]};
    for (int k = 0; k < TAPS; k++)
        w[k] = MULTIPLY_ADD(ALL(g[3 * TAPS + k]), both[2 + k % 2], ALL(g[TAPS + k]) * both[k % 2]);
    w[0] = MULTIPLY_ADD(ALL(g[0]), t[0], w[0]);
    w[TAPS - 1] = MULTIPLY_ADD(ALL(g[6 * TAPS - 1]), t[5], w[TAPS - 1]);
}

/* A weight, or its gradient, of any strides. Where the numbers of a window lie together, forwards or backwards, those
   of eight filters are read and written together. */
typedef struct { float *numbers; long filters, channels, of_filter, of_channel, of_row, of_column; } Weight;

/* How many filters of a panel are read and written by eights. */
static inline long eights(const Weight *w, long panel)
{
    const int together = w->of_row == TAPS * w->of_column && labs(w->of_column) == 1;
    return together ? MIN(w->filters - panel * PANEL, PANEL) / 8 * 8 : 0;
}

/* G w G.T of a channel, for a panel of filters: element e to to + e * of_element. */
static inline void transform_weight(const Weight *w, const float *g, long panel, long channel, float *to,
                                    long of_element)
{
    float in[NUMBERS][PANEL];
    const long by_eight = eights(w, panel);
    const int backwards = by_eight && w->of_column < 0;
    const long of_row = backwards ? TAPS : w->of_row, of_column = backwards ? 1 : w->of_column;
    const float *from = w->numbers + panel * PANEL * w->of_filter + channel * w->of_channel;
    from -= backwards ? NUMBERS - 1 : 0;
    if (by_eight && w->of_filter == NUMBERS) /* lines that no stream of rows has announced */
        for (long i = 0; i < NUMBERS * by_eight; i += 16) PREFETCH(from + LATER * w->of_channel + i);
    for (long k = 0; k < by_eight; k += 8) {
        for (long i = 0; i + 8 <= NUMBERS; i += 8) turn(from + k * w->of_filter + i, w->of_filter, in[i] + k, PANEL);
        for (long j = k; j < k + 8; j++) in[NUMBERS - 1][j] = from[j * w->of_filter + NUMBERS - 1];
    }
    for (long k = by_eight; k < PANEL; k++)
        for (int i = 0; i < NUMBERS; i++)
            in[i][k] = panel * PANEL + k < w->filters
                ? from[k * w->of_filter + i / TAPS * of_row + i % TAPS * of_column] : 0;
    for (int half = 0; half < PANEL; half += WIDTH) {
        Lanes mid[6][TAPS], d[TAPS], t[6];
        for (int j = 0; j < TAPS; j++) {
            for (int i = 0; i < TAPS; i++)
                d[i] = LOAD(in[backwards ? NUMBERS - 1 - TAPS * i - j : TAPS * i + j] + half);
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
    float out[NUMBERS][PANEL];
    for (int half = 0; half < PANEL; half += WIDTH) {
        Lanes mid[TAPS][6], d[6], t[TAPS];
        for (int j = 0; j < 6; j++) {
            for (int i = 0; i < 6; i++) d[i] = LOAD(from + (i * 6 + j) * of_element + half);
            out_of_weight(g, d, t);
            for (int i = 0; i < TAPS; i++) mid[i][j] = t[i];
        }
        for (int i = 0; i < TAPS; i++) {
            out_of_weight(g, mid[i], t);
            for (int j = 0; j < TAPS; j++) STORE(out[TAPS * i + j] + half, t[j]);
        }
    }
    float *to = w->numbers + panel * PANEL * w->of_filter + channel * w->of_channel;
    const long by_eight = w->of_column > 0 ? eights(w, panel) : 0;
    for (long k = 0; k < by_eight; k += 8) {
        for (long i = 0; i + 8 <= NUMBERS; i += 8) turn(out[i] + k, PANEL, to + k * w->of_filter + i, w->of_filter);
        for (long j = k; j < k + 8; j++) to[j * w->of_filter + NUMBERS - 1] = out[NUMBERS - 1][j];
    }
    for (long k = by_eight; k < PANEL && panel * PANEL + k < w->filters; k++)
        for (int i = 0; i < NUMBERS; i++)
            to[k * w->of_filter + i / TAPS * w->of_row + i % TAPS * w->of_column] = out[i][k];
}

/* Elements e from m + e * of_m to SIDE x SIDE numbers of y, as many filters from k on as a vector has; `whole`: all of
   these are filters. */
static inline __attribute__((always_inline)) void write_tile(const Sizes *s, const Grid *g, Place at, const float *m,
                                                             long of_m, const float *bias, float *y, long k, int adds,
                                                             const int whole)
{
    const long rows = g->out_height - at.row, right = g->out_width - at.column;
    const long filters = s->filters, of_row = g->out_width * filters;
    const Part part = first_numbers(filters - k);
    float *to = y + ((at.image * g->out_height + at.row) * g->out_width + at.column) * filters + k;
    Lanes mid[SIDE][6], d[6], r[SIDE];
    for (int j = 0; j < 6; j++) {
        for (int i = 0; i < 6; i++) d[i] = LOAD(m + (i * 6 + j) * of_m);
        out_of(d, r);
        for (int i = 0; i < SIDE; i++) mid[i][j] = r[i];
    }
    const Lanes more = bias ? some(bias + k, part, whole) : ALL(0);
    const float *norm = s->norm ? s->norm + k : 0;
    const Lanes mean = norm ? some(norm, part, whole) : ALL(0);
    const Lanes scale = norm ? some(norm + s->norm_row, part, whole) : ALL(0);
    const Lanes shift = norm ? some(norm + 2 * s->norm_row, part, whole) : ALL(0);
    for (int i = 0; i < SIDE && i < rows; i++) {
        out_of(mid[i], r);
        for (int j = 0; j < SIDE && j < right; j++) {
            float *place = to + i * of_row + j * filters;
            Lanes sum = r[j];
            if (bias) sum += more;
            if (adds) sum += some(place, part, whole);
            if (norm) sum = (sum - mean) * scale + shift;
            if (s->relu) sum = RECTIFY(sum);
            if (whole) STORE(place, sum);
            else STORE_PART(place, part, sum);
        }
    }
}

static inline void transform_out(const Sizes *s, const Grid *g, Place at, const float *m, long of_m, const float *bias,
                                 float *y, long k, int adds)
{
    if (k + WIDTH <= s->filters) write_tile(s, g, at, m, of_m, bias, y, k, adds, 1);
    else write_tile(s, g, at, m, of_m, bias, y, k, adds, 0);
}

/* A gy A.T of a tile, as many filters from k on as a vector has: element e to to + e * stride. */
static inline void transform_gradient(const Sizes *s, const Grid *g, const float *gy, Place at, long k, float *to,
                                      long stride)
{
    const long height = g->out_height, width = g->out_width, filters = s->filters;
    const float *from = gy + ((at.image * height + at.row) * width + at.column) * filters + k;
    const Part all = first_numbers(filters - k), none = first_numbers(0);
    Lanes mid[6][SIDE], d[SIDE], r[6];
    for (int j = 0; j < SIDE; j++) {
        const Part part = at.column + j < width ? all : none;
        for (int i = 0; i < SIDE; i++)
            d[i] = LOAD_PART(from + (i * width + j) * filters, at.row + i < height ? part : none);
        into_gradient(d, r);
        for (int i = 0; i < 6; i++) mid[i][j] = r[i];
    }
    for (int i = 0; i < 6; i++) {
        into_gradient(mid[i], r);
        for (int j = 0; j < 6; j++) STORE(to + (i * 6 + j) * stride, r[j]);
    }
}

/* z [element][panel][tile][PANEL] of tile t of a block, whose place in gy is `at`. */
static inline void transform_gradients(const Sizes *s, const Grid *g, const float *gy, Place at, long t, float *z,
                                       long of_z)
{
    for (long k = 0; k < g->panels * PANEL; k += WIDTH) {
        float *to = z + (k / PANEL * s->tiles + t) * PANEL + k % PANEL;
        if (k < s->filters) transform_gradient(s, g, gy, at, k, to, of_z);
        else for (int e = 0; e < 36; e++) STORE(to + e * of_z, ALL(0));
    }
}
