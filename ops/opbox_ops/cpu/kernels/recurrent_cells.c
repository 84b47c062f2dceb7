/* A step of the recurrent cells; `cells` says what is computed. */

#include "loops.h"
#include "numpy_loop.h"
#include "transpose.h"

/* A thread takes so many UNITS of the state at a time; up to ALONE numbers of a state are one thread's. */
enum { UNITS = 16, ALONE = 1 << 11 };
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define IVDEP _Pragma("GCC ivdep")

/* Sizes of a step: numbers between rows of x, between the states of two samples, of `before` between two units and two
   samples, and of gstate between two samples where its units lie together; 0 where its samples do. */
typedef struct {
    long hidden, batch, x_row, state_row, before_unit, before_sample, gstate_row;
} Step;

/* What a piece of a gate's or a state's matrix is: `rows` from unit `unit` on, `count` numbers from `at` on. */
typedef struct {
    long unit, rows, at, count;
} Piece;

static inline Piece piece_of(const Step *s, long block)
{
    const long unit = block * UNITS, rows = MIN(UNITS, s->hidden - unit);
    return (Piece){unit, rows, unit * s->batch, rows * s->batch};
}

/* A loop over the pieces in threads, of a step of `sizes`. */
#define EACH_BLOCK                                                   \
    const Step s = *sizes;                                           \
    const long of_gate = s.hidden * s.batch;                         \
    const int threads = of_gate > ALONE ? omp_get_max_threads() : 1; \
    IN_THREADS(block, (s.hidden + UNITS - 1) / UNITS, 1)

static void apply(const Loop *loop, float *x, long count)
{
    char *at[] = {(char *)x, (char *)x};
    const long by[] = {sizeof(float), sizeof(float)};
    loop->function(at, &count, by, loop->data);
}

/* to = product + x, for the piece of a gate. */
static void sum(const Step *s, Piece p, long gate, const float *product, const float *x, float *to)
{
    const long batch = s->batch, row = s->x_row;
    x += (gate * s->hidden + p.unit) * row;
    for (long r = 0; r < p.rows; r++, x += row, product += batch, to += batch)
        IVDEP for (long j = 0; j < batch; j++) to[j] = product[j] + x[j];
}

static void sigmoid(const Loop *tanh, float *x, long count)
{
    apply(tanh, x, count); /* of half of what it is the sigmoid of */
    for (long k = 0; k < count; k++) x[k] = x[k] * 0.5f + 0.5f;
}

/* The piece of `before`, to lie as the others do. */
static void lay_before(const Step *s, Piece p, const float *before, float *to)
{
    const long batch = s->batch, unit = s->before_unit, sample = s->before_sample;
    before += p.unit * unit;
    for (long r = 0; r < p.rows; r++, before += unit, to += batch)
        if (sample == 1) IVDEP for (long j = 0; j < batch; j++) to[j] = before[j];
        else IVDEP for (long j = 0; j < batch; j++) to[j] = before[j * sample];
}

static void write_state(const Step *s, Piece p, const float *from, float *state)
{
    const long batch = s->batch, row = s->state_row;
    state += p.unit;
    for (long j = 0; j < batch; j++, state += row)
        IVDEP for (long r = 0; r < p.rows; r++) state[r] = from[r * batch + j];
}

void opbox_lstm_step(const float *product, const float *x, float *gates, const float *before, float *cell,
                     float *scratch, float *state, const Step *sizes, const Loop *tanh)
{
    EACH_BLOCK
    {
        const Piece p = piece_of(&s, block);
        float *gate[4], *c = cell + p.at, *t = scratch + p.at;
        for (int g = 0; g < 4; g++) {
            gate[g] = gates + g * of_gate + p.at;
            sum(&s, p, g, product + g * of_gate + p.at, x, gate[g]);
            if (g == 2) apply(tanh, gate[g], p.count);
            else sigmoid(tanh, gate[g], p.count);
        }
        lay_before(&s, p, before, t);
        const float *in = gate[0], *kept = gate[1], *new = gate[2], *out = gate[3];
        IVDEP for (long k = 0; k < p.count; k++) t[k] = c[k] = kept[k] * t[k] + in[k] * new[k];
        apply(tanh, t, p.count);
        IVDEP for (long k = 0; k < p.count; k++) t[k] = out[k] * t[k];
        write_state(&s, p, t, state);
    }
}

