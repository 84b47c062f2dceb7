"""The C of products in blocks by a processor's matrix unit (Intel's AMX), which multiplies bfloat16.

A float32 has 24 bits: it is the sum of three bfloat16 of 8 bits, its high, middle and low part. Of the nine products of
two numbers' parts the six largest are added up, in float32; the other three are less than 2^-24 of the numbers'
product, which is less than its rounding to float32 may be. Six such products take less than half the time of one of
float32 by vectors of 16.

    a       strips of rows, split while the strip before is multiplied where its terms lie together, else a block of
            terms while the block before is multiplied
    b       panels of columns, packed beforehand, or as a
    c       a strip of a panel stays in tiles for all terms of a block

What has parts that do not add up to it, which are infinities, NaN, and numbers that round to infinity, is split by
other rules, and its sums are computed of whole numbers.

For a text that has tiles (`product_tiles_text`) and the structure of windows (`window_sizes`).

Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations"
(2019), has the sums and their errors.
"""

from __future__ import annotations

__all__ = ["SPLIT_NUMBERS", "SPLIT_PRODUCT"]

SPLIT_NUMBERS = r"""
#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define MATRIX_UNIT
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A tile has SIDE rows of SIDE pairs: of a, a row's terms k and k + SIDE in one pair, of b those of a column. A STEP of
   terms is multiplied at once, for a strip of two tiles of a and a panel of two of b: OF_STEP pairs, a panel's PARTS of
   two tiles. */
enum { SIDE = 16, STEP = 2 * SIDE, PARTS = 3, OF_TILE = SIDE * SIDE, OF_STEP = PARTS * 2 * OF_TILE, STRIP = 2 * SIDE };

/* Whether this process may use the matrix unit: the system asks to be asked, once. */
int opbox_product_unit(void)
{
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* the tiles' data */) == 0;
}

/* The parts of two vectors' numbers: x's in the lower halves of pairs, y's in the upper. The product of what the low
   parts are is added to `low`: NaN, where a number is not finite, or its high part is not. */
static inline __attribute__((always_inline)) Lanes split(Lanes x, Lanes y, uint32_t *to, long of_part, Lanes low)
{
    const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32(0xffff0000);
    UNROLL for (int part = 0; part < PARTS; part++) {
        __m512i first = _mm512_castps_si512(x), second = _mm512_castps_si512(y);
        if (part < PARTS - 1) {
            first = _mm512_and_si512(_mm512_add_epi32(first, half), high);
            second = _mm512_and_si512(_mm512_add_epi32(second, half), high);
            x -= _mm512_castsi512_ps(first);
            y -= _mm512_castsi512_ps(second);
        }
        _mm512_storeu_si512(to + part * of_part,
                            _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second));
    }
    return MULTIPLY_ADD(x, y, low);
}

/* The same without rounding: no part is infinite but that of an infinity, whose others are zeros, as NaN's are. */
static inline Lanes cut(Lanes *x)
{
    const __m512i high = _mm512_set1_epi32(0xffff0000), quiet = _mm512_set1_epi32(0x400000);
    const __m512i bits = _mm512_castps_si512(*x);
    const Part nan = _mm512_fpclass_ps_mask(*x, 0x81), odd = _mm512_fpclass_ps_mask(*x, 0x99);
    const Lanes part = _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_or_epi32(bits, nan, bits, quiet), high));
    *x = _mm512_maskz_sub_ps(~odd, *x, part);
    return part;
}

static inline void split_by_cuts(Lanes x, Lanes y, uint32_t *to, long of_part)
{
    for (int part = 0; part < PARTS; part++) {
        const __m512i first = _mm512_castps_si512(cut(&x)), second = _mm512_castps_si512(cut(&y));
        _mm512_storeu_si512(to + part * of_part,
                            _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second));
    }
}

/* The numbers of a row of pairs, of the lower halves or the `upper` ones. */
static inline Lanes joined(const uint32_t *pairs, long of_part, int upper)
{
    Lanes sum = ALL(0);
    for (int part = PARTS - 1; part >= 0; part--) {
        const __m512i pair = _mm512_loadu_si512(pairs + part * of_part);
        sum += _mm512_castsi512_ps(upper ? _mm512_and_si512(pair, _mm512_set1_epi32(0xffff0000))
                                         : _mm512_slli_epi32(pair, 16));
    }
    return sum;
}

/* Rows of numbers: every `row` numbers one of `rows`, the first `lanes` of it, which lie `apart`, zeros beyond; or
   those at `places`, `offset` numbers on, where `inside` has a bit, zeros elsewhere. */
typedef struct {
    const float *at;
    long row, rows, apart, offset;
    Part lanes;
    const float *const *places;
    uint32_t inside;
} Lines;

static inline __attribute__((always_inline)) Lanes line_of(const Lines *lines, long i)
{
    if (lines->places) return lines->inside >> i & 1 ? LOAD(lines->places[i] + lines->offset) : ALL(0);
    if (i >= lines->rows) return ALL(0);
    if (lines->apart == 1) return LOAD_PART(lines->at + i * lines->row, lines->lanes);
    const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_mask_i32gather_ps(ALL(0), lines->lanes, _mm512_mullo_epi32(numbers, _mm512_set1_epi32(lines->apart)),
                                    lines->at + i * lines->row, 4);
}

static inline int are_whole(const Lines *lines, long count)
{
    return !lines->places && lines->rows >= count && lines->apart == 1 && lines->lanes == 0xffff;
}

static inline int are_inside(const Lines *lines, long from, long end)
{
    const uint32_t all = (1u << end) - (1u << from);
    return lines->places && (lines->inside & all) == all;
}

/* SIDE x SIDE numbers turned over. */
static inline Lines turned(Lines lines, float *to)
{
    __m512 r[SIDE], t[SIDE];
    const int whole = are_whole(&lines, SIDE);
    UNROLL for (int i = 0; i < SIDE; i++) r[i] = whole ? LOAD(lines.at + i * lines.row) : line_of(&lines, i);
    UNROLL for (int i = 0; i < SIDE; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < SIDE; i += 4)
        UNROLL for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    UNROLL for (int i = 0; i < SIDE; i += 8)
        UNROLL for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    UNROLL for (int j = 0; j < 8; j++) {
        STORE(to + j * SIDE, _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88));
        STORE(to + (j + 8) * SIDE, _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd));
    }
    return (Lines){.at = to, .row = SIDE, .rows = SIDE, .apart = 1, .lanes = 0xffff};
}

/* SIDE places of windows that follow one another, from `first` on, of `count` at most: the first number of each place's
   window, and which places have a row and a column of the kernel inside the array. */
enum { MOST_TAPS = 32 };
typedef struct { const float *at[SIDE]; uint32_t down[MOST_TAPS], across[MOST_TAPS]; } Places;

static void find_places(Places *places, const float *x, const Windows *w, long first, long count)
{
    long across = first % w->out_width, down = first / w->out_width % w->out_height;
    long image = first / w->out_width / w->out_height;
    for (long i = 0; i < w->down_kernel; i++) places->down[i] = 0;
    for (long j = 0; j < w->across_kernel; j++) places->across[j] = 0;
    for (long n = 0; n < LEAST(count, SIDE); n++) {
        const long row = down * w->down - w->above, column = across * w->across - w->before;
        places->at[n] = x + ((image * w->height + row) * w->width + column) * w->channels;
        for (long i = 0; i < w->down_kernel; i++)
            places->down[i] |= (uint32_t)((unsigned long)(row + i * w->dilate_down) < (unsigned long)w->height) << n;
        for (long j = 0; j < w->across_kernel; j++)
            places->across[j] |= (uint32_t)((unsigned long)(column + j * w->dilate_across) < (unsigned long)w->width)
                                 << n;
        if (++across < w->out_width) continue;
        across = 0;
        if (++down < w->out_height) continue;
        down = 0;
        image++;
    }
}

/* SIDE numbers from `column` on, of the windows at those places: all of one row and column of the kernel. */
static inline Lines of_places(const Places *places, const Windows *w, long column)
{
    const long tap = column / w->channels, i = tap / w->across_kernel, j = tap % w->across_kernel;
    const long offset = (i * w->dilate_down * w->width + j * w->dilate_across) * w->channels + column % w->channels;
    return (Lines){.offset = offset, .places = places->at, .inside = places->down[i] & places->across[j]};
}

/* A matrix whose terms lie `along` rows, every `row` numbers one, or that has a term every `row` numbers; `rows` of the
   other side by `terms`; numbers of a row lie `apart`. Or that of the windows over `at`, from place `place` and column
   `column` on. In tiles, a has a row for a row, `of_tile` of them, b has a column for a column. */
typedef struct {
    const float *at;
    long row, terms, rows, apart, of_tile;
    int along, of_b;
    const Windows *windows;
    long place, column;
} Matrix;

/* A tile of a step that is being split: rows of numbers, which are to be turned over first or are not, and the place of
   its high parts. It takes PHASES, of which two turn and the others split QUARTER rows each; in a phase FETCHED lines
   are fetched of what comes `ahead`. */
enum { PHASES = 6, QUARTER = SIDE / (PHASES - 2), FETCHED = 6 };
typedef struct {
    Lines x, y;
    uint32_t *to;
    long rows;
    int turns, cuts;
    Ahead ahead;
    Lanes low;
    Places places[2];
    float room[2][SIDE * SIDE] __attribute__((aligned(64)));
} Splitting;

static void begin_to_split(Splitting *s, const Matrix *m, long number, long tile, long step, uint32_t *to)
{
    const long count = LEAST(m->rows - tile * m->of_tile, m->of_tile), terms = m->terms - step * STEP;
    s->turns = !m->windows && m->along == m->of_b;
    s->to = to;
    s->rows = m->of_b ? SIDE : m->of_tile;
    if (m->windows && m->of_b) {
        if (number == 0)
            for (long half = 0; half < 2; half++)
                find_places(s->places + half, m->at, m->windows, m->place + step * STEP + half * SIDE,
                            terms - half * SIDE);
        s->x = of_places(s->places, m->windows, m->column + tile * SIDE);
        s->y = of_places(s->places + 1, m->windows, m->column + tile * SIDE);
    } else if (m->windows) {
        if (step == 0) find_places(s->places + number, m->at, m->windows, m->place + tile * m->of_tile, count);
        s->x = of_places(s->places + number, m->windows, m->column + step * STEP);
        s->y = of_places(s->places + number, m->windows, m->column + step * STEP + SIDE);
    } else {
        const float *at = m->at + (m->along ? tile * m->of_tile * m->row + step * STEP * m->apart
                                            : tile * m->of_tile * m->apart + step * STEP * m->row);
        const long beyond = MOST(terms - SIDE, 0);
        const Part lanes = first_numbers(count);
        s->x = (Lines){.at = at, .row = m->row, .rows = m->along ? count : LEAST(terms, SIDE), .apart = m->apart,
                       .lanes = m->along ? first_numbers(terms) : lanes};
        s->y = (Lines){.at = at + SIDE * (m->along ? m->apart : m->row), .row = m->row,
                       .rows = m->along ? count : beyond, .apart = m->apart,
                       .lanes = m->along ? first_numbers(beyond) : lanes};
    }
}

static __attribute__((noinline)) void split_phase(Splitting *s, int phase)
{
    for (int i = 0; i < FETCHED && s->ahead.rows; i++) {
        __builtin_prefetch(s->ahead.at + s->ahead.line * 64, 0, 2);
        go_on(&s->ahead, 1);
    }
    if (phase == 0) {
        if (s->turns) s->x = turned(s->x, s->room[0]);
    } else if (phase == 1) {
        if (s->turns) s->y = turned(s->y, s->room[1]);
    } else {
        const long from = (phase - 2) * QUARTER, end = LEAST(from + QUARTER, s->rows), of_part = 2 * s->rows * SIDE;
        Lanes low = s->low;
        if (s->cuts)
            for (long i = from; i < end; i++)
                split_by_cuts(line_of(&s->x, i), line_of(&s->y, i), s->to + i * SIDE, of_part);
        else if (are_whole(&s->x, end) && are_whole(&s->y, end))
            for (long i = from; i < end; i++)
                low = split(LOAD(s->x.at + i * s->x.row), LOAD(s->y.at + i * s->y.row), s->to + i * SIDE, of_part, low);
        else if (are_inside(&s->x, from, end) && are_inside(&s->y, from, end))
            for (long i = from; i < end; i++)
                low = split(LOAD(s->x.places[i] + s->x.offset), LOAD(s->y.places[i] + s->y.offset), s->to + i * SIDE,
                            of_part, low);
        else
            for (long i = from; i < end; i++)
                low = split(line_of(&s->x, i), line_of(&s->y, i), s->to + i * SIDE, of_part, low);
        s->low = low;
    }
}

/* What is split while other tiles are multiplied: `across` tiles of a matrix from `first` on, a step after the other,
   to strips or panels at `to`: `count` in all, of which `next` comes next. `rate` of 1024 of them are due with each
   step that is multiplied. */
typedef struct { const Matrix *matrix; uint32_t *to; long first, across, next, count, rate, due; Splitting splitting; }
    Later;

static void set_later(Later *later, const Matrix *m, long first, long across, uint32_t *to, long multiplied, int cuts)
{
    later->matrix = m;
    later->to = to;
    later->first = first;
    later->across = across;
    later->next = 0;
    later->count = PIECES(m->terms, STEP) * across;
    later->rate = PIECES(later->count * 1024, MOST(multiplied, 1));
    later->due = 0;
    later->splitting.cuts = cuts;
    later->splitting.ahead.rows = 0;
    const long lower = m->rows - (first + across) * m->of_tile;
    if (m->windows) return;
    if (!m->along && m->terms > STEP)
        later->splitting.ahead = next_terms(m->at + STEP * m->row, m->row, 1, m->terms - STEP, m->rows);
    if (m->along && lower > 0 && m->row == m->terms)
        later->splitting.ahead = next_terms(m->at + (m->rows - lower) * m->row, m->row, 1,
                                            LEAST(lower, across * m->of_tile), m->terms);
}

/* Begins with the next tile. Returns whether there is one. */
static int begin_next(Later *later)
{
    const Matrix *m = later->matrix;
    while (later->next < later->count) {
        const long step = later->next / later->across, number = later->next % later->across;
        const long tile = later->first + number;
        const long place = (number / 2 * (later->count / later->across) + step) * PARTS * 2 + tile % 2;
        later->next++;
        if (tile * m->of_tile >= m->rows) continue;
        begin_to_split(&later->splitting, m, number, tile, step, later->to + place * m->of_tile * SIDE);
        return 1;
    }
    return 0;
}

static inline int begin_due(Later *later)
{
    if (later->next == later->count || (later->due += later->rate) < 1024) return 0;
    later->due -= 1024;
    return begin_next(later);
}

static inline void split_rest(Later *later)
{
    while (begin_next(later))
        for (int phase = 0; phase < PHASES; phase++) split_phase(&later->splitting, phase);
}

static inline long tiles_of(const Matrix *m) { return PIECES(m->rows, 2 * m->of_tile) * 2; }
static inline int has_nan(Lanes x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

/* `across` tiles of a matrix, from `first` on. Returns whether their parts do not add up to them, which they do behind
   cuts. */
static int split_tiles(const Matrix *m, long first, long across, uint32_t *to, int cuts)
{
    Later later;
    later.splitting.low = ALL(0);
    set_later(&later, m, first, across, to, 1, cuts);
    split_rest(&later);
    return has_nan(later.splitting.low);
}
#endif
"""

