"""The C of steps of the recurrent cells by a processor's matrix unit; `unit_steps` says what they compute.

All steps of a call are one region of threads. A thread takes a block of units of some samples: the rows of all gates of
these units, a strip of the packed weight each, by the state before, and all that is computed of them while they are in
its cache. It writes the state's parts as the products of the next step read them, where a block of units is one step of
terms: these alone go from one core to another.

For a text that has split products (`split_product_text`) and loops of NumPy's (`numpy_loops`).
"""

from __future__ import annotations

__all__ = ["UNIT_STEPS"]

UNIT_STEPS = r"""
#if !defined(MATRIX_UNIT)
#error "no matrix unit"
#endif

enum { BLOCK = STRIP }; /* units, and samples, of a piece of work */
enum { LSTM, GRU, TANH, RELU };

/* What a call computes: `count` steps from `first` on, each `by` one from the last, 1 or -1; the last `stored` have
   extras, and gates where it `keeps` them. x begins with step `begin`. Then numbers between rows of
   x, between samples and steps of the states, and between samples of the state before. */
typedef struct {
    long mode, hidden, batch, count, first, by, stored, keeps, begin, x_row, state_row, state_step, before_row;
} Steps;

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
   room         two states in parts; of samples, whether they are split by cuts; a state */
typedef struct {
    const uint32_t *packed;
    const float *x, *bias, *of_new, *before, *cell_before;
    const uint8_t *valid;
    float *gates, *extra, *states;
    uint32_t *room;
} Arrays;

/* A piece of a step: where it begins in an array of units by samples, its `rows` and `columns`, which columns of two
   vectors there are, and which of them go on. */
typedef struct { long unit, at, rows, columns; Part parts[2], goes_on[2]; } Piece;

/* What a thread works in: sums of the gates, and the state; zeros beyond its sides. */
typedef struct { float gates[4][BLOCK][BLOCK], state[BLOCK][BLOCK]; } Room;

#define EACH_VECTOR(r, v) for (long r = 0; r < p->rows; r++) UNROLL for (int v = 0; v < 2; v++)
#define AT(array, r, v) ((array)[r] + (v) * SIDE)
#define IN_STEP(array, r, v) ((array) + p->at + (r) * s->batch + (v) * SIDE)

static inline int gates_of(const Steps *s) { return s->mode == LSTM ? 4 : s->mode == GRU ? 3 : 1; }

/* An array of a step, which has so many rows. */
static inline float *of_step(float *array, const Steps *s, long step, long rows)
{
    return array + step % s->stored * rows * s->batch;
}

static inline Piece piece_of(const Steps *s, long block, long panel, const uint8_t *valid)
{
    const long unit = block * BLOCK, sample = panel * BLOCK;
    Piece p = {unit, unit * s->batch + sample, LEAST(s->hidden - unit, BLOCK), LEAST(s->batch - sample, BLOCK)};
    for (int v = 0; v < 2; v++) {
        const long columns = LEAST(p.columns - v * SIDE, SIDE);
        p.goes_on[v] = p.parts[v] = columns > 0 ? first_numbers(columns) : 0;
        for (long j = 0; valid && j < columns; j++) p.goes_on[v] &= ~(!valid[sample + v * SIDE + j] << j);
    }
    return p;
}

static inline void apply(const Loop *loop, float *x, long count)
{
    char *at[] = {(char *)x, (char *)x};
    const long by[] = {sizeof(float), sizeof(float)};
    loop->function(at, &count, by, loop->data);
}

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
    return _mm512_maskz_mov_ps(p->parts[v], _mm512_mask_mov_ps(LOAD(before), p->goes_on[v], state));
}

static void end_lstm(const Steps *s, const Piece *p, const Arrays *a, Room *own, const float *last, float *cell,
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

static void end_gru(const Steps *s, const Piece *p, const Arrays *a, Room *own, const float *last, float *again,
                    const float *new_x, const Loop *tanh)
{
    for (int g = 0; g < 2; g++) begin_gate(p, own->gates[g], a->bias + g * s->hidden, 1);
    apply(tanh, own->gates[0][0], 2 * BLOCK * BLOCK);
    EACH_VECTOR(r, v) {
        const Lanes reset = sigmoid(AT(own->gates[0], r, v)), update = sigmoid(AT(own->gates[1], r, v));
        const Lanes product = LOAD(AT(own->gates[2], r, v)) + ALL(a->of_new[p->unit + r]);
        const Lanes x = LOAD_PART(new_x + r * s->x_row + v * SIDE, p->parts[v]);
        STORE_PART(IN_STEP(again, r, v), p->parts[v], product);
        STORE(AT(own->gates[2], r, v), reset * product + (x + ALL(a->bias[2 * s->hidden + p->unit + r])));
        STORE(AT(own->gates[1], r, v), update);
    }
    apply(tanh, own->gates[2][0], p->rows * BLOCK);
    EACH_VECTOR(r, v) {
        const float *past = last + r * BLOCK + v * SIDE;
        const Lanes new = LOAD(AT(own->gates[2], r, v)), update = LOAD(AT(own->gates[1], r, v));
        STORE(AT(own->state, r, v), state_of(p, v, new + (LOAD(past) - new) * update, past));
    }
}

static void end_plain(const Steps *s, const Piece *p, const Arrays *a, Room *own, const float *last, const Loop *tanh)
{
    begin_gate(p, own->gates[0], a->bias, 0);
    if (s->mode == TANH) apply(tanh, own->gates[0][0], p->rows * BLOCK);
    EACH_VECTOR(r, v) {
        const Lanes sum = LOAD(AT(own->gates[0], r, v)), state = s->mode == RELU ? RECTIFY(sum) : sum;
        STORE(AT(own->gates[0], r, v), state);
        STORE(AT(own->state, r, v), state_of(p, v, state, last + r * BLOCK + v * SIDE));
    }
}

/* A piece of a state to `next` in parts, and to `states`, samples `row` apart. Returns whether the parts are by cuts,
   as others would not add up to it. */
static int pass_on(const Piece *p, const Room *own, uint32_t *next, float *states, long row)
{
    int cuts = 0;
    float samples[SIDE * SIDE] __attribute__((aligned(64)));
    for (long v = 0; v < PIECES(p->columns, SIDE); v++, next += OF_TILE) {
        Lanes low = ALL(0);
        UNROLL for (int i = 0; i < SIDE; i++)
            low = split(LOAD(AT(own->state, i, v)), LOAD(AT(own->state, SIDE + i, v)), next + i * SIDE, 2 * OF_TILE,
                        low);
        if (has_nan(low)) {
            cuts = 1;
            for (int i = 0; i < SIDE; i++)
                split_by_cuts(LOAD(AT(own->state, i, v)), LOAD(AT(own->state, SIDE + i, v)), next + i * SIDE,
                              2 * OF_TILE);
        }
        for (long unit = 0; states && unit < p->rows; unit += SIDE) {
            const Part part = first_numbers(p->rows - unit);
            turned((Lines){.at = AT(own->state, unit, v), .row = BLOCK, .rows = SIDE, .apart = 1, .lanes = 0xffff},
                   samples);
            for (long j = 0; j < LEAST(p->columns - v * SIDE, SIDE); j++)
                STORE_PART(states + (v * SIDE + j) * row + unit, part, LOAD(samples + j * SIDE));
        }
    }
    return cuts;
}

void opbox_unit_steps(const Arrays *arrays, const Steps *steps, const Loop *tanh)
{
    const Steps s = *steps;
    const Arrays a = *arrays;
    const int gates = gates_of(&s);
    const long blocks = PIECES(s.hidden, BLOCK), panels = PIECES(s.batch, BLOCK), pieces = blocks * panels;
    const long of_strip = blocks * PARTS * STRIP * SIDE, of_gate = blocks * (of_strip + 1);
    const long of_state = pieces * OF_STEP;
    uint32_t *cuts = a.room + 2 * of_state;
    float *state = (float *)(cuts + panels);
    const int threads = LEAST(omp_get_max_threads(), pieces);
    Share begin[threads], shares[s.count * threads];
    GIVE(begin, pieces);
    for (long n = 0; n < s.count; n++) GIVE(shares + n * threads, pieces);
    for (long p = 0; p < panels; p++) cuts[p] = 0;
    _Pragma("omp parallel num_threads(threads)")
    {
        Room own __attribute__((aligned(64)));
        const End end = {0};
        Later nothing[2];
        nothing[0].next = nothing[0].count = nothing[1].next = nothing[1].count = 0;
        TileShapes shapes = {.palette = 1};
        for (int i = 0; i < 8; i++) {
            shapes.bytes[i] = 64;
            shapes.rows[i] = SIDE;
        }
        __asm__ volatile("" : : "r"(&shapes) : "memory"); /* as in `split_product` */
        SHAPE_TILES(&shapes);
        FLUSHED {
            for (long k = 0; k < 5 * BLOCK * BLOCK; k++) own.gates[0][0][k] = 0;
            SHARED(begin, number, 1) {
                const long block = number / panels, panel = number % panels;
                const Piece p = piece_of(&s, block, panel, 0);
                float *last = state + number * BLOCK * BLOCK;
                for (long i = 0; i < BLOCK; i++)
                    for (long j = 0; j < BLOCK; j++)
                        own.state[i][j] = last[i * BLOCK + j] =
                            i < p.rows && j < p.columns ? a.before[(panel * BLOCK + j) * s.before_row + p.unit + i] : 0;
                if (pass_on(&p, &own, a.room + (panel * blocks + block) * OF_STEP, 0, 0))
                    __atomic_store_n(cuts + panel, 1, __ATOMIC_RELAXED);
            }
            for (long n = 0; n < s.count; n++) {
                _Pragma("omp barrier")
                const long t = s.first + n * s.by;
                const uint32_t *now = a.room + n % 2 * of_state;
                uint32_t *next = a.room + (n + 1) % 2 * of_state;
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
                    for (long r = p.rows; r < BLOCK; r++)
                        for (long j = 0; j < BLOCK; j++) own.state[r][j] = 0;
                    if (s.mode == LSTM) end_lstm(&s, &p, &a, &own, last, extra, cell, tanh);
                    else if (s.mode == GRU) end_gru(&s, &p, &a, &own, last, extra, x + 2 * s.hidden * s.x_row, tanh);
                    else end_plain(&s, &p, &a, &own, last, tanh);
                    for (long k = 0; k < p.rows * BLOCK; k += SIDE) STORE(last + k, LOAD(own.state[0] + k));
                    for (long k = 0; s.keeps && k < gates * p.rows * 2; k++) {
                        const long g = k / (p.rows * 2), r = k / 2 % p.rows, v = k % 2;
                        STORE_PART(of_gates + g * s.hidden * s.batch + p.at + r * s.batch + v * SIDE, p.parts[v],
                                   LOAD(AT(own.gates[g], r, v)));
                    }
                    float *states = a.states + t * s.state_step + panel * BLOCK * s.state_row + p.unit;
                    if (pass_on(&p, &own, next + (panel * blocks + block) * OF_STEP, states, s.state_row))
                        __atomic_store_n(cuts + panel, 1, __ATOMIC_RELAXED);
                }
            }
        }
        LEAVE_TILES();
    }
}

/* The strips of a recurrent weight, gate by gate, and behind each gate's whether they are split by cuts. */
void opbox_unit_pack(const float *weight, uint32_t *packed, const Steps *steps)
{
    const long hidden = steps->hidden, blocks = PIECES(hidden, BLOCK);
    const Sizes gate = {.rows = hidden, .terms = hidden, .a_row = hidden, .a_term = 1};
    for (int g = 0; g < gates_of(steps); g++)
        split_strips(weight + g * hidden * hidden, packed + g * blocks * (blocks * PARTS * STRIP * SIDE + 1), &gate,
                     omp_get_max_threads());
}
"""