void opbox_gru_step(const float *product, const float *x, float *gates, const float *before, float *again,
                    float *scratch, float *state, const Step *sizes, const Loop *tanh, const float *bias)
{
    EACH_BLOCK
    {
        const Piece p = piece_of(&s, block);
        float *gate[3], *q = again + p.at, *t = scratch + p.at;
        for (int g = 0; g < 3; g++) gate[g] = gates + g * of_gate + p.at;
        for (int g = 0; g < 2; g++) {
            sum(&s, p, g, product + g * of_gate + p.at, x, gate[g]);
            sigmoid(tanh, gate[g], p.count);
        }
        const float *of_new = product + 2 * of_gate + p.at, *reset = gate[0], *update = gate[1], *new = gate[2];
        const long batch = s.batch;
        for (long r = 0; r < p.rows; r++) {
            const float more = bias[p.unit + r];
            IVDEP for (long k = r * batch; k < (r + 1) * batch; k++)
            {
                q[k] = of_new[k] + more;
                t[k] = reset[k] * q[k];
            }
        }
        sum(&s, p, 2, t, x, gate[2]);
        apply(tanh, gate[2], p.count);
        lay_before(&s, p, before, t);
        IVDEP for (long k = 0; k < p.count; k++) t[k] = new[k] + (t[k] - new[k]) * update[k];
        write_state(&s, p, t, state);
    }
}

void opbox_rnn_step(const float *product, const float *x, float *gates, float *state, const Step *sizes,
                    const Loop *tanh)
{
    EACH_BLOCK
    {
        const Piece p = piece_of(&s, block);
        float *gate = gates + p.at;
        sum(&s, p, 0, product + p.at, x, gate);
        if (tanh) apply(tanh, gate, p.count);
        else
            for (long k = 0; k < p.count; k++) gate[k] = gate[k] <= 0 ? 0 : gate[k]; /* NaN stays NaN */
        write_state(&s, p, gate, state);
    }
}

/* The piece of gstate as the others lie: itself, or what is written to `scratch`. */
static const float *contiguous_gstate(const Step *s, Piece p, const float *gstate, float *scratch)
{
    const long batch = s->batch, row = s->gstate_row, transposed = batch / 8 * 8, whole = p.rows / 8 * 8;
    if (!row) return gstate + p.at;
    const float *from = gstate + p.unit;
    for (long j = 0; j < transposed; j += 8)
        for (long r = 0; r < whole; r += 8) turn(from + j * row + r, row, scratch + r * batch + j, batch);
    for (long r = 0; r < p.rows; r++)
        for (long j = r < whole ? transposed : 0; j < batch; j++) scratch[r * batch + j] = from[j * row + r];
    return scratch;
}

/* total = the gradient of a step's state (samples state_row apart) + gstate, and `passed`, unless it is NULL; for a
   piece. */
static void add_up(const Step *s, Piece p, const float *gout, const float *gstate, const float *passed, float *total)
{
    const long batch = s->batch, row = s->state_row;
    const float *from = contiguous_gstate(s, p, gstate, total);
    if (passed) IVDEP for (long k = 0; k < p.count; k++) total[k] = from[k] + passed[p.at + k];
    if (passed) from = total;
    gout += p.unit;
    for (long r = 0; r < p.rows; r++, from += batch, total += batch)
        IVDEP for (long j = 0; j < batch; j++) total[j] = gout[j * row + r] + from[j];
}

