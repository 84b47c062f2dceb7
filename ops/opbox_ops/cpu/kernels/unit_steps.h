/* Steps of the recurrent cells by a processor's matrix unit.

   All steps of a call are one region of threads. A thread takes a block of units of some samples: the rows of all
   gates of these units, a strip of the packed weight each, by the state before, and all that is computed of them while
   they are in its cache. It writes the state's parts as the products of the next step read them, where a block of
   units is one step of terms: these alone go from one core to another. */
#pragma once

#include "unit_pieces.h"

/* Arrays of a layer's direction:
   packed       the recurrent weight's strips, gate by gate, and behind each gate's whether they are split by cuts
   x            products of the gates' weights with the inputs
   bias         what is added to those
   of_new       gru's bias within the reset
   before       the state before
   cell_before  lstm's cell before
   valid        of each sample whether it has a step, or NULL
   gates        of each step; extra: lstm's cells, or gru's products within the reset
   states       of each step
   scratch      two states in parts; of samples, whether they are split by cuts; a state */
typedef struct {
    const uint32_t *packed;
    const float *x, *bias, *of_new, *before, *cell_before;
    const uint8_t *valid;
    float *gates, *extra, *states;
    uint32_t *scratch;
} Arrays;

/* A gate's sums and its bias; half of them for a sigmoid, which is (1 + tanh(x / 2)) / 2. */
static inline void begin_gate(const Piece *p, float sums[BLOCK][BLOCK], const float *bias, int is_sigmoid)
{
    const Lanes factor = ALL(is_sigmoid ? 0.5f : 1);
    EACH_VECTOR(r, v) STORE(AT(sums, r, v), (LOAD(AT(sums, r, v)) + ALL(bias[p->unit + r])) * factor);
}

static inline Lanes sigmoid(float *tanh_of_half)
{
    const Lanes x = LOAD(tanh_of_half) * ALL(0.5f) + ALL(0.5f);
    STORE(tanh_of_half, x);
    return x;
}

/* The new state where a sample goes on, else the one before; zeros where there is no sample. */
static inline Lanes state_of(const Piece *p, int v, Lanes state, const float *before)
{
    return KEPT(v, _mm512_mask_mov_ps(LOAD(before), p->goes_on[v], state));
}

static void end_lstm(const Steps *s, const Piece *p, const Arrays *a, UnitScratch *own, const float *last, float *cell,
                     const float *kept, const Loop *tanh)
{
    for (int g = 0; g < 4; g++) begin_gate(p, own->gates[g], a->bias + g * s->hidden, g != 2);
    apply(tanh, own->gates[0][0], 4 * BLOCK * BLOCK);
    EACH_VECTOR(r, v) {
        const Lanes before = LOAD_PART(IN_STEP(kept, r, v), p->parts[v]);
        const Lanes in = sigmoid(AT(own->gates[0], r, v)), keep = sigmoid(AT(own->gates[1], r, v));
        const Lanes sum = keep * before + in * LOAD(AT(own->gates[2], r, v));
        sigmoid(AT(own->gates[3], r, v));
        const Lanes next = _mm512_mask_mov_ps(before, p->goes_on[v], sum);
        STORE(AT(own->state, r, v), next);
        STORE_PART(IN_STEP(cell, r, v), p->parts[v], next);
    }
    apply(tanh, own->state[0], p->rows * BLOCK);
    EACH_VECTOR(r, v) {
        const Lanes state = LOAD(AT(own->gates[3], r, v)) * LOAD(AT(own->state, r, v));
        STORE(AT(own->state, r, v), state_of(p, v, state, last + r * BLOCK + v * SIDE));
    }
}

static void end_gru(const Steps *s, const Piece *p, const Arrays *a, UnitScratch *own, const float *last, float *again,
                    const float *new_x, const Loop *tanh)
{
    for (int g = 0; g < 2; g++) begin_gate(p, own->gates[g], a->bias + g * s->hidden, 1);
    apply(tanh, own->gates[0][0], 2 * BLOCK * BLOCK);
    EACH_VECTOR(r, v) {
        const Lanes reset = sigmoid(AT(own->gates[0], r, v));
        const Lanes product = LOAD(AT(own->gates[2], r, v)) + ALL(a->of_new[p->unit + r]);
        const Lanes x = LOAD_PART(new_x + r * s->x_row + v * SIDE, p->parts[v]);
        sigmoid(AT(own->gates[1], r, v));
        STORE_PART(IN_STEP(again, r, v), p->parts[v], product);
        STORE(AT(own->gates[2], r, v), reset * product + (x + ALL(a->bias[2 * s->hidden + p->unit + r])));
    }
    apply(tanh, own->gates[2][0], p->rows * BLOCK);
    EACH_VECTOR(r, v) {
        const float *past = last + r * BLOCK + v * SIDE;
        const Lanes new = LOAD(AT(own->gates[2], r, v)), update = LOAD(AT(own->gates[1], r, v));
        STORE(AT(own->state, r, v), state_of(p, v, new + (LOAD(past) - new) * update, past));
    }
}

static void end_plain(const Steps *s, const Piece *p, const Arrays *a, UnitScratch *own, const float *last,
                      const Loop *tanh)
{
    begin_gate(p, own->gates[0], a->bias, 0);
    if (s->mode == TANH) apply(tanh, own->gates[0][0], p->rows * BLOCK);
    EACH_VECTOR(r, v) {
        const Lanes sum = LOAD(AT(own->gates[0], r, v)), state = s->mode == RELU ? RECTIFY(sum) : sum;
        STORE(AT(own->gates[0], r, v), state);
        STORE(AT(own->state, r, v), state_of(p, v, state, last + r * BLOCK + v * SIDE));
    }
}

