/* Gradients of weights whose windows have short rows; `short_rows` says what is computed. */

#include <immintrin.h>

#include "loops.h"
#include "windows.h"

#if !defined(__AVX2__) || !defined(__FMA__)
#error "no vectors"
#endif

/* A row of a window takes up to MAX_VECTORS vectors. A LINE of the cache has so many filters; work of up to ALONE
   multiplications is one thread's. */
enum { WIDTH = 8, MAX_VECTORS = 3, LINE = 16, ALONE = 1 << 19 };
typedef __m256 Lanes;
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define UNROLL _Pragma("GCC unroll 8")

/* sums (filters, vectors) += gout (positions, filters)' windows (positions, vectors), of positions `step` numbers apart
   in a row of data. `ahead`: of gout, to be fetched meanwhile. */
static inline __attribute__((always_inline)) void tile(const int filters, const int vectors, const float *gout,
                                                       long apart, const float *data, long step, long positions,
                                                       float *sums, const float *ahead)
{
    Lanes all[2 * LINE / MAX_VECTORS][MAX_VECTORS];
    UNROLL for (int f = 0; f < filters; f++)
        UNROLL for (int v = 0; v < vectors; v++) all[f][v] = _mm256_loadu_ps(sums + (f * vectors + v) * WIDTH);
    for (long p = 0; p < positions; p++) {
        Lanes window[MAX_VECTORS];
        if (ahead) __builtin_prefetch(ahead + p * apart);
        UNROLL for (int v = 0; v < vectors; v++) {
            window[v] = _mm256_loadu_ps(data + p * step + v * WIDTH);
            __asm__("" : "+x"(window[v])); /* it stays in its register */
        }
        UNROLL for (int f = 0; f < filters; f++) {
            const Lanes share = _mm256_set1_ps(gout[p * apart + f]);
            UNROLL for (int v = 0; v < vectors; v++) all[f][v] = _mm256_fmadd_ps(share, window[v], all[f][v]);
        }
    }
    UNROLL for (int f = 0; f < filters; f++)
        UNROLL for (int v = 0; v < vectors; v++) _mm256_storeu_ps(sums + (f * vectors + v) * WIDTH, all[f][v]);
}

#define TILE(filters, vectors) case 8 * (vectors) + (filters) - 1: \
    tile(filters, vectors, gout, apart, data, step, positions, sums, ahead); \
    break;
static void any_tile(long filters, long vectors, const float *gout, long apart, const float *data, long step,
                     long positions, float *sums, const float *ahead)
{
    switch (8 * vectors + filters - 1) {
        TILE(8, 1) TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(7, 1)
        TILE(6, 2) TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2)
        TILE(4, 3) TILE(1, 3) TILE(2, 3) TILE(3, 3)
    }
}

/* A row of data between its margins, which are zeros, as is all of a row outside of data. */
static void copy_row(const Windows *w, const float *image, long row, float *to, long length)
{
    const long numbers = w->width * w->channels, margin = w->before * w->channels;
    const int inside = row >= 0 && row < w->height;
    const float *from = image + row * numbers;
    for (long k = 0; k < margin; k++) to[k] = 0;
    if (inside)
        for (long k = 0; k < numbers; k++) to[margin + k] = from[k];
    for (long k = inside ? margin + numbers : margin; k < length; k++) to[k] = 0;
}

/* gweight, whose steps are `steps` by filter, channel, row and column. Rows of out come in slabs, each of which adds to
   sums of its own (rows of the window, filters, vectors), and copies rows of data, of `length` numbers, to `rows`. */
void opbox_short_rows(const float *restrict gout, const float *restrict data, float *restrict gweight,
                      float *restrict sums, float *restrict rows, const Windows *windows, long filters, long slabs,
                      long length, const long *steps)
{
    const Windows w = *windows;
    const long span = w.across_kernel * w.channels, vectors = (span + WIDTH - 1) / WIDTH;
    const long high = vectors == 1 ? 8 : 12 / vectors;
    const long of_row = filters * vectors * WIDTH, of_slab = w.down_kernel * of_row, step = w.across * w.channels;
    const long all = w.batch * w.out_height, work = all * w.out_width * filters * w.down_kernel * span;
    const int threads = work > ALONE ? omp_get_max_threads() : 1;
    Share of_slabs[threads], of_filters[threads];
    GIVE(of_slabs, slabs);
    GIVE(of_filters, filters);
    _Pragma("omp parallel num_threads(threads)")
    {
        SHARED(of_slabs, slab, 1) {
            float *own = sums + slab * of_slab, *copies = rows + slab * w.down_kernel * length;
            for (long k = 0; k < of_slab; k++) own[k] = 0;
            for (long n = slab * all / slabs; n < (slab + 1) * all / slabs; n++) {
                const float *image = data + n / w.out_height * w.height * w.width * w.channels;
                const float *share = gout + n * w.out_width * filters;
                const float *next = n + 1 < all ? share + w.out_width * filters : 0;
                for (long i = 0; i < w.down_kernel; i++)
                    copy_row(&w, image, n % w.out_height * w.down - w.above + i * w.dilate_down, copies + i * length,
                             length);
                for (long line = 0; line < filters; line += LINE)
                    for (long i = 0; i < w.down_kernel; i++)
                        for (long f = line; f < MIN(line + LINE, filters); f += high)
                            any_tile(MIN(MIN(line + LINE, filters) - f, high), vectors, share + f, filters,
                                     copies + i * length, step, w.out_width, own + i * of_row + f * vectors * WIDTH,
                                     next && !i && f == line ? next + f : 0);
            }
        }
        _Pragma("omp barrier");
        SHARED(of_filters, f, 1)
            for (long i = 0; i < w.down_kernel; i++)
                for (long k = 0; k < span; k++) {
                    const float *of = sums + i * of_row + f * vectors * WIDTH + k;
                    float sum = of[0];
                    for (long slab = 1; slab < slabs; slab++) sum += of[slab * of_slab];
                    gweight[f * steps[0] + k % w.channels * steps[1] + i * steps[2] + k / w.channels * steps[3]] = sum;
                }
    }
}
