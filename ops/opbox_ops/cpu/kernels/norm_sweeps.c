/* Batch normalisation with ReLU; `norm_sweeps` says what is computed. */

#include "loops.h"

#ifdef __AVX__
#include <immintrin.h>
#endif
#define EACH(j) _Pragma("GCC ivdep") for (long j = 0; j < channels; j++)
#define COUNT_OF_BLOCKS ((positions + rows - 1) / rows)
#define BLOCKS(b) for (long b = 0; b < COUNT_OF_BLOCKS; b++)
#define COUNT(b) (positions - (b) * rows < rows ? positions - (b) * rows : rows)

/* Sums of a few vectors of channels stay in registers. */
#ifdef __AVX512F__
#define WIDTH 16
#define PASS(p, v) _mm512_stream_ps(p, (__m512)(v))
#else
#define WIDTH 8
#ifdef __AVX__
#define PASS(p, v) _mm256_stream_ps(p, (__m256)(v))
#endif
#endif
#define TILE 4

/* A LARGE array is written past the caches, which would read it from memory first, and lose what else they have. */
#define LARGE (3 << 20)
#ifdef PASS
#define GOES_PAST(to) (positions * channels >= LARGE && channels % WIDTH == 0 && (long)(to) % (4 * WIDTH) == 0)
#define SETTLE _mm_sfence() /* before other threads read it */
#else
#define PASS(p, v) (LOAD(p, 0) = (v))
#define GOES_PAST(to) 0
#define SETTLE
#endif
typedef float Lanes __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int Masks __attribute__((vector_size(4 * WIDTH)));
#define LANES(k) _Pragma("GCC unroll 4") for (int k = 0; k < TILE; k++)
#define LOAD(p, k) (*(Lanes *)((p) + WIDTH * (k)))
#define ONE ((Lanes){0} + 1.0f)
#define VECTORS(j) for (long j = 0; j < channels; j += WIDTH)
#define AT(p) LOAD((p) + j, 0)
#define GROUP 8
#define GROUPS(from, to, n) for (long from = 0, to; to = from + GROUP < (n) ? from + GROUP : (n), from < (n); from = to)
#define TILES(j, n) for (long j = 0; j + TILE * WIDTH <= (n); j += TILE * WIDTH)
#define REST(j, n) for (long j = (n) / (TILE * WIDTH) * (TILE * WIDTH); j < (n); j++)

static void add_rows(const float *x, const float *mean, float *sums, long count, long channels)
{
    GROUPS(from, to, count) {
        TILES(j, channels) {
            Lanes sum[TILE], middle[TILE];
            LANES(k) {
                sum[k] = LOAD(sums + j, k);
                middle[k] = mean ? LOAD(mean + j, k) : (Lanes){0};
            }
            if (mean)
                for (long i = from; i < to; i++)
                    LANES(k) {
                        const Lanes d = LOAD(x + i * channels + j, k) - middle[k];
                        sum[k] += d * d;
                    }
            else
                for (long i = from; i < to; i++)
                    LANES(k) sum[k] += LOAD(x + i * channels + j, k);
            LANES(k) LOAD(sums + j, k) = sum[k];
        }
        REST(j, channels) {
            float sum = sums[j];
            for (long i = from; i < to; i++) {
                const float d = mean ? x[i * channels + j] - mean[j] : x[i * channels + j];
                sum += mean ? d * d : d;
            }
            sums[j] = sum;
        }
    }
}

static void statistics(const float *x, float *partial, double *sums, float *mean, float *variance, long positions,
                       long channels, long rows)
{
    const int threads = omp_get_max_threads();
    IN_THREADS(b, COUNT_OF_BLOCKS, 1) {
        const long count = COUNT(b);
        const float *block = x + b * rows * channels, number = count;
        float *middle = partial + 2 * b * channels, *square = middle + channels;
        EACH(j) middle[j] = square[j] = 0;
        add_rows(block, 0, middle, count, channels);
        EACH(j) middle[j] = middle[j] / number;
        add_rows(block, middle, square, count, channels);
    }
    double *squares = sums + channels;
    EACH(j) sums[j] = squares[j] = 0;
    BLOCKS(b) {
        const float *middle = partial + 2 * b * channels;
        const double count = COUNT(b);
        EACH(j) sums[j] += middle[j] * count;
    }
    EACH(j) sums[j] = sums[j] / positions;
    BLOCKS(b) {
        const float *middle = partial + 2 * b * channels, *square = middle + channels;
        const double count = COUNT(b);
        EACH(j) {
            const double d = middle[j] - sums[j];
            squares[j] += square[j] + d * d * count;
        }
    }
    EACH(j) {
        mean[j] = sums[j];
        variance[j] = squares[j] / positions;
    }
}

