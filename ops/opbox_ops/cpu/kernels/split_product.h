/* Products in blocks by a processor's matrix unit (Intel's AMX), which multiplies bfloat16.

   A float32 has 24 bits: it is the sum of three bfloat16 of 8 bits, its high, middle and low part. Of the nine
   products of two numbers' parts the six largest are added up, in float32; the other three are less than 2^-24 of the
   numbers' product, which is less than its rounding to float32 may be. Six such products take less than half the time
   of one of float32 by vectors of 16.

       a       strips of rows, split while the strip before is multiplied where its terms lie together, else a block of
               terms while the block before is multiplied
       b       panels of columns, packed beforehand, or as a
       c       a strip of a panel stays in tiles for all terms of a block

   What has parts that do not add up to it, which are infinities, NaN, and numbers that round to infinity, is split by
   other rules, and its sums are computed of whole numbers.

   Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
   computations" (2019), has the sums and their errors. */
#pragma once

#include "loops.h"
#include "split_numbers.h"

#if defined(MATRIX_UNIT)
#ifndef LOAD_TILE
#define LOAD_TILE _tile_loadd
#define STORE_TILE _tile_stored
#define CLEAR_TILE _tile_zero
#define MULTIPLY_TILES _tile_dpbf16ps
#define SHAPE_TILES _tile_loadconfig
#define LEAVE_TILES _tile_release
#endif

/* A piece of work has up to MAX_ROWS rows of a, DEEP terms at a time, half as many where both matrices are split as it
   goes, and MAX_PANELS panels of b, which stay in the second cache. */