SPLIT_PRODUCT = r"""
#if defined(MATRIX_UNIT)
#ifndef LOAD_TILE
#define LOAD_TILE _tile_loadd
#define STORE_TILE _tile_stored
#define CLEAR_TILE _tile_zero
#define MULTIPLY_TILES _tile_dpbf16ps
#define SHAPE_TILES _tile_loadconfig
#define LEAVE_TILES _tile_release
#endif

/* A piece of work has up to MOST_ROWS rows of a, DEEP terms at a time, half as many where both matrices are split as it
   goes, and MOST_WIDE panels of b, which stay in the second cache. */
enum { MOST_ROWS = 256, DEEP = 512, MOST_WIDE = 8, HALF_OF_B = MOST_WIDE * DEEP / STEP * OF_STEP / 2 };
enum { HALF_OF_A = MOST_ROWS / STRIP * DEEP / STEP * OF_STEP / 2, FEW_ROWS = 8 * SIDE };
typedef struct { uint8_t palette, begin, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } TileShapes;

#define EACH_TILE(DO) DO(0, 4, 6) if (tiles == 2) { DO(1, 5, 6) } if (panels == 2) { DO(2, 4, 7) } \
                      if (tiles == 2 && panels == 2) { DO(3, 5, 7) }
#define MULTIPLY(c, a, b) MULTIPLY_TILES(c, a, b);
#define LOAD_A(part) LOAD_TILE(4, a + (part) * 2 * of_tile, 64); \
                     if (tiles == 2) LOAD_TILE(5, a + ((part) * 2 + 1) * of_tile, 64);
#define LOAD_B(part) LOAD_TILE(6, b + (part) * 2 * OF_TILE, 64); \
                     if (panels == 2) LOAD_TILE(7, b + ((part) * 2 + 1) * OF_TILE, 64);
#define SPLIT(phase) if (first) split_phase(&later[0].splitting, phase); \
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
        LOAD_A(2) LOAD_B(0) EACH_TILE(MULTIPLY) SPLIT(0)
        LOAD_A(1) EACH_TILE(MULTIPLY) SPLIT(1)
        LOAD_B(1) EACH_TILE(MULTIPLY) SPLIT(2)
        LOAD_A(0) EACH_TILE(MULTIPLY) SPLIT(3)
        LOAD_B(0) EACH_TILE(MULTIPLY) SPLIT(4)
        LOAD_B(2) EACH_TILE(MULTIPLY) SPLIT(5)
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
            for (int v = 0; v < 2; v++) out[r][v] = LOAD(sums[LEAST(first + r, STRIP - 1)] + v * SIDE);
        for (long k = 0; k < steps; k++)
            for (int upper = 0; upper < 2; upper++) {
                float left[SOME][SIDE];
                for (int r = 0; r < SOME; r++) {
                    const long row = LEAST(first + r, rows - 1);
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
        for (int r = 0; r < LEAST(rows - first, SOME); r++)
            for (int v = 0; v < 2; v++) STORE(sums[first + r] + v * SIDE, out[r][v]);
    }
}

/* c = start + a b, and what `end` says, for `rows` rows of a strip, `of_tile` of a tile, and `columns` of a panel;
   start of zeros if it is NULL; where it `joins`, of whole numbers. The lines of `next_c` are fetched meanwhile. */
static void split_tile(const uint32_t *a, long of_tile, long rows, const uint32_t *b, long columns, const float *start,
                       long start_row, float *c, long c_row, long steps, const End *end, int joins, Later *later,
                       const float *next_c)
{
    const int tiles = PIECES(rows, of_tile), panels = PIECES(columns, SIDE);
    float room[STRIP][STRIP] __attribute__((aligned(64)));
    const int whole = rows == tiles * of_tile && columns == panels * SIDE && !joins;
    if (!whole && (start || joins)) {
        for (long r = 0; r < rows; r++)
            for (long j = 0; j < STRIP; j += SIDE) {
                const Part part = columns > j ? first_numbers(columns - j) : 0;
                STORE(room[r] + j, start ? LOAD_PART(start + r * start_row + j, part) : ALL(0));
            }
        start = room[0];
        start_row = STRIP;
    }
    const int direct = whole && !end->norm && !end->rectifies;
    float *to = direct ? c : room[0];
    const long to_row = direct ? c_row : STRIP, lines = PIECES(tiles * of_tile, steps);
#define BEGIN(n, of_a, of_b) \
    if (start) LOAD_TILE(n, start + (n) % 2 * of_tile * start_row + (n) / 2 * SIDE, start_row * 4); else CLEAR_TILE(n);
#define FINISH(n, of_a, of_b) STORE_TILE(n, to + (n) % 2 * of_tile * to_row + (n) / 2 * SIDE, to_row * 4);
    if (joins) multiply_joined(a, of_tile, rows, b, steps, room);
    else {
        EACH_TILE(BEGIN)
        if (tiles == 2 && panels == 2) multiply(2, 2, a, of_tile * SIDE, b, steps, later, next_c, c_row, lines);
        else if (tiles == 2) multiply(2, 1, a, of_tile * SIDE, b, steps, later, next_c, c_row, lines);
        else if (panels == 2) multiply(1, 2, a, of_tile * SIDE, b, steps, later, next_c, c_row, lines);
        else multiply(1, 1, a, of_tile * SIDE, b, steps, later, next_c, c_row, lines);
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
            Lanes x = LOAD(room[r] + j);
            if (end->norm) x = (x - mean) * scale + shift;
            STORE_PART(c + r * c_row + j, part, end->rectifies ? RECTIFY(x) : x);
        }
    }
}


/* How many rows a tile of a has: so few that the last one is nearly full. */
static inline long tile_rows(long rows) { return rows < FEW_ROWS ? PIECES(rows, PIECES(rows, SIDE)) : SIDE; }

/* What `opbox_product` computes, by the matrix unit; `packed` is a where it `packs_a`, else b. Windows are of a where
   its terms lie along, else of b. */
static void split_product(const float *all_a, const float *all_b, const float *packed, const float *bias, float *all_c,
                          float *sums, const Sizes *sizes, const Windows *windows, const float *addend,
                          const float *norm, int threads)
{
    const Sizes s = *sizes;
    const int a_along = s.a_term == 1, b_along = s.b_term == 1;
    const long a_row = a_along ? s.a_row : s.a_term, b_row = b_along ? s.b_column : s.b_term;
    const long panels = PIECES(s.columns, STRIP), slab = PIECES(PIECES(s.terms, s.slabs), STEP) * STEP;
    const long of_tile = tile_rows(s.rows), of_strip = 2 * of_tile;
    const int is_long = packed && (a_along || s.packs_a);
    const long depth = PIECES(PIECES(slab, PIECES(slab, is_long ? DEEP : DEEP / 2)), STEP) * STEP;
    const long apart = PIECES(threads, s.batch * s.slabs * PIECES(panels, 2)); /* blocks that all threads need */
    const long most_blocks = MOST(PIECES(s.rows, MOST_ROWS), LEAST(apart, PIECES(s.rows, of_strip)));
    const long block = PIECES(PIECES(s.rows, most_blocks), of_strip) * of_strip, blocks = PIECES(s.rows, block);
    const long all_steps = PIECES(s.terms, STEP), others = s.batch * s.slabs * blocks;
    const uint32_t *packed_a = s.packs_a ? (const uint32_t *)packed : 0, *packed_b = s.packs_a ? 0 : (void *)packed;
    const long of_strips = PIECES(s.rows, of_strip) * all_steps * PARTS * of_strip * SIDE;
    const uint32_t *cut_a = packed_a + of_strips, *cut_b = packed_b + panels * all_steps * OF_STEP;
    const long wide = (packed_b ? 2 : 1) * HALF_OF_B / OF_STEP / (depth / STEP);
    long most = panels;
    while (most > 2 && others * PIECES(panels, most) < threads) most = PIECES(most, 2);
    const long group = PIECES(most, PIECES(most, wide));
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
        FLUSHED PIECES_OF(units, unit, end, most, panels) {
            const long from = unit % panels, first = unit / panels % blocks * block;
            const long number = unit / panels / blocks % s.slabs, item = unit / panels / blocks / s.slabs;
            const float *a = all_a + item * s.rows * s.terms, *b = all_b + item * s.terms * s.columns;
            float *c = all_c + item * s.rows * s.columns;
            const long count = end - unit, rows = LEAST(s.rows - first, block), begin = number * slab;
            const long stop = LEAST(s.terms, begin + slab), slices = PIECES(stop - begin, depth);
            float *out = number ? sums + (number - 1) * s.rows * s.columns : c;
            const long out_row = number ? s.columns : s.c_row;
            const float *added_to = number ? 0 : bias && addend ? c : addend;
            if (bias && added_to)
                for (long r = first; r < first + rows; r++)
                    for (long j = from * STRIP; j < LEAST(s.columns, (from + count) * STRIP); j++)
                        c[r * s.c_row + j] = addend[r * s.c_row + j] + bias[j];
            Matrix of_a[2], of_b[2];
            Later later[2]; /* of a, and of b */
            later[0].splitting.low = later[1].splitting.low = ALL(0);
            int joins = 0;
            for (long p = from; packed_b && p < from + count; p++) joins |= cut_b[p];
            for (long r = 0; packed_a && r < rows; r += of_strip) joins |= cut_a[(first + r) / of_strip];
            /* What a turn multiplies, slices of terms for groups of panels, the turn before has split. */
            for (long turn = 0, now = 0; turn <= PIECES(count, group) * slices; turn++, now = !now) {
                const int goes_on = turn < PIECES(count, group) * slices;
                if (goes_on) {
                    const long q = from + turn / slices * group, k = begin + turn % slices * depth;
                    const long terms = LEAST(stop - k, depth);
                    const long columns = LEAST(s.columns - q * STRIP, LEAST(from + count - q, group) * STRIP);
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
                const long width = LEAST(from + count - q, group), steps = PIECES(this_a->terms, STEP);
                const long multiplied = PIECES(rows, of_strip) * width * steps;
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
                        const End end = {own_norm, PIECES(s.columns, COLUMNS) * COLUMNS, s.rectifies && finishes};
                        float *to = out + (first + r) * out_row + p * STRIP;
                        const float *start = base ? base + (to - out) : added;
                        const float *next = p + 1 < q + width ? to + STRIP : to + of_strip * out_row + (q - p) * STRIP;
                        split_tile(left, of_tile, LEAST(rows - r, of_strip), panel, LEAST(s.columns - p * STRIP, STRIP),
                                   start, base ? out_row : 0, to, out_row, steps, &end, joins, later, next);
                    }
                }
                split_rest(later);
                split_rest(later + 1);
            }
        }
        LEAVE_TILES();
        if (s.slabs > 1) {
            _Pragma("omp barrier")
            const long all = omp_get_num_threads(), me = omp_get_thread_num();
            for (long r = me * s.rows / all; r < (me + 1) * s.rows / all; r++)
                for (long n = 0; n < s.slabs - 1; n++)
                    for (long j = 0; j < s.columns; j++)
                        all_c[r * s.c_row + j] += sums[(n * s.rows + r) * s.columns + j];
        }
    }
}

/* All strips of a, and behind them whether each is split by cuts. */
static void split_strips(const float *a, uint32_t *packed, const Sizes *sizes, int threads)
{
    const Sizes s = *sizes;
    const int along = s.a_term == 1;
    const long of_tile = tile_rows(s.rows), of_strip = 2 * of_tile, strips = PIECES(s.rows, of_strip);
    const long numbers = PIECES(s.terms, STEP) * PARTS * of_strip * SIDE;
    uint32_t *cuts = packed + strips * numbers;
    IN_THREADS(n, strips, 1) {
        const Matrix rows = {a + n * of_strip * s.a_row, along ? s.a_row : s.a_term, s.terms,
                             LEAST(s.rows - n * of_strip, of_strip), 1, of_tile, along, 0};
        cuts[n] = split_tiles(&rows, 0, 2, packed + n * numbers, 0);
        if (cuts[n]) split_tiles(&rows, 0, 2, packed + n * numbers, 1);
    }
}

/* All panels of b, and behind them whether each is split by cuts. Of windows that a convolution takes, b is its weight
   (filters, channels, taps), whose terms are channel by channel and tap by tap; or filter by filter and tap by tap,
   from the last tap on, where `turned`, which is for the gradient of data. */
static void split_panels(const float *b, uint32_t *packed, const Sizes *sizes, long taps, int turned, int threads)
{
    const Sizes s = *sizes;
    const long panels = PIECES(s.columns, STRIP), terms = s.terms / taps, of_tap = PIECES(terms, STEP) * OF_STEP;
    const int along = taps > 1 ? !turned : s.b_term == 1;
    const long column = taps == 1 ? s.b_column : turned ? taps : s.terms;
    const long row = taps > 1 ? taps * (turned ? s.columns : terms) : along ? s.b_column : s.b_term;
    uint32_t *cuts = packed + panels * taps * of_tap;
    IN_THREADS(p, panels, 1)
        for (int by_cuts = cuts[p] = 0; by_cuts < 2; by_cuts++) {
            for (long tap = 0; tap < taps; tap++) {
                const Matrix columns = {b + p * STRIP * column + (turned ? taps - 1 - tap : tap), row, terms,
                                        LEAST(s.columns - p * STRIP, STRIP), taps, SIDE, along, 1};
                cuts[p] |= split_tiles(&columns, 0, 2, packed + (p * taps + tap) * of_tap, by_cuts);
            }
            if (!cuts[p]) break;
        }
}
#endif
"""
