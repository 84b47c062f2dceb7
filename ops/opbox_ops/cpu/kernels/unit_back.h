/* The gradients of steps of recurrent cells by a processor's matrix unit.

   As forward (unit_steps.h): all steps of a call are one region, and a thread takes a block of units of some samples.
   The gradient of a step's state is the recurrent weight transposed, of which a strip has the rows of these units,
   by the gradients of all gates of the step behind, a step of terms for each block of a gate. */
#pragma once

#include "unit_pieces.h"

/* Arrays of a layer's direction:
   packed       the strips of the recurrent weight transposed, and whether they are split by cuts
   gates        of each step; extra: lstm's cells, or gru's products within the reset; states: of each step
   first        the state before all steps; first_cell: lstm's cell
   gout         the gradients of the states, but for what the steps behind have
   gstate       (batch, hidden), what those have, which becomes the gradient of the state before
   gcell        the same of lstm's cell
   ggates       the gradients of the gates, and gagain of gru's products within the reset, of all steps, samples side by
                side
   scratch      two steps' gradients in parts; of samples, whether they are split by cuts; a state's gradient */
typedef struct {
    const uint32_t *packed;
    float *gates, *extra;
    const float *states, *first, *first_cell, *gout;
    float *gstate, *gcell, *ggates, *gagain;
    uint32_t *scratch;
} Gradients;

/* Pairs of a step's gradients that stay in the second cache beside a thread's share of the weight. Of more a thread
   takes all units of some samples, and not all samples of some units. */
enum { MAX_STATE_NUMBERS = 1 << 18 };

static void back_lstm(const Steps *s, const Piece *p, const Gradients *a, UnitScratch *own, long t, long past,
                      const Loop *tanh)
{
    const float *gates = of_step(a->gates, s, t, 4 * s->hidden), *cell = of_step(a->extra, s, t, s->hidden);
    const float *before = past >= 0 && past < s->time ? of_step(a->extra, s, past, s->hidden) : a->first_cell;
    const long of_gate = s->hidden * s->batch;
    EACH_VECTOR(r, v) STORE(AT(own->state, r, v), LOAD_PART(IN_STEP(cell, r, v), p->parts[v]));
    apply(tanh, own->state[0], p->rows * BLOCK);
    EACH_VECTOR(r, v) {
        Lanes gate[4];
    UNROLL for (int g = 0; g < 4; g++) gate[g] = LOAD_PART(IN_STEP(gates + g * of_gate, r, v), p->parts[v]);
        const Lanes in = gate[0], keep = gate[1], new = gate[2], out = gate[3], one = ALL(1);
        const Lanes all = LOAD(AT(own->total, r, v)), x = LOAD(AT(own->state, r, v));
        const Lanes last = LOAD_PART(IN_STEP(before, r, v), p->parts[v]);
        const Lanes sum = LOAD_PART(IN_STEP(a->gcell, r, v), p->parts[v]) + (one - x * x) * out * all;
        STORE(AT(own->gates[0], r, v), KEPT(v, (one - in) * in * new * sum));
        STORE(AT(own->gates[1], r, v), KEPT(v, (one - keep) * keep * last * sum));
        STORE(AT(own->gates[2], r, v), KEPT(v, (one - new * new) * in * sum));
        STORE(AT(own->gates[3], r, v), KEPT(v, (one - out) * out * x * all));
        STORE_PART(IN_STEP(a->gcell, r, v), p->parts[v], sum * keep);
    }
}

/* What reset multiplies has its gradient in the fourth place; `by` is what passes the gates by. */
static void back_gru(const Steps *s, const Piece *p, const Gradients *a, UnitScratch *own, long t, float *by)
{
    const float *gates = of_step(a->gates, s, t, 3 * s->hidden), *again = of_step(a->extra, s, t, s->hidden);
    const long of_gate = s->hidden * s->batch;
    EACH_VECTOR(r, v) {
        const Lanes reset = LOAD_PART(IN_STEP(gates, r, v), p->parts[v]);
        const Lanes update = LOAD_PART(IN_STEP(gates + of_gate, r, v), p->parts[v]);
        const Lanes new = LOAD_PART(IN_STEP(gates + 2 * of_gate, r, v), p->parts[v]);
        const Lanes product = LOAD_PART(IN_STEP(again, r, v), p->parts[v]), one = ALL(1);
        const Lanes all = LOAD(AT(own->total, r, v)), last = LOAD(AT(own->before, r, v)), left = one - update;
        const Lanes slope = (one - new * new) * left * all;
        STORE(by + r * BLOCK + v * SIDE, KEPT(v, all * update));
        STORE(AT(own->gates[0], r, v), KEPT(v, (one - reset) * reset * product * slope));
        STORE(AT(own->gates[1], r, v), KEPT(v, left * update * (last - new) * all));
        STORE(AT(own->gates[2], r, v), KEPT(v, slope));
        STORE(AT(own->gates[3], r, v), KEPT(v, slope * reset));
    }
}

static void back_plain(const Steps *s, const Piece *p, const Gradients *a, UnitScratch *own, long t)
{
    const float *gates = of_step(a->gates, s, t, s->hidden);
    EACH_VECTOR(r, v) {
        const Lanes state = LOAD_PART(IN_STEP(gates, r, v), p->parts[v]);
        Lanes slope = ALL(1) - state * state;
        if (s->mode == RELU) slope = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(state, ALL(0), _CMP_GT_OQ), ALL(1));
        STORE(AT(own->gates[0], r, v), KEPT(v, slope * LOAD(AT(own->total, r, v))));
    }
}

