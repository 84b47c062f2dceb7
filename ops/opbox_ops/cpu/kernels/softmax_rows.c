/* Softmax and its gradients by rows, of the type W, whose whole numbers are I; `row_kernels` says what is computed. */

#include "loops.h"
#include "numpy_loop.h"

enum { EXP, LOG, ADD };
/* A thread takes a block of rows at a time; of up to ALONE numbers, and of longer rows, one thread takes all. */
enum { LANES = 16, BLOCK = 4096, ALONE = 1 << 15 };

static void map(const Loop *loop, W *from, W *to, long n)
{
    char *at[] = {(char *)from, (char *)to};
    const long by[] = {sizeof(W), sizeof(W)};
    loop->function(at, &n, by, loop->data);
}

static W sum(const Loop *loops, const W *x, long n)
{
    W total = -(W)0;
    char *at[] = {(char *)&total, (char *)x, (char *)&total};
    const long by[] = {0, sizeof(W), 0};
    loops[ADD].function(at, &n, by, loops[ADD].data);
    return total;
}

typedef W Lanes __attribute__((vector_size(LANES * sizeof(W)), aligned(sizeof(W))));
typedef I Masks __attribute__((vector_size(LANES * sizeof(W))));

/* A row with NaN has a sum that is NaN, whatever its largest is said to be. */
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

static W largest(const W *x, W factor, long n)
{
    W top = x[0] * factor;
    long j = 0;
    if (n >= LANES) {
        Lanes lane = *(const Lanes *)x * factor;
        for (j = LANES; j + LANES <= n; j += LANES) {
            const Lanes v = *(const Lanes *)(x + j) * factor;
            const Masks larger = v > lane;
            lane = (Lanes)(((Masks)v & larger) | ((Masks)lane & ~larger));
        }
        for (int k = 0; k < LANES; ++k) top = LARGER(lane[k], top);
    }
    for (; j < n; ++j) {
        const W v = x[j] * factor;
        top = LARGER(v, top);
    }
    return top;
}

static long block_of(long rows, long n)
{
    const long most = BLOCK / n > 1 ? BLOCK / n : 1;
    return most < rows ? most : rows;
}

static int threads_of(long rows, long n) { return rows * n > ALONE && n <= BLOCK ? omp_get_max_threads() : 1; }

/* out = softmax(factor x), or its logarithm; out may be x. sums: a block's rows; powers: a block, for a logarithm. */
void opbox_softmax(const W *x, W *out, W *sums, W *powers, long rows, long n, double scale, int log, const Loop *loops)
{
    const long block = block_of(rows, n), blocks = (rows + block - 1) / block;
    const W factor = scale;
    const int threads = threads_of(rows, n);
    IN_THREADS(number, blocks, 1) {
        const long from = number * block, here = rows - from < block ? rows - from : block;
        W own_sums[BLOCK], own_powers[BLOCK], *total = threads > 1 ? own_sums : sums;
        W *y = out + from * n, *z = !log ? y : threads > 1 ? own_powers : powers;
        for (long i = 0; i < here; ++i) {
            const W *a = x + (from + i) * n;
            W *b = y + i * n;
            const W top = largest(a, factor, n);
            _Pragma("GCC ivdep") for (long j = 0; j < n; ++j) b[j] = a[j] * factor - top;
        }
        map(loops + EXP, y, z, here * n);
        for (long i = 0; i < here; ++i) total[i] = sum(loops, z + i * n, n);
        if (log) map(loops + LOG, total, total, here);
        for (long i = 0; i < here; ++i) {
            W *b = y + i * n;
            const W s = total[i];
            if (log)
                for (long j = 0; j < n; ++j) b[j] = b[j] - s;
            else
                for (long j = 0; j < n; ++j) b[j] = b[j] / s;
        }
    }
}

/* out = y (g - sum(g y)) factor, or of the logarithm (g - exp(y) sum g) factor; out may be g. scratch: a block. */
void opbox_softmax_gradient(const W *g, const W *y, W *out, W *scratch, long rows, long n, double scale, int log,
                            const Loop *loops)
{
    const long block = block_of(rows, n), blocks = (rows + block - 1) / block;
    const W factor = scale;
    const int threads = threads_of(rows, n);
    IN_THREADS(number, blocks, 1) {
        const long from = number * block, here = rows - from < block ? rows - from : block;
        W own[BLOCK], *place = threads > 1 ? own : scratch;
        if (log) map(loops + EXP, (W *)y + from * n, place, here * n);
        for (long i = 0; i < here; ++i) {
            const W *a = g + (from + i) * n, *b = y + (from + i) * n;
            W *to = out + (from + i) * n, *z = log ? place + i * n : place;
            if (!log)
                for (long j = 0; j < n; ++j) z[j] = a[j] * b[j];
            const W s = sum(loops, log ? a : z, n);
            _Pragma("GCC ivdep") for (long j = 0; j < n; ++j)
            {
                const W v = log ? a[j] - z[j] * s : (a[j] - s) * b[j];
                to[j] = v * factor;
            }
        }
    }
}

/* gdata of SoftmaxOutput for class numbers; gout may be NULL. valid: divide by the number of labels not ignored. */
void opbox_softmax_output(const W *label, const W *y, const W *gout, W *gdata, long rows, long n, long labels,
                          double scale, double spread, double one, int ignores, int valid, long ignored)
{
    if (valid) {
        long count = 0;
        for (long i = 0; i < labels; ++i) count += (long long)label[i] != ignored;
        scale = scale / (count > 1 ? (double)count : 1.0);
    }
    const W factor = scale, less = spread, hit = one;
    for (long i = 0; i < rows; ++i) {
        const long long number = (long long)label[i];
        const W *a = y + i * n;
        W *to = gdata + i * n;
        const int skip = ignores && number == ignored;
        for (long j = 0; j < n; ++j) to[j] = (skip ? (W)0 : a[j] - less) * factor;
        if (!skip && number >= 0 && number < n) to[number] = (a[number] - less - hit) * factor;
        if (gout)
            for (long j = 0; j < n; ++j) to[j] = to[j] * gout[i * n + j];
    }
}
