/* What steps of recurrent cells by a processor's matrix unit share, forward (unit_steps.h) and back (unit_back.h): a
   piece of a step's work, and what goes from one step to the next. */
#pragma once

#include "split_product.h"
#include "numpy_loop.h"

#if !defined(MATRIX_UNIT)
#error "no matrix unit"
#endif

enum { BLOCK = STRIP }; /* units, and samples, of a piece of work */
enum { LSTM, GRU, TANH, RELU };

/* What a call computes: `count` of `time` steps from `first` on, each `by` one from the last, 1 or -1. The last
   `stored` steps have extras, and gates where it `keeps` them. Numbers between rows of x, or of the gates' gradients;
   the step that x begins with; numbers between samples and steps of the states, and of their gradients, and between
   samples of the state before all of them. */
typedef struct {
    long mode, hidden, batch, time, count, first, by, stored, keeps, x_row, begin, state_row, state_step, gout_row,
        gout_step, before_row;
} Steps;

/* Where a piece begins, in units and in an array of units by samples, its `rows` and `columns`, which columns of two
   vectors there are, and which of them go on. */
typedef struct {
    long unit, at, rows, columns;
    Part parts[2], goes_on[2];
} Piece;

/* What a thread works in: of the gates, and of the state; zeros beyond a piece's sides. */
typedef struct {
    float gates[4][BLOCK][BLOCK], state[BLOCK][BLOCK], total[BLOCK][BLOCK], before[BLOCK][BLOCK];
} UnitScratch;

#define EACH_VECTOR(r, v) \
    for (long r = 0; r < p->rows; r++) UNROLL for (int v = 0; v < 2; v++)
#define AT(array, r, v) ((array)[r] + (v) * SIDE)
#define IN_STEP(array, r, v) ((array) + p->at + (r) * s->batch + (v) * SIDE)
#define KEPT(v, x) _mm512_maskz_mov_ps(p->parts[v], x)

static inline int gates_of(const Steps *s) { return s->mode == LSTM ? 4 : s->mode == GRU ? 3 : 1; }

/* An array of a step, which has so many rows. */
static inline float *of_step(float *array, const Steps *s, long step, long rows)
{
    return array + step % s->stored * rows * s->batch;
}

static inline Piece piece_of(const Steps *s, long block, long panel, const uint8_t *valid)
{
    const long unit = block * BLOCK, sample = panel * BLOCK;
    Piece p = {unit, unit * s->batch + sample, MIN(s->hidden - unit, BLOCK), MIN(s->batch - sample, BLOCK)};
    for (int v = 0; v < 2; v++) {
        const long columns = MIN(p.columns - v * SIDE, SIDE);
        p.goes_on[v] = p.parts[v] = columns > 0 ? first_numbers(columns) : 0;
        for (long j = 0; valid && j < columns; j++) p.goes_on[v] &= ~(!valid[sample + v * SIDE + j] << j);
    }
    return p;
}

/* Shapes the tiles, and empties what a thread works in: it splits nothing while it multiplies. */
static inline void begin_pieces(UnitScratch *own, Later nothing[2])
{
    nothing[0].next = nothing[0].count = nothing[1].next = nothing[1].count = 0;
    TileShapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = 64;
        shapes.rows[i] = SIDE;
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* as in `split_product` */
    SHAPE_TILES(&shapes);
    __builtin_memset(own, 0, sizeof *own);
}

static inline void apply(const Loop *loop, float *x, long count)
{
    char *at[] = {(char *)x, (char *)x};
    const long by[] = {sizeof(float), sizeof(float)};
    loop->function(at, &count, by, loop->data);
}

/* A piece of an array of samples, which lie `row` apart, by units; and back. */
static inline void lay_samples(const Piece *p, const float *samples, long row, float to[BLOCK][BLOCK])
{
    float units[SIDE * SIDE] __attribute__((aligned(64)));
    for (long sample = 0; sample < p->columns; sample += SIDE)
        for (long unit = 0; unit < p->rows; unit += SIDE) {
            transposed((Lines){.at = samples + sample * row + unit,
                               .row = row,
                               .rows = p->columns - sample,
                               .apart = 1,
                               .lanes = first_numbers(p->rows - unit)},
                       units);
            for (long i = 0; i < SIDE; i++) STORE(to[unit + i] + sample, LOAD(units + i * SIDE));
        }
}

static inline void write_samples(const Piece *p, const float from[BLOCK][BLOCK], float *samples, long row)
{
    float samples_first[SIDE * SIDE] __attribute__((aligned(64)));
    for (long sample = 0; sample < p->columns; sample += SIDE)
        for (long unit = 0; unit < p->rows; unit += SIDE) {
            const Part part = first_numbers(p->rows - unit);
            transposed((Lines){.at = from[unit] + sample, .row = BLOCK, .rows = SIDE, .apart = 1, .lanes = 0xffff},
                       samples_first);
            for (long j = 0; j < MIN(p->columns - sample, SIDE); j++)
                STORE_PART(samples + (sample + j) * row + unit, part, LOAD(samples_first + j * SIDE));
        }
}

/* A piece to `next` in parts, a step of terms. Notes in `cuts` where they are by cuts, as others would not add up. */
static inline void pass_on(const Piece *p, float from[BLOCK][BLOCK], uint32_t *next, uint32_t *cuts)
{
    for (long r = p->rows; r < BLOCK; r++)
        for (int v = 0; v < 2; v++) STORE(AT(from, r, v), ALL(0));
    for (long v = 0; v < CEIL_DIV(p->columns, SIDE); v++, next += OF_TILE) {
        Lanes low = ALL(0);
    UNROLL for (int i = 0; i < SIDE; i++)
            low = split(LOAD(AT(from, i, v)), LOAD(AT(from, SIDE + i, v)), next + i * SIDE, 2 * OF_TILE, low);
        if (!has_nan(low)) continue;
        for (int i = 0; i < SIDE; i++)
            split_by_cuts(LOAD(AT(from, i, v)), LOAD(AT(from, SIDE + i, v)), next + i * SIDE, 2 * OF_TILE);
        __atomic_store_n(cuts, 1, __ATOMIC_RELAXED);
    }
}