static inline void store_gradient(const Steps *s, const Piece *p, const float from[BLOCK][BLOCK], float *to)
{
    EACH_VECTOR(r, v) STORE_PART(to + r * s->x_row + v * SIDE, p->parts[v], LOAD(AT(from, r, v)));
}

void opbox_unit_back(const Gradients *arrays, const Steps *steps, const Loop *tanh)
{
    const Steps s = *steps;
    const Gradients a = *arrays;
    const int gates = gates_of(&s);
    const long blocks = CEIL_DIV(s.hidden, BLOCK), panels = CEIL_DIV(s.batch, BLOCK), pieces = blocks * panels;
    const long terms = gates * blocks, of_strip = terms * PARTS * STRIP * SIDE, of_state = panels * terms * OF_STEP;
    const int by_panels = of_state > MAX_STATE_NUMBERS;
    const uint32_t *strip_cuts = a.packed + blocks * of_strip;
    uint32_t *cuts = a.scratch + 2 * of_state;
    float *passed = (float *)(cuts + panels);
    const int threads = MIN(omp_get_max_threads(), pieces);
    Share shares[(s.count + 1) * threads];
    for (long n = 0; n <= s.count; n++) GIVE(shares + n * threads, pieces);
    for (long p = 0; p < panels; p++) cuts[p] = 0;
    _Pragma("omp parallel num_threads(threads)")
    {
        UnitScratch own __attribute__((aligned(64)));
        Later nothing[2];
        const End end = {0};
        begin_pieces(&own, nothing);
        FLUSHED for (long n = 0; n <= s.count; n++) {
            if (n) {
                _Pragma("omp barrier");
            }
            const long t = s.first + n * s.by, past = t + s.by;
            const uint32_t *now = a.scratch + (n + 1) % 2 * of_state;
            uint32_t *next = a.scratch + n % 2 * of_state;
            SHARED(shares + n * threads, number, 1) {
                const long block = by_panels ? number % blocks : number / panels;
                const long panel = by_panels ? number / blocks : number % panels, sample = panel * BLOCK;
                const Piece p = piece_of(&s, block, panel, 0);
                float *by = passed + number * BLOCK * BLOCK;
                if (n == 0) lay_samples(&p, a.gstate + sample * s.hidden + p.unit, s.hidden, own.total);
                else {
                    const int joins = __atomic_load_n(cuts + panel, __ATOMIC_RELAXED) | strip_cuts[block];
                    split_tile(a.packed + block * of_strip, SIDE, p.rows, now + panel * terms * OF_STEP, p.columns,
                               s.mode == GRU ? by : 0, BLOCK, own.total[0], BLOCK, terms, &end, joins, nothing, by,
                               BLOCK);
                }
                if (n == s.count) {
                    write_samples(&p, own.total, a.gstate + sample * s.hidden + p.unit, s.hidden);
                    continue;
                }
                lay_samples(&p, a.gout + t * s.gout_step + sample * s.gout_row + p.unit, s.gout_row, own.before);
                for (long k = 0; k < p.rows * BLOCK; k += SIDE)
                    STORE(own.total[0] + k, LOAD(own.before[0] + k) + LOAD(own.total[0] + k));
                float *to = a.ggates + p.unit * s.x_row + t * s.batch + sample;
                if (s.mode == LSTM) back_lstm(&s, &p, &a, &own, t, past, tanh);
                else if (s.mode == GRU) {
                    const int within = past >= 0 && past < s.time;
                    const long row = within ? s.state_row : s.before_row;
                    lay_samples(&p, (within ? a.states + past * s.state_step : a.first) + sample * row + p.unit, row,
                                own.before);
                    back_gru(&s, &p, &a, &own, t, by);
                    store_gradient(&s, &p, own.gates[3], a.gagain + p.unit * s.x_row + t * s.batch + sample);
                } else back_plain(&s, &p, &a, &own, t);
                for (int g = 0; g < gates; g++) {
                    store_gradient(&s, &p, own.gates[g], to + g * s.hidden * s.x_row);
                    pass_on(&p, own.gates[s.mode == GRU && g == 2 ? 3 : g],
                            next + (panel * terms + g * blocks + block) * OF_STEP, cuts + panel);
                }
            }
        }
        LEAVE_TILES();
    }
}

/* The strips of a recurrent weight transposed, each with all gates' steps of terms, and behind them whether they are
   split by cuts. */
void opbox_unit_pack_back(const float *weight, uint32_t *packed, const Steps *steps)
{
    const long hidden = steps->hidden, blocks = CEIL_DIV(hidden, BLOCK), of_gate = blocks * PARTS * STRIP * SIDE;
    const int gates = gates_of(steps), threads = MIN(omp_get_max_threads(), blocks);
    uint32_t *cuts = packed + blocks * gates * of_gate;
    IN_THREADS(n, blocks, 1) FLUSHED
        for (int by_cuts = cuts[n] = 0; by_cuts < 2; by_cuts++) {
            for (int g = 0; g < gates; g++) {
                const Matrix units = {weight + g * hidden * hidden + n * BLOCK, hidden, hidden,
                                      MIN(hidden - n * BLOCK, BLOCK), 1, SIDE, 0, 0};
                cuts[n] |= split_tiles(&units, 0, 2, packed + (n * gates + g) * of_gate, by_cuts);
            }
            if (!cuts[n]) break;
        }
}