void opbox_unit_steps(const Arrays *arrays, const Steps *steps, const Loop *tanh)
{
    const Steps s = *steps;
    const Arrays a = *arrays;
    const int gates = gates_of(&s);
    const long blocks = CEIL_DIV(s.hidden, BLOCK), panels = CEIL_DIV(s.batch, BLOCK), pieces = blocks * panels;
    const long of_strip = blocks * PARTS * STRIP * SIDE, of_gate = blocks * (of_strip + 1);
    const long of_state = pieces * OF_STEP;
    uint32_t *cuts = a.scratch + 2 * of_state;
    float *state = (float *)(cuts + panels);
    const int threads = MIN(omp_get_max_threads(), pieces);
    Share begin[threads], shares[s.count * threads];
    GIVE(begin, pieces);
    for (long n = 0; n < s.count; n++) GIVE(shares + n * threads, pieces);
    for (long p = 0; p < panels; p++) cuts[p] = 0;
    _Pragma("omp parallel num_threads(threads)")
    {
        UnitScratch own __attribute__((aligned(64)));
        Later nothing[2];
        const End end = {0};
        begin_pieces(&own, nothing);
        FLUSHED {
            SHARED(begin, number, 1) {
                const long block = number / panels, panel = number % panels;
                const Piece p = piece_of(&s, block, panel, 0);
                lay_samples(&p, a.before + panel * BLOCK * s.before_row + p.unit, s.before_row, own.state);
                for (long k = 0; k < p.rows * BLOCK; k += SIDE)
                    STORE(state + number * BLOCK * BLOCK + k, LOAD(own.state[0] + k));
                pass_on(&p, own.state, a.scratch + (panel * blocks + block) * OF_STEP, cuts + panel);
            }
            for (long n = 0; n < s.count; n++) {
                _Pragma("omp barrier");
                const long t = s.first + n * s.by;
                const uint32_t *now = a.scratch + n % 2 * of_state;
                uint32_t *next = a.scratch + (n + 1) % 2 * of_state;
                float *of_gates = of_step(a.gates, &s, t, gates * s.hidden), *extra = of_step(a.extra, &s, t, s.hidden);
                const float *cell = n ? of_step(a.extra, &s, t - s.by, s.hidden) : a.cell_before;
                SHARED(shares + n * threads, number, 1) {
                    const long block = number / panels, panel = number % panels;
                    const Piece p = piece_of(&s, block, panel, a.valid ? a.valid + t * s.batch : 0);
                    const float *x = a.x + (t - s.begin) * s.batch + p.unit * s.x_row + panel * BLOCK;
                    const int joins = __atomic_load_n(cuts + panel, __ATOMIC_RELAXED);
                    for (int g = 0; g < gates; g++) {
                        const uint32_t *packed = a.packed + g * of_gate;
                        const float *start = s.mode == GRU && g == 2 ? 0 : x + g * s.hidden * s.x_row;
                        const float *next_x = g < gates - 1 ? x + (g + 1) * s.hidden * s.x_row
                                                            : x + (panel < panels - 1 ? BLOCK : BLOCK * s.x_row);
                        split_tile(packed + block * of_strip, SIDE, p.rows, now + panel * blocks * OF_STEP, p.columns,
                                   start, s.x_row, own.gates[g][0], BLOCK, blocks, &end,
                                   joins | packed[blocks * of_strip + block], nothing, next_x, s.x_row);
                    }
                    float *last = state + number * BLOCK * BLOCK;
                    if (s.mode == LSTM) end_lstm(&s, &p, &a, &own, last, extra, cell, tanh);
                    else if (s.mode == GRU) end_gru(&s, &p, &a, &own, last, extra, x + 2 * s.hidden * s.x_row, tanh);
                    else end_plain(&s, &p, &a, &own, last, tanh);
                    for (long k = 0; k < p.rows * BLOCK; k += SIDE) STORE(last + k, LOAD(own.state[0] + k));
                    for (long k = 0; s.keeps && k < gates * p.rows * 2; k++) {
                        const long g = k / (p.rows * 2), r = k / 2 % p.rows, v = k % 2;
                        STORE_PART(of_gates + g * s.hidden * s.batch + p.at + r * s.batch + v * SIDE, p.parts[v],
                                   LOAD(AT(own.gates[g], r, v)));
                    }
                    pass_on(&p, own.state, next + (panel * blocks + block) * OF_STEP, cuts + panel);
                    write_samples(&p, own.state, a.states + t * s.state_step + panel * BLOCK * s.state_row + p.unit,
                                  s.state_row);
                }
            }
        }
        LEAVE_TILES();
    }
}

/* The strips of a recurrent weight, gate by gate, and behind each gate's whether they are split by cuts. */
void opbox_unit_pack(const float *weight, uint32_t *packed, const Steps *steps)
{
    const long hidden = steps->hidden, blocks = CEIL_DIV(hidden, BLOCK);
    const Sizes gate = {.rows = hidden, .terms = hidden, .a_row = hidden, .a_term = 1};
    for (int g = 0; g < gates_of(steps); g++)
        split_strips(weight + g * hidden * hidden, packed + g * blocks * (blocks * PARTS * STRIP * SIDE + 1), &gate,
                     omp_get_max_threads());
}
