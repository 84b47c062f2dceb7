/* LayerNorm by rows; `layer_norm_rows` says what is computed. Sums of BLOCK rows are added up by themselves. */

#include "loops.h"
#include "vectors.h"

/* A thread takes SOME rows at a time, or a BLOCK, or SOME vectors of the sums of blocks. SUMS vectors of a sum are
   added up side by side. Work of up to ALONE numbers is one thread's. */
enum { SOME = 8, SUMS = 4, ALONE = 1 << 15 };
#define MIN(x, y) ((x) < (y) ? (x) : (y))

/* Loops over the whole vectors of a row of n numbers, and over the rest of it. */
#define WHOLE(j, n) for (long j = 0; j + WIDTH <= (n); j += WIDTH)
#define REST(j, n) for (long j = (n) / WIDTH * WIDTH; j < (n); j++)

static inline float sum_of(const Lanes sums[SUMS])
{
    float numbers[WIDTH];
    STORE(numbers, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (int i = WIDTH / 2; i > 0; i /= 2)
        for (int j = 0; j < i; j++) numbers[j] += numbers[j + i];
    return numbers[0];
}

/* total = the sum over a row of n numbers, whose term at j is `vector`, and `number` in the rest. */
#define ADD_UP(total, n, vector, number)                                                                 \
    do {                                                                                                 \
        Lanes sums[SUMS] = {ALL(0), ALL(0), ALL(0), ALL(0)};                                             \
        long begin = 0;                                                                                  \
        for (; begin + SUMS * WIDTH <= (n); begin += SUMS * WIDTH) UNROLL for (int v = 0; v < SUMS; v++) \
            {                                                                                            \
                const long j = begin + v * WIDTH;                                                        \
                sums[v] += (vector);                                                                     \
            }                                                                                            \
        for (long j = begin; j + WIDTH <= (n); j += WIDTH) sums[0] += (vector);                          \
        total = sum_of(sums);                                                                            \
        REST(j, n) total += (number);                                                                    \
    } while (0)

typedef struct {
    float mean, std;
} Statistics;

static inline Statistics statistics(const float *x, long n, float eps)
{
    float sum, squares;
    ADD_UP(sum, n, LOAD(x + j), x[j]);
    const float mean = sum / n;
    const Lanes middle = ALL(mean);
    ADD_UP(squares, n, (LOAD(x + j) - middle) * (LOAD(x + j) - middle), (x[j] - mean) * (x[j] - mean));
    return (Statistics){mean, __builtin_sqrtf(squares / n + eps)};
}

/* out = (x - mean) / std gamma + beta, and mean and std, for rows of n numbers; what is written may be NULL. */
void opbox_layer_norm(const float *x, const float *gamma, const float *beta, float *out, float *means, float *stds,
                      long rows, long n, float eps)
{
    const int threads = rows * n > ALONE ? omp_get_max_threads() : 1;
    IN_THREADS(r, rows, SOME) {
        const float *from = x + r * n;
        float *to = out + r * n;
        const Statistics s = statistics(from, n, eps);
        const Lanes mean = ALL(s.mean), std = ALL(s.std);
        if (out) {
            WHOLE(j, n) STORE(to + j, (LOAD(from + j) - mean) / std * LOAD(gamma + j) + LOAD(beta + j));
            REST(j, n) to[j] = (from[j] - s.mean) / s.std * gamma[j] + beta[j];
        }
        if (means) means[r] = s.mean;
        if (stds) stds[r] = s.std;
    }
}

/* The gradients of one row, gx; those of gamma and beta are added to sums (2, n). Either may be NULL. */
static void gradients_of_row(const float *gout, const float *x, const float *gamma, float *gx, float *sums, long n,
                             float eps)
{
    const Statistics s = statistics(x, n, eps);
    const Lanes mean = ALL(s.mean), std = ALL(s.std);
    if (sums) {
        WHOLE(j, n) {
            const Lanes g = LOAD(gout + j);
            STORE(sums + j, LOAD(sums + j) + g * ((LOAD(x + j) - mean) / std));
            STORE(sums + n + j, LOAD(sums + n + j) + g);
        }
        REST(j, n) {
            sums[j] += gout[j] * ((x[j] - s.mean) / s.std);
            sums[n + j] += gout[j];
        }
    }
    if (!gx) return;
    float all, along;
    ADD_UP(all, n, LOAD(gout + j) * LOAD(gamma + j), gout[j] * gamma[j]);
    ADD_UP(along, n, LOAD(gout + j) * LOAD(gamma + j) * ((LOAD(x + j) - mean) / std),
           gout[j] * gamma[j] * ((x[j] - s.mean) / s.std));
    all /= n;
    along /= n;
    WHOLE(j, n) {
        const Lanes g = LOAD(gout + j) * LOAD(gamma + j), y = (LOAD(x + j) - mean) / std;
        STORE(gx + j, (g - ALL(all) - y * ALL(along)) / std);
    }
    REST(j, n) gx[j] = (gout[j] * gamma[j] - all - (x[j] - s.mean) / s.std * along) / s.std;
}

/* The gradients of x, gamma and beta, NULL where they are not wanted; scratch: (blocks, 2, n), NULL where the last two
   are not. */
void opbox_layer_norm_gradient(const float *gout, const float *x, const float *gamma, float *gx, float *ggamma,
                               float *gbeta, float *scratch, long rows, long n, float eps)
{
    const int threads = rows * n > ALONE ? omp_get_max_threads() : 1;
    const long blocks = (rows + BLOCK - 1) / BLOCK;
    {
        IN_THREADS(b, blocks, 1) {
            float *sums = scratch ? scratch + b * 2 * n : 0;
            for (long j = 0; sums && j < 2 * n; j++) sums[j] = 0;
            for (long r = b * BLOCK; r < MIN(rows, (b + 1) * BLOCK); r++)
                gradients_of_row(gout + r * n, x + r * n, gamma, gx ? gx + r * n : 0, sums, n, eps);
        }
    }
    if (!scratch) return;
    IN_THREADS(c, (n + WIDTH - 1) / WIDTH, SOME)
        for (int k = 0; k < 2; k++) {
            float *to = k ? gbeta : ggamma;
            for (long j = c * WIDTH; to && j < MIN(n, (c + 1) * WIDTH); j++) {
                float sum = 0;
                for (long b = 0; b < blocks; b++) sum += scratch[(b * 2 + k) * n + j];
                to[j] = sum;
            }
        }
}