/* Rows of a gate's piece to the gates' gradients of all steps, whose rows are x_row apart. */
static void spread(const Step *s, Piece p, long gate, const float *from, float *to)
{
    const long batch = s->batch, row = s->x_row;
    to += (gate * s->hidden + p.unit) * row;
    for (long r = 0; r < p.rows; r++, from += batch, to += row) IVDEP for (long j = 0; j < batch; j++) to[j] = from[j];
}

/* factors: the gradients of the four gates, which go to ggates too; gcell for the step before. scratch and past are
   worked in. */
void opbox_lstm_back_step(const float *gout, const float *gstate, float *total, float *scratch, float *past,
                          float *gcell, float *factors, const float *gates, const float *cell, const float *before,
                          float *ggates, const Step *sizes, const Loop *tanh)
{
    EACH_BLOCK
    {
        const Piece p = piece_of(&s, block);
        const float *i = gates + p.at, *f = i + of_gate, *n = f + of_gate, *o = n + of_gate, *c = cell + p.at;
        float *all = total + p.at, *t = scratch + p.at, *last = past + p.at, *g = gcell + p.at;
        float *of_i = factors + p.at, *of_f = of_i + of_gate, *of_n = of_f + of_gate, *of_o = of_n + of_gate;
        add_up(&s, p, gout, gstate, 0, all);
        lay_before(&s, p, before, last);
        IVDEP for (long k = 0; k < p.count; k++) t[k] = c[k];
        apply(tanh, t, p.count);
        IVDEP for (long k = 0; k < p.count; k++)
        {
            const float sum = g[k] + (1 - t[k] * t[k]) * o[k] * all[k];
            of_i[k] = (1 - i[k]) * i[k] * n[k] * sum;
            of_f[k] = (1 - f[k]) * f[k] * last[k] * sum;
            of_n[k] = (1 - n[k] * n[k]) * i[k] * sum;
            of_o[k] = (1 - o[k]) * o[k] * t[k] * all[k];
            g[k] = sum * f[k];
        }
        for (int gate = 0; gate < 4; gate++) spread(&s, p, gate, factors + gate * of_gate + p.at, ggates);
    }
}

/* factors: of the gates r and z, and of what r multiplies; the gates' gradients go to ggates, and that to gagain, too.
   through: the gradient of the state before that does not go through the gates; `passed`: the same of the step behind,
   which may be where through is, or NULL. scratch and past are worked in. */
void opbox_gru_back_step(const float *gout, const float *gstate, float *total, float *scratch, float *past,
                         float *through, float *factors, const float *gates, const float *again, const float *before,
                         float *ggates, float *gagain, const Step *sizes, const float *passed)
{
    EACH_BLOCK
    {
        const Piece p = piece_of(&s, block);
        const float *reset = gates + p.at, *update = reset + of_gate, *new = update + of_gate, *q = again + p.at;
        float *all = total + p.at, *of_n = scratch + p.at, *last = past + p.at, *by = through + p.at;
        float *of_r = factors + p.at, *of_z = of_r + of_gate, *of_q = of_z + of_gate;
        add_up(&s, p, gout, gstate, passed, all);
        lay_before(&s, p, before, last);
        IVDEP for (long k = 0; k < p.count; k++)
        {
            const float left = 1 - update[k], slope = (1 - new[k] * new[k]) * left * all[k];
            by[k] = all[k] * update[k];
            of_n[k] = slope;
            of_z[k] = left * update[k] * (last[k] - new[k]) * all[k];
            of_r[k] = (1 - reset[k]) * reset[k] * q[k] * slope;
            of_q[k] = slope * reset[k];
        }
        for (int gate = 0; gate < 2; gate++) spread(&s, p, gate, factors + gate * of_gate + p.at, ggates);
        spread(&s, p, 2, of_n, ggates);
        spread(&s, p, 0, of_q, gagain);
    }
}
