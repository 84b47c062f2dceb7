/* Splits a product's matrices for a processor's matrix unit: numbers in three parts, and tiles of them.

   A tile is split at once, or in phases between instructions of the unit. Its rows lie together, or a row apart, or
   are the windows of a convolution. What has parts that do not add up to it is found meanwhile. split_product.h says
   what is computed of the parts. */
#pragma once

#include "product_tiles.h"
#include "windows.h"

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

/* SIDE x SIDE numbers transposed. */
static inline Lines transposed(Lines lines, float *to)
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
enum { MAX_TAPS = 32 };
typedef struct { const float *at[SIDE]; uint32_t down[MAX_TAPS], across[MAX_TAPS]; } Places;

static void find_places(Places *places, const float *x, const Windows *w, long first, long count)
{
    long across = first % w->out_width, down = first / w->out_width % w->out_height;
    long image = first / w->out_width / w->out_height;
    for (long i = 0; i < w->down_kernel; i++) places->down[i] = 0;
    for (long j = 0; j < w->across_kernel; j++) places->across[j] = 0;
    for (long n = 0; n < MIN(count, SIDE); n++) {
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

/* A tile of a step that is being split: rows of numbers, which are to be transposed first or are not, and the place of
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
    float scratch[2][SIDE * SIDE] __attribute__((aligned(64)));
} Splitting;

static void begin_to_split(Splitting *s, const Matrix *m, long number, long tile, long step, uint32_t *to)
{
    const long count = MIN(m->rows - tile * m->of_tile, m->of_tile), terms = m->terms - step * STEP;
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
        const long beyond = MAX(terms - SIDE, 0);
        const Part lanes = first_numbers(count);
        s->x = (Lines){.at = at, .row = m->row, .rows = m->along ? count : MIN(terms, SIDE), .apart = m->apart,
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
        if (s->turns) s->x = transposed(s->x, s->scratch[0]);
    } else if (phase == 1) {
        if (s->turns) s->y = transposed(s->y, s->scratch[1]);
    } else {
        const long from = (phase - 2) * QUARTER, end = MIN(from + QUARTER, s->rows), of_part = 2 * s->rows * SIDE;
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
    later->count = CEIL_DIV(m->terms, STEP) * across;
    later->rate = CEIL_DIV(later->count * 1024, MAX(multiplied, 1));
    later->due = 0;
    later->splitting.cuts = cuts;
    later->splitting.ahead.rows = 0;
    const long lower = m->rows - (first + across) * m->of_tile;
    if (m->windows) return;
    if (!m->along && m->terms > STEP)
        later->splitting.ahead = next_terms(m->at + STEP * m->row, m->row, 1, m->terms - STEP, m->rows);
    if (m->along && lower > 0 && m->row == m->terms)
        later->splitting.ahead = next_terms(m->at + (m->rows - lower) * m->row, m->row, 1,
                                            MIN(lower, across * m->of_tile), m->terms);
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

static inline long tiles_of(const Matrix *m) { return CEIL_DIV(m->rows, 2 * m->of_tile) * 2; }
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
#else
int opbox_product_unit(void) { return 0; }
#endif
