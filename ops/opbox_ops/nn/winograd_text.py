"""The C of Winograd's convolution; `winograd` says what it computes, and compiles it."""

from __future__ import annotations

__all__ = ["TEXT"]

TEXT = r"""
#include <immintrin.h>
#include <string.h>

#if defined(__AVX512F__)
enum { WIDTH = 16, ROWS = 8, SUMS = 8 };
typedef __m512 Lanes;
#define MULTIPLY_ADD _mm512_fmadd_ps
#define ALL _mm512_set1_ps
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define PASS _mm512_stream_ps
#elif defined(__AVX2__) && defined(__FMA__)
enum { WIDTH = 8, ROWS = 6, SUMS = 4 };
typedef __m256 Lanes;
#define MULTIPLY_ADD _mm256_fmadd_ps
#define ALL _mm256_set1_ps
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define PASS _mm256_stream_ps
#else
#error "no vectors"
#endif

/* PANEL columns of a product are computed together, DEPTH of its terms at a time. AHEAD numbers keep streams out of one
   another's places in a cache. CHANNELS of a weight are transformed together, past the caches where it is LARGE. */
enum { PANEL = 2 * WIDTH, DEPTH = 256, AHEAD = 16, CHANNELS = 8, LARGE = 1 << 22 };
#define THREADS _Pragma("omp parallel")
#define SHARED _Pragma("omp for schedule(static)")
#define SOON(p) __builtin_prefetch(p)
#define UNROLL _Pragma("GCC unroll 8")

int opbox_winograd_width(void) { return WIDTH; }

typedef struct { long batch, height, width, channels, filters, above, before, tiles; } Sizes;
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
    for (long k = 0; k < depth; k++) {
        const Lanes left = LOAD(b + k * PANEL), right = LOAD(b + k * PANEL + WIDTH);
        UNROLL for (int r = 0; r < rows; r++) {
            const Lanes x = ALL(a[r * row + k * term]);
            sums[r][0] = MULTIPLY_ADD(x, left, sums[r][0]);
            sums[r][1] = MULTIPLY_ADD(x, right, sums[r][1]);
        }
    }
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

/* u [element][panel][channel][PANEL] = G w G.T; the weight (filter, channel, row, column) has any strides. */
void opbox_winograd_weight(const float *w, float *u, const float *g, long filters, long channels, long of_filter,
                           long of_channel, long of_row, long of_column)
{
    const long panels = (filters + PANEL - 1) / PANEL, groups = (channels + CHANNELS - 1) / CHANNELS;
    const long of_u = panels * channels * PANEL + AHEAD;
    const int past = 36 * of_u > LARGE && (long)u % (4 * WIDTH) == 0;
    _Pragma("omp parallel for schedule(static)")
    for (long job = 0; job < panels * groups; job++) {
        const long panel = job / groups, first = job % groups * CHANNELS;
        const long count = channels - first < CHANNELS ? channels - first : CHANNELS;
        float in[CHANNELS][9][PANEL], mid[CHANNELS][18][PANEL];
        for (long k = 0; k < PANEL; k++) {
            const long filter = panel * PANEL + k;
            const float *from = w + filter * of_filter + first * of_channel;
            for (long c = 0; c < count; c++)
                for (int i = 0; i < 9; i++)
                    in[c][i][k] = filter < filters ? from[c * of_channel + i / 3 * of_row + i % 3 * of_column] : 0;
        }
        for (long c = 0; c < count; c++)
            for (int j = 0; j < 3; j++)
                for (int i = 0; i < 6; i++)
                    for (int half = 0; half < PANEL; half += WIDTH) {
                        const float *of = in[c][j] + half;
                        Lanes sum = ALL(g[i * 3]) * LOAD(of);
                        sum = MULTIPLY_ADD(ALL(g[i * 3 + 1]), LOAD(of + 3 * PANEL), sum);
                        STORE(mid[c][i * 3 + j] + half, MULTIPLY_ADD(ALL(g[i * 3 + 2]), LOAD(of + 6 * PANEL), sum));
                    }
        for (int e = 0; e < 36; e++) {
            const float *row = g + e % 6 * 3;
            float *to = u + e * of_u + (panel * channels + first) * PANEL;
            for (long c = 0; c < count; c++)
                for (int half = 0; half < PANEL; half += WIDTH) {
                    const float *of = mid[c][e / 6 * 3] + half;
                    Lanes sum = MULTIPLY_ADD(ALL(row[1]), LOAD(of + PANEL), ALL(row[0]) * LOAD(of));
                    sum = MULTIPLY_ADD(ALL(row[2]), LOAD(of + 2 * PANEL), sum);
                    if (past) PASS(to + c * PANEL + half, sum);
                    else STORE(to + c * PANEL + half, sum);
                }
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
    const long columns = g.panels * PANEL, of_v = s.tiles * s.channels + AHEAD, of_m = s.tiles * columns + AHEAD;
    THREADS
    for (long first = 0; first < g.all; first += s.tiles) {
        const long count = g.all - first < s.tiles ? g.all - first : s.tiles;
        SHARED
        for (long t = 0; t < count; t++)
            for (long c = 0; c < s.channels; c += WIDTH)
                transform_data(&s, x + c, place_of(&g, first + t), v + t * s.channels + c, of_v);
        SHARED
        for (long job = 0; job < 36 * g.panels; job++) {
            const long e = job / g.panels, panel = job % g.panels;
            for (long k = 0; k < s.channels; k += DEPTH) {
                const long depth = s.channels - k < DEPTH ? s.channels - k : DEPTH;
                const float *b = u + job * s.channels * PANEL + e * AHEAD + k * PANEL, *a = v + e * of_v + k;
                float *c = m + e * of_m + panel * PANEL;
                long t = 0;
                for (; t + ROWS <= count; t += ROWS)
                    product(ROWS, a + t * s.channels, s.channels, 1, b, c + t * columns, columns, depth, k > 0);
                few_rows(count - t, a + t * s.channels, s.channels, 1, b, c + t * columns, columns, depth, k > 0);
            }
        }
        SHARED
        for (long t = 0; t < count; t++) {
            const Place at = place_of(&g, first + t);
            const long rows = g.out_height - at.row, right = g.out_width - at.column;
            float *to = y + ((at.image * g.out_height + at.row) * g.out_width + at.column) * s.filters;
            for (long k = 0; k < s.filters; k += WIDTH) {
                Lanes mid[4][6], d[6], r[4];
                for (int j = 0; j < 6; j++) {
                    for (int i = 0; i < 6; i++) d[i] = LOAD(m + (i * 6 + j) * of_m + t * columns + k);
                    out_of(d, r);
                    for (int i = 0; i < 4; i++) mid[i][j] = r[i];
                }
                const Lanes more = bias ? LOAD(bias + k) : ALL(0);
                for (int i = 0; i < 4 && i < rows; i++) {
                    out_of(mid[i], r);
                    for (int j = 0; j < 4 && j < right; j++) {
                        float *place = to + (i * g.out_width + j) * s.filters + k;
                        Lanes sum = r[j];
                        if (bias) sum += more;
                        if (adds) sum += LOAD(place);
                        STORE(place, sum);
                    }
                }
            }
        }
    }
}

/* du [element][panel][channel][PANEL], the gradient of u; v [element][channels of a vector][tile][WIDTH],
   z [element][panel][tile][PANEL]. */
void opbox_winograd_sums(const float *restrict x, const float *restrict gy, float *restrict v, float *restrict z,
                         float *restrict du, const Sizes *sizes)
{
    const Sizes s = *sizes;
    const Grid g = grid_of(&s);
    const long of_v = s.tiles * s.channels + AHEAD, of_z = s.tiles * g.panels * PANEL + AHEAD;
    THREADS
    for (long first = 0; first < g.all; first += s.tiles) {
        const long count = g.all - first < s.tiles ? g.all - first : s.tiles;
        SHARED
        for (long t = 0; t < count; t++) {
            const Place at = place_of(&g, first + t);
            for (long c = 0; c < s.channels; c += WIDTH)
                transform_data(&s, x + c, at, v + c * s.tiles + t * WIDTH, of_v);
            const float *from = gy + ((at.image * g.out_height + at.row) * g.out_width + at.column) * s.filters;
            for (long k = 0; k < g.panels * PANEL; k += WIDTH) {
                float *to = z + (k / PANEL * s.tiles + t) * PANEL + k % PANEL;
                Lanes mid[6][4], d[4], r[6];
                for (int j = 0; j < 4; j++) {
                    const int inside = k < s.filters && at.column + j < g.out_width;
                    for (int i = 0; i < 4; i++) {
                        const float *place = from + (i * g.out_width + j) * s.filters + k;
                        d[i] = inside && at.row + i < g.out_height ? LOAD(place) : ALL(0);
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
        SHARED
        for (long job = 0; job < 36 * g.panels; job++) {
            const float *b = z + job / g.panels * of_z + job % g.panels * s.tiles * PANEL;
            float *c = du + job * s.channels * PANEL + job / g.panels * AHEAD;
            for (long j = 0; j < s.channels; j += SUMS) {
                const float *a = v + job / g.panels * of_v + j / WIDTH * WIDTH * s.tiles + j % WIDTH;
                product(SUMS, a, 1, WIDTH, b, c + j * PANEL, PANEL, count, first > 0);
            }
        }
    }
}

/* gw = G.T du G, of any strides. */
void opbox_winograd_weight_gradient(const float *du, float *gw, const float *g, long filters, long channels,
                                    long of_filter, long of_channel, long of_row, long of_column)
{
    const long panels = (filters + PANEL - 1) / PANEL, groups = (channels + CHANNELS - 1) / CHANNELS;
    const long of_u = panels * channels * PANEL + AHEAD;
    _Pragma("omp parallel for schedule(static)")
    for (long job = 0; job < panels * groups; job++) {
        const long panel = job / groups, first = job % groups * CHANNELS;
        const long count = channels - first < CHANNELS ? channels - first : CHANNELS;
        float out[CHANNELS][9][PANEL];
        for (long c = 0; c < count; c++) {
            const float *from = du + (panel * channels + first + c) * PANEL;
            for (int e = 0; e < 36; e++) SOON(from + e * of_u + 4 * PANEL);
            for (int half = 0; half < PANEL; half += WIDTH) {
                Lanes mid[3][6];
                for (int j = 0; j < 6; j++)
                    for (int r = 0; r < 3; r++) {
                        Lanes sum = ALL(0);
                        for (int i = 0; i < 6; i++)
                            sum = MULTIPLY_ADD(ALL(g[i * 3 + r]), LOAD(from + (i * 6 + j) * of_u + half), sum);
                        mid[r][j] = sum;
                    }
                for (int r = 0; r < 3; r++)
                    for (int q = 0; q < 3; q++) {
                        Lanes sum = ALL(0);
                        for (int j = 0; j < 6; j++) sum = MULTIPLY_ADD(ALL(g[j * 3 + q]), mid[r][j], sum);
                        STORE(out[c][r * 3 + q] + half, sum);
                    }
            }
        }
        for (long k = 0; k < PANEL && panel * PANEL + k < filters; k++) {
            float *to = gw + (panel * PANEL + k) * of_filter + first * of_channel;
            for (long c = 0; c < count; c++)
                for (int i = 0; i < 9; i++) to[c * of_channel + i / 3 * of_row + i % 3 * of_column] = out[c][i][k];
        }
    }
}
"""