enum { MAX_ROWS = 256, DEEP = 512, MAX_PANELS = 8, HALF_OF_B = MAX_PANELS * DEEP / STEP * OF_STEP / 2 };
enum { HALF_OF_A = MAX_ROWS / STRIP * DEEP / STEP * OF_STEP / 2, MIN_ROWS_FOR_FULL_TILES = 8 * SIDE };
typedef struct {
    uint8_t palette, begin, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TileShapes;

#define EACH_TILE(DO)                           \
    DO(0, 4, 6) if (tiles == 2) { DO(1, 5, 6) } \
    if (panels == 2) {                          \
        DO(2, 4, 7)                             \
    }                                           \
    if (tiles == 2 && panels == 2) {            \
        DO(3, 5, 7)                             \
    }
#define A4(part) LOAD_TILE(4, a + (part) * 2 * of_tile, 64);
#define A5(part) \
    if (tiles == 2) LOAD_TILE(5, a + ((part) * 2 + 1) * of_tile, 64);
#define B6(part) LOAD_TILE(6, b + (part) * 2 * OF_TILE, 64);
#define B7(part) \
    if (panels == 2) LOAD_TILE(7, b + ((part) * 2 + 1) * OF_TILE, 64);
#define C0 MULTIPLY_TILES(0, 4, 6);
#define C1 \
    if (tiles == 2) MULTIPLY_TILES(1, 5, 6);
#define C2 \
    if (panels == 2) MULTIPLY_TILES(2, 4, 7);
#define C3 \
    if (tiles == 2 && panels == 2) MULTIPLY_TILES(3, 5, 7);
#define SPLIT(phase)                                    \
    if (first) split_phase(&later[0].splitting, phase); \
    if (second) split_phase(&later[1].splitting, phase);

/* Adds a strip by a panel, of so many tiles each, to the tiles of the result. The processor has time meanwhile: between
   products it splits parts of `later`'s two tiles, and it fetches `lines` rows of what is written next. It reaches few
   instructions ahead of the unit, so that its work comes in small pieces. */
static inline __attribute__((always_inline)) void multiply(const int tiles, const int panels, const uint32_t *a,
                                                           long of_tile, const uint32_t *b, long steps, Later *later,
                                                           const float *c, long c_row, long lines)
{
    for (long k = 0; k < steps; k++, a += PARTS * 2 * of_tile, b += OF_STEP) {
        for (long i = 0; i < lines; i++, c += c_row) {
            __builtin_prefetch(c, 1);
            __builtin_prefetch(c + SIDE, 1);
        }
        const int first = begin_due(later), second = begin_due(later + 1);
        A4(2)
        B6(0)
        C0 A5(2) C1 B7(0) C2 A4(1) C3 A5(1) SPLIT(0) C0 C1 B6(1) C2 C3 B7(1) SPLIT(1) C0 C1 C2 A4(0) C3 A5(0) SPLIT(2)
            C0 C1 B6(0) C2 C3 B7(0) SPLIT(3) C0 C1 B6(2) C2 C3 B7(2) SPLIT(4) C0 C1 C2 C3 SPLIT(5)
    }
}

/* The same of whole numbers, added to `sums`, which has a strip's rows. */
static void multiply_joined(const uint32_t *a, long of_tile, long rows, const uint32_t *b, long steps,
                            float sums[STRIP][STRIP])
{
    enum { SOME = 8 };
    for (long first = 0; first < rows; first += SOME) {
        Lanes out[SOME][2];
        for (int r = 0; r < SOME; r++)
            for (int v = 0; v < 2; v++) out[r][v] = LOAD(sums[MIN(first + r, STRIP - 1)] + v * SIDE);
        for (long k = 0; k < steps; k++)
            for (int upper = 0; upper < 2; upper++) {
                float left[SOME][SIDE];
                for (int r = 0; r < SOME; r++) {
                    const long row = MIN(first + r, rows - 1);
                    const uint32_t *at = a + (k * PARTS * 2 + row / of_tile) * of_tile * SIDE + row % of_tile * SIDE;
                    STORE(left[r], joined(at, 2 * of_tile * SIDE, upper));
                }
                for (int j = 0; j < SIDE; j++) {
                    const uint32_t *at = b + k * OF_STEP + j * SIDE;
                    const Lanes right[2] = {joined(at, 2 * OF_TILE, upper), joined(at + OF_TILE, 2 * OF_TILE, upper)};
    UNROLL for (int r = 0; r < SOME; r++)
                        UNROLL for (int v = 0; v < 2; v++)
                            out[r][v] = MULTIPLY_ADD(ALL(left[r][j]), right[v], out[r][v]);
                }
            }
        for (int r = 0; r < MIN(rows - first, SOME); r++)
            for (int v = 0; v < 2; v++) STORE(sums[first + r] + v * SIDE, out[r][v]);
    }
}

/* c = start + a b, and what `end` says, for `rows` rows of a strip, `of_tile` of a tile, and `columns` of a panel;
   start of zeros if it is NULL; where it `joins`, of whole numbers. A strip's lines of `next` are fetched meanwhile. */
static void split_tile(const uint32_t *a, long of_tile, long rows, const uint32_t *b, long columns, const float *start,
                       long start_row, float *c, long c_row, long steps, const End *end, int joins, Later *later,
                       const float *next, long next_row)
{
    const int tiles = CEIL_DIV(rows, of_tile), panels = CEIL_DIV(columns, SIDE);
    float scratch[STRIP][STRIP] __attribute__((aligned(64)));
    const int whole = rows == tiles * of_tile && columns == panels * SIDE && !joins;
    if (!whole && (start || joins)) {
        for (long r = 0; r < rows; r++)
            for (long j = 0; j < STRIP; j += SIDE) {
                const Part part = columns > j ? first_numbers(columns - j) : 0;
                STORE(scratch[r] + j, start ? LOAD_PART(start + r * start_row + j, part) : ALL(0));
            }
        start = scratch[0];
        start_row = STRIP;
    }
    const int direct = whole && !end->norm && !end->relu;
    float *to = direct ? c : scratch[0];
    const long to_row = direct ? c_row : STRIP, lines = CEIL_DIV(tiles * of_tile, steps);
#define BEGIN(n, of_a, of_b) \
    if (start) LOAD_TILE(n, start + (n) % 2 * of_tile * start_row + (n) / 2 * SIDE, start_row * 4); else CLEAR_TILE(n);
#define FINISH(n, of_a, of_b) STORE_TILE(n, to + (n) % 2 * of_tile * to_row + (n) / 2 * SIDE, to_row * 4);
    if (joins) multiply_joined(a, of_tile, rows, b, steps, scratch);
    else {
        EACH_TILE(BEGIN)
        if (tiles == 2 && panels == 2) multiply(2, 2, a, of_tile * SIDE, b, steps, later, next, next_row, lines);
        else if (tiles == 2) multiply(2, 1, a, of_tile * SIDE, b, steps, later, next, next_row, lines);
        else if (panels == 2) multiply(1, 2, a, of_tile * SIDE, b, steps, later, next, next_row, lines);
        else multiply(1, 1, a, of_tile * SIDE, b, steps, later, next, next_row, lines);
        EACH_TILE(FINISH)
    }
    if (direct) return;
    for (long j = 0; j < columns; j += SIDE) {
        const Part part = first_numbers(columns - j);
        Lanes mean = ALL(0), scale = ALL(0), shift = ALL(0);
        if (end->norm) {
            mean = LOAD_PART(end->norm + j, part);
            scale = LOAD_PART(end->norm + end->row + j, part);
            shift = LOAD_PART(end->norm + 2 * end->row + j, part);
        }
        for (long r = 0; r < rows; r++) {
            Lanes x = LOAD(scratch[r] + j);
            if (end->norm) x = (x - mean) * scale + shift;
            STORE_PART(c + r * c_row + j, part, end->relu ? RECTIFY(x) : x);
        }
    }
}

/* How many rows a tile of a has: so few that the last one is nearly full. */
static inline long tile_rows(long rows) { return rows < MIN_ROWS_FOR_FULL_TILES ? CEIL_DIV(rows, CEIL_DIV(rows, SIDE)) : SIDE; }

/* What `opbox_product` computes, by the matrix unit; `packed` is a where it `packs_a`, else b. Windows are of a where
   its terms lie along, else of b. */
UNUSED static void split_product(const float *all_a, const float *all_b, const float *packed, const float *bias, float *all_c,
                          float *sums, const Sizes *sizes, const Windows *windows, const float *addend,
                          const float *norm, int threads)
{
    const Sizes s = *sizes;
    const int a_along = s.a_term == 1, b_along = s.b_term == 1;
    const long a_row = a_along ? s.a_row : s.a_term, b_row = b_along ? s.b_column : s.b_term;
    const long panels = CEIL_DIV(s.columns, STRIP), slab = CEIL_DIV(CEIL_DIV(s.terms, s.slabs), STEP) * STEP;
    const long of_tile = tile_rows(s.rows), of_strip = 2 * of_tile;
    const int is_long = packed && (a_along || s.packs_a);
    const long depth = CEIL_DIV(CEIL_DIV(slab, CEIL_DIV(slab, is_long ? DEEP : DEEP / 2)), STEP) * STEP;
    /* Threads that have rows of their own split them once, where each would split all rows for its columns. */
    const long whole = CEIL_DIV(CEIL_DIV(s.rows, of_strip), threads) * threads * of_strip;
    const int by_rows = packed && a_along && !s.packs_a && 10 * s.rows >= 3 * s.columns && 7 * whole <= 8 * s.rows;
    const long apart = by_rows ? threads : CEIL_DIV(threads, s.batch * s.slabs * CEIL_DIV(panels, 2)); /* blocks for all */
    const long most_blocks = MAX(CEIL_DIV(s.rows, MAX_ROWS), MIN(apart, CEIL_DIV(s.rows, of_strip)));
    const long block = CEIL_DIV(CEIL_DIV(s.rows, most_blocks), of_strip) * of_strip, blocks = CEIL_DIV(s.rows, block);
    const long all_steps = CEIL_DIV(s.terms, STEP), others = s.batch * s.slabs * blocks;
    const uint32_t *packed_a = s.packs_a ? (const uint32_t *)packed : 0, *packed_b = s.packs_a ? 0 : (void *)packed;
    const long of_strips = CEIL_DIV(s.rows, of_strip) * all_steps * PARTS * of_strip * SIDE;
    const uint32_t *cut_a = packed_a + of_strips, *cut_b = packed_b + panels * all_steps * OF_STEP;
    const long wide = (packed_b ? 2 : 1) * HALF_OF_B / OF_STEP / (depth / STEP);
    long most = panels;
    while (most > 2 && others * CEIL_DIV(panels, most) < threads) most = CEIL_DIV(most, 2);
    const long group = CEIL_DIV(most, CEIL_DIV(most, wide));
    Share units[threads];
    GIVE(units, others * panels);
    _Pragma("omp parallel num_threads(threads)")
    {
        uint32_t own_b[2 * HALF_OF_B] __attribute__((aligned(64)));
        uint32_t own_a[2 * HALF_OF_A] __attribute__((aligned(64)));
        TileShapes shapes = {.palette = 1};
        for (int i = 0; i < 8; i++) {
            shapes.bytes[i] = 64;
            shapes.rows[i] = i < 6 ? of_tile : SIDE;
        }
        __asm__ volatile("" : : "r"(&shapes) : "memory"); /* GCC 12 believes that eight bytes of it are read */
        SHAPE_TILES(&shapes);
        FLUSHED EACH_PIECE(units, unit, end, most, panels) {
            const long from = unit % panels, first = unit / panels % blocks * block;
            const long number = unit / panels / blocks % s.slabs, item = unit / panels / blocks / s.slabs;
            const float *a = all_a + item * s.rows * s.terms, *b = all_b + item * s.terms * s.columns;
            float *c = all_c + item * s.rows * s.columns;
            const long count = end - unit, rows = MIN(s.rows - first, block), begin = number * slab;
            const long stop = MIN(s.terms, begin + slab), slices = CEIL_DIV(stop - begin, depth);
            float *out = number ? sums + (number - 1) * s.rows * s.columns : c;
            const long out_row = number ? s.columns : s.c_row;
            const float *added_to = number ? 0 : bias && addend ? c : addend;
            if (bias && added_to) add_bias(c, addend, bias, &s, first, rows, from * STRIP, (from + count) * STRIP);
            Matrix of_a[2], of_b[2];
            Later later[2]; /* of a, and of b */
            later[0].splitting.low = later[1].splitting.low = ALL(0);
            int joins = 0;
            for (long p = from; packed_b && p < from + count; p++) joins |= cut_b[p];
            for (long r = 0; packed_a && r < rows; r += of_strip) joins |= cut_a[(first + r) / of_strip];
            /* What a turn multiplies, slices of terms for groups of panels, the turn before has split. */
            for (long turn = 0, now = 0; turn <= CEIL_DIV(count, group) * slices; turn++, now = !now) {
                const int goes_on = turn < CEIL_DIV(count, group) * slices;
                if (goes_on) {
                    const long q = from + turn / slices * group, k = begin + turn % slices * depth;
                    const long terms = MIN(stop - k, depth);
                    const long columns = MIN(s.columns - q * STRIP, MIN(from + count - q, group) * STRIP);
                    of_a[now] = (Matrix){a + first * s.a_row + k * s.a_term, a_row, terms, rows, 1, of_tile, a_along};
                    of_b[now] = (Matrix){b + k * s.b_term + q * STRIP * s.b_column, b_row, terms, columns, 1, SIDE,
                                         b_along, 1};
                    if (windows) {
                        Matrix *matrix = a_along ? of_a + now : of_b + now;
                        matrix->at = a_along ? a : b;
                        matrix->windows = windows;
                        matrix->place = windows->first + (a_along ? first : k);
                        matrix->column = a_along ? k : q * STRIP;
                    }
                }
                if (turn == 0) {
                    if (!packed_b) joins |= split_tiles(of_b, 0, tiles_of(of_b), own_b, 0);
                    if (!packed_a && !a_along) joins |= split_tiles(of_a, 0, tiles_of(of_a), own_a, 0);
                    continue;
                }
                const Matrix *this_a = of_a + !now, *this_b = of_b + !now;
                uint32_t *split_b = own_b + !now * HALF_OF_B, *split_a = own_a + !now * HALF_OF_A;
                const long q = from + (turn - 1) / slices * group, k = begin + (turn - 1) % slices * depth;
                const long width = MIN(from + count - q, group), steps = CEIL_DIV(this_a->terms, STEP);
                const long multiplied = CEIL_DIV(rows, of_strip) * width * steps;
                const int finishes = k + this_a->terms == stop;
                const float *base = k > begin ? out : added_to;
                joins |= has_nan(later[0].splitting.low) | has_nan(later[1].splitting.low);
                if (joins && !packed_b) split_tiles(this_b, 0, tiles_of(this_b), split_b, 1);
                if (joins && !packed_a && !a_along) split_tiles(this_a, 0, tiles_of(this_a), split_a, 1);
                later[0].next = later[0].count = later[1].next = later[1].count = 0;
                if (goes_on && !packed_b)
                    set_later(later + 1, of_b + now, 0, tiles_of(of_b + now), own_b + now * HALF_OF_B, multiplied, 0);
                if (goes_on && !packed_a && !a_along)
                    set_later(later, of_a + now, 0, tiles_of(of_a + now), own_a + now * HALF_OF_A, multiplied, 0);
                const int by_strips = !packed_a && a_along;
                if (by_strips) set_later(later, this_a, 0, 2, own_a, 1, 0);
                for (long r = 0, strip = 0; r < rows; r += of_strip, strip++) {
                    if (by_strips) {
                        split_rest(later);
                        split_a = own_a + strip % 2 * HALF_OF_A;
                        joins |= has_nan(later[0].splitting.low);
                        if (joins) split_tiles(this_a, strip * 2, 2, split_a, 1);
                        if (r + of_strip < rows)
                            set_later(later, this_a, (strip + 1) * 2, 2, own_a + (strip + 1) % 2 * HALF_OF_A,
                                      width * steps, 0);
                    }
                    const uint32_t *left = by_strips ? split_a
                        : packed_a ? packed_a + ((first + r) * all_steps + k / STEP * of_strip) * PARTS * SIDE
                                   : split_a + r * steps * PARTS * SIDE;
                    for (long p = q; p < q + width; p++) {
                        const uint32_t *panel = packed_b ? packed_b + (p * all_steps + k / STEP) * OF_STEP
                                                       : split_b + (p - q) * steps * OF_STEP;
                        const float *added = bias && !number ? bias + p * STRIP : 0;
                        const float *own_norm = norm && finishes ? norm + p * STRIP : 0;
                        const End end = {own_norm, CEIL_DIV(s.columns, COLUMNS) * COLUMNS, s.relu && finishes};
                        float *to = out + (first + r) * out_row + p * STRIP;
                        const float *start = base ? base + (to - out) : added;
                        const float *next = p + 1 < q + width ? to + STRIP : to + of_strip * out_row + (q - p) * STRIP;
                        split_tile(left, of_tile, MIN(rows - r, of_strip), panel, MIN(s.columns - p * STRIP, STRIP),
                                   start, base ? out_row : 0, to, out_row, steps, &end, joins, later, next, out_row);
                    }
                }
                split_rest(later);
                split_rest(later + 1);
            }
        }
        LEAVE_TILES();
        add_slabs(all_c, sums, &s);
    }
}

/* All strips of a, and behind them whether each is split by cuts. */
static void split_strips(const float *a, uint32_t *packed, const Sizes *sizes, int threads)
{
    const Sizes s = *sizes;
    const int along = s.a_term == 1;
    const long of_tile = tile_rows(s.rows), of_strip = 2 * of_tile, strips = CEIL_DIV(s.rows, of_strip);
    const long numbers = CEIL_DIV(s.terms, STEP) * PARTS * of_strip * SIDE;
    uint32_t *cuts = packed + strips * numbers;
    IN_THREADS(n, strips, 1) FLUSHED {
        const Matrix rows = {a + n * of_strip * s.a_row, along ? s.a_row : s.a_term, s.terms,
                             MIN(s.rows - n * of_strip, of_strip), 1, of_tile, along, 0};
        cuts[n] = split_tiles(&rows, 0, 2, packed + n * numbers, 0);
        if (cuts[n]) split_tiles(&rows, 0, 2, packed + n * numbers, 1);
    }
}

/* All panels of b, and behind them whether each is split by cuts. Of windows that a convolution takes, b is its weight
   (filters, channels, taps), whose terms are channel by channel and tap by tap; or filter by filter and tap by tap,
   from the last tap on, where `rotated`, which is for the gradient of data. */
UNUSED static void split_panels(const float *b, uint32_t *packed, const Sizes *sizes, long taps, int rotated, int threads)
{
    const Sizes s = *sizes;
    const long panels = CEIL_DIV(s.columns, STRIP), terms = s.terms / taps, of_tap = CEIL_DIV(terms, STEP) * OF_STEP;
    const int along = taps > 1 ? !rotated : s.b_term == 1;
    const long column = taps == 1 ? s.b_column : rotated ? taps : s.terms;
    const long row = taps > 1 ? taps * (rotated ? s.columns : terms) : along ? s.b_column : s.b_term;
    uint32_t *cuts = packed + panels * taps * of_tap;
    IN_THREADS(p, panels, 1) FLUSHED
        for (int by_cuts = cuts[p] = 0; by_cuts < 2; by_cuts++) {
            for (long tap = 0; tap < taps; tap++) {
                const Matrix columns = {b + p * STRIP * column + (rotated ? taps - 1 - tap : tap), row, terms,
                                        MIN(s.columns - p * STRIP, STRIP), taps, SIDE, along, 1};
                cuts[p] |= split_tiles(&columns, 0, 2, packed + (p * taps + tap) * of_tap, by_cuts);
            }
            if (!cuts[p]) break;
        }
}
#endif