static void normalize(const float *x, float *y, const float *mean, const float *scale, const float *shift,
                      long positions, long channels, long rows)
{
    const int past = GOES_PAST(y) && y != x;
    const int threads = omp_get_max_threads();
    IN_THREADS(b, COUNT_OF_BLOCKS, 1) {
        for (long i = b * rows; i < b * rows + COUNT(b); i++) {
            const float *from = x + i * channels;
            float *to = y + i * channels;
            if (past)
                VECTORS(j) {
                    const Lanes v = (AT(from) - AT(mean)) * AT(scale) + AT(shift);
                    PASS(to + j, (Lanes)((Masks)v & ~(v <= 0)));
                }
            else
                EACH(j) {
                    const float v = (from[j] - mean[j]) * scale[j] + shift[j];
                    to[j] = v <= 0 ? 0.0f : v;
                }
        }
        if (past) SETTLE;
    }
}

static void sums(const float *x, const float *g, float *partial, const float *mean, const float *scale,
                 const float *shift, double *totals, float *gbeta, float *ggamma, long positions, long channels,
                 long rows)
{
    const int threads = omp_get_max_threads();
    IN_THREADS(b, COUNT_OF_BLOCKS, 1) {
        const float *from = x + b * rows * channels, *of = g + b * rows * channels;
        float *sums = partial + 2 * b * channels, *products = sums + channels;
        EACH(j) sums[j] = products[j] = 0;
        GROUPS(first, last, COUNT(b)) {
            TILES(j, channels) {
                Lanes sum[TILE], product[TILE];
                LANES(k) {
                    sum[k] = LOAD(sums + j, k);
                    product[k] = LOAD(products + j, k);
                }
                for (long i = first; i < last; i++)
                    LANES(k) {
                        const Lanes c = LOAD(from + i * channels + j, k) - LOAD(mean + j, k);
                        const Lanes v = c * LOAD(scale + j, k) + LOAD(shift + j, k);
                        const Lanes m = LOAD(of + i * channels + j, k) * (Lanes)((v > 0) & (Masks)ONE);
                        sum[k] += m;
                        product[k] += c * m;
                    }
                LANES(k) {
                    LOAD(sums + j, k) = sum[k];
                    LOAD(products + j, k) = product[k];
                }
            }
            REST(j, channels)
                for (long i = first; i < last; i++) {
                    const float c = from[i * channels + j] - mean[j], v = c * scale[j] + shift[j];
                    const float m = of[i * channels + j] * (v > 0 ? 1.0f : 0.0f);
                    sums[j] += m;
                    products[j] += c * m;
                }
        }
    }
    double *products = totals + channels;
    EACH(j) totals[j] = products[j] = 0;
    BLOCKS(b) {
        const float *sum = partial + 2 * b * channels, *product = sum + channels;
        EACH(j) {
            totals[j] += sum[j];
            products[j] += product[j];
        }
    }
    EACH(j) {
        gbeta[j] = totals[j];
        ggamma[j] = products[j];
    }
}

static void gradient(const float *x, const float *g, const float *addend, float *gx, const float *mean,
                     const float *scale, const float *shift, const float *share, const float *less, int of_batch,
                     long positions, long channels, long rows)
{
#define VALUES const float c = from[j] - mean[j], v = c * scale[j] + shift[j], m = of[j] * (v > 0 ? 1.0f : 0.0f)
#define OF_BATCH (c * share[j] + m - less[j]) * scale[j]
#define OF_ALL (m) * share[j]
    const int past = GOES_PAST(gx) && gx != x && gx != g && gx != addend;
    const int threads = omp_get_max_threads();
    IN_THREADS(b, COUNT_OF_BLOCKS, 1) {
        for (long i = b * rows; i < b * rows + COUNT(b); i++) {
            const float *from = x + i * channels, *of = g + i * channels, *more = addend ? addend + i * channels : 0;
            float *to = gx + i * channels;
            if (past)
                VECTORS(j) {
                    const Lanes c = AT(from) - AT(mean), v = c * AT(scale) + AT(shift);
                    const Lanes m = AT(of) * (Lanes)((v > 0) & (Masks)ONE);
                    Lanes sum = of_batch ? (c * AT(share) + m - AT(less)) * AT(scale) : m * AT(share);
                    if (addend) sum += AT(more);
                    PASS(to + j, sum);
                }
            else if (of_batch && addend)
                EACH(j) {
                    VALUES;
                    to[j] = OF_BATCH + more[j];
                }
            else if (of_batch)
                EACH(j) {
                    VALUES;
                    to[j] = OF_BATCH;
                }
            else if (addend)
                EACH(j) {
                    VALUES;
                    to[j] = OF_ALL + more[j];
                }
            else
                EACH(j) {
                    VALUES;
                    to[j] = OF_ALL;
                }
        }
        if (past) SETTLE;
    }
}

typedef struct {
    long positions, channels, rows;
    int fixes_gamma;
    float eps, momentum, rest;
} Norm;

void opbox_norm_forward(const float *x, float *y, const float *gamma, const float *beta, const float *moving_mean,
                        const float *moving_var, float *mean, float *inverse, float *variance, float *scale,
                        float *partial, double *totals, const Norm *norm, int of_batch)
{
    const long positions = norm->positions, channels = norm->channels, rows = norm->rows;
    if (of_batch) statistics(x, partial, totals, mean, variance, positions, channels, rows);
    else
        EACH(j) {
            mean[j] = moving_mean[j];
            variance[j] = moving_var[j];
        }
    EACH(j) inverse[j] = 1 / __builtin_sqrtf(variance[j] + norm->eps);
    EACH(j) scale[j] = norm->fixes_gamma ? inverse[j] : inverse[j] * gamma[j];
    normalize(x, y, mean, scale, beta, positions, channels, rows);
}

/* gx, out_gamma, out_beta and addend may be NULL. */
void opbox_norm_backward(const float *x, const float *g, const float *addend, float *gx, float *out_gamma,
                         float *out_beta, const float *gamma, const float *beta, float *moving_mean, float *moving_var,
                         const float *mean, const float *inverse, float *scale, float *ggamma, float *gbeta,
                         float *share, float *less, float *partial, double *totals, const Norm *norm, int of_batch)
{
    const long positions = norm->positions, channels = norm->channels, rows = norm->rows;
    const float one_less = -1.0 / positions, one_more = 1.0 / positions;
    EACH(j) scale[j] = norm->fixes_gamma ? inverse[j] : inverse[j] * gamma[j];
    sums(x, g, partial, mean, scale, beta, totals, gbeta, ggamma, positions, channels, rows);
    if (of_batch)
        EACH(j) {
            ggamma[j] = ggamma[j] * inverse[j];
            share[j] = ggamma[j] * inverse[j] * one_less;
            less[j] = gbeta[j] * one_more;
        }
    else
        EACH(j) {
            /* Forward may have trained: the gradient is by the moving statistics, the ReLU by forward's. */
            const float moving = 1 / __builtin_sqrtf(moving_var[j] + norm->eps);
            if (mean[j] != moving_mean[j]) ggamma[j] = ggamma[j] + (mean[j] - moving_mean[j]) * gbeta[j];
            ggamma[j] = ggamma[j] * moving;
            share[j] = norm->fixes_gamma ? moving : moving * gamma[j];
        }
    if (gx) gradient(x, g, addend, gx, mean, scale, beta, share, less, of_batch, positions, channels, rows);
    if (out_gamma)
        EACH(j) out_gamma[j] = norm->fixes_gamma ? 0 : ggamma[j];
    if (out_beta)
        EACH(j) out_beta[j] = gbeta[j];
    if (of_batch)
        EACH(j) {
            const float variance = 1 / (inverse[j] * inverse[j]) - norm->eps;
            moving_mean[j] = moving_mean[j] * norm->momentum + mean[j] * norm->rest;
            moving_var[j] = moving_var[j] * norm->momentum + variance * norm->rest;
        }
}
