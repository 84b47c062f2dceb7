/* A tile of a product in blocks, and the sizes of blocks. */
#pragma once

#include "vectors.h"
#include "product_term.h"

/* A tile of the result, ROWS by PANEL, stays in registers for DEPTH terms, LONG rows of a in the second cache. Where a
   is packed too, that is SHORT rows, a multiple of ROWS, of SHALLOW terms; MAX_SHORT_ROWS where windows are laid out
   for each such part of a. GROUP panels of b are packed together. While a tile is worked off, what comes next is
   fetched: b's next group, on a processor with small vectors beside MAX_ROWS_TO_PREFETCH rows alone, and a's next rows.
   Work of up to ALONE multiplications is one thread's. A LINE of the cache holds so many numbers; while b or a is being
   packed, what lies PREFETCH_TERMS terms ahead is fetched. Fewer than THIN terms are added up CHUNK columns and
   THIN_ROWS rows at a time; a LARGE result of them is written past the caches. A thread takes work of a PIECE at a
   time, some 20 us, or MANY small ones; where a is packed or copied, all columns of some rows, and where its rows are
   TALL, more than the second cache has, a GROUP. Packed b has a multiple of COLUMNS. Rows of a that lie a multiple of
   SETS numbers apart evict one another from that cache, and are copied for WIDE results and more. */
enum { LARGE_VECTORS = WIDTH == 16, ROWS = 6, VECTORS = LARGE_VECTORS ? 4 : 2, PANEL = VECTORS * WIDTH };
enum { DEPTH = 512, SHALLOW = 256, LONG = LARGE_VECTORS ? 288 : 144, MAX_ROWS_TO_PREFETCH = 96 };
enum { SHORT = LARGE_VECTORS ? 252 : 258, MAX_SHORT_ROWS = LARGE_VECTORS ? 2 * SHORT : SHORT };
enum {
    GROUP = 64 / PANEL,
    ALONE = 1 << 19,
    LINE = 16,
    PREFETCH_TERMS = 8,
    THIN = 16,
    THIN_ROWS = 64,
    CHUNK = 512,
    LARGE = 1 << 22
};
enum { PIECE = LARGE_VECTORS ? 1 << 21 : 1 << 20, COLUMNS = 16, MANY = 16, SETS = 1024, WIDE = 64, TALL = 1 << 17 };
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))
#define CEIL_DIV(all, most) (((all) + (most) - 1) / (most))
// clang-format off: it takes these products for pointers
#define MAX_NUMBERS_OF_A MAX(MAX_SHORT_ROWS * SHALLOW, LONG * (DEPTH + LINE))
// clang-format on

typedef struct {
    long rows, terms, columns, a_row, a_term, b_term, b_column, c_row, slabs, relu, splits, packs_a;
    long batch; /* of such products, whose matrices lie one after the other */
} Sizes;

/* c = addend + bias, for `rows` rows from `first` on and the columns from `from` up to `to`. */
static void add_bias(float *c, const float *addend, const float *bias, const Sizes *s, long first, long rows, long from,
                     long to)
{
    for (long r = first; r < first + rows; r++)
        for (long j = from; j < MIN(s->columns, to); j++) c[r * s->c_row + j] = addend[r * s->c_row + j] + bias[j];
}

/* In a region, behind its products: adds the sums of all slabs but the first to c. */
static void add_slabs(float *c, const float *sums, const Sizes *s)
{
    if (s->slabs == 1) return;
    _Pragma("omp barrier");
    const long all = omp_get_num_threads(), me = omp_get_thread_num();
    for (long r = me * s->rows / all; r < (me + 1) * s->rows / all; r++)
        for (long n = 0; n < s->slabs - 1; n++)
            for (long j = 0; j < s->columns; j++) c[r * s->c_row + j] += sums[(n * s->rows + r) * s->columns + j];
}

/* Lines to be fetched: `lines` of each of `rows` rows, from `line` of the first one on. */
typedef struct {
    const char *at;
    long rows, step, lines, line;
} Ahead;

static inline Ahead next_terms(const float *b, long term, long column, long depth, long columns)
{
    const long rows = column == 1 ? depth : columns, across = column == 1 ? columns : depth;
    return (Ahead){(const char *)b, rows, (column == 1 ? term : column) * (long)sizeof(float), CEIL_DIV(across, 16), 0};
}

/* Goes on by `count` lines of a row. */
static inline void go_on(Ahead *ahead, long count)
{
    ahead->line += count;
    if (ahead->line < ahead->lines) return;
    ahead->line = 0;
    ahead->at += ahead->step;
    ahead->rows--;
}

/* What is done while a tile is worked off: NEXT fetches the tile's next rows of a, from `next` on; LINES the next
   `share` lines of the two lists `ahead`; COPY packs b, whose rows lie `b_row` numbers apart, to `copy`. */
enum { NOTHING, NEXT, LINES, COPY };
typedef struct {
    int task;
    const float *next;
    Ahead *ahead;
    long share;
    float *copy;
    long b_row;
} Meanwhile;

/* What is done to a number of a finished sum, by its column: x becomes (x - norm[0]) norm[1] + norm[2], three rows that
   lie `row` apart, unless norm is NULL; then the larger of that and 0 where it `relu`. */
typedef struct {
    const float *norm;
    long row;
    int relu;
} End;

/* c = start + a b, and what `end` says, for `rows` rows of a panel; start of zeros if it is NULL. The next rows of
   start, and the lines of c that the next tile writes, are fetched meanwhile. */
static inline __attribute__((always_inline)) void tile(const int rows, const int vectors, const int task,
                                                       const float *restrict a, long row, long term,
                                                       const float *restrict b, const float *start, long start_row,
                                                       float *restrict c, long c_row, long depth, const End *end,
                                                       const Meanwhile *m)
{
    Lanes sums[ROWS][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++)
            sums[r][v] = start ? LOAD(start + r * start_row + v * WIDTH) : ALL(0);
    if (start && start_row) UNROLL for (int r = 0; r < ROWS; r++) __builtin_prefetch(start + (rows + r) * start_row);
    if (LARGE_VECTORS && c != start)
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(c + (rows + r) * c_row + v * WIDTH, 1);
    const long b_row = task == COPY ? m->b_row : vectors * WIDTH;
    if (task == NEXT)
        for (long from = 0; from < depth; from += LINE) {
            const long to = MIN(from + LINE, depth);
            UNROLL for (int r = 0; r < ROWS; r++) __builtin_prefetch(m->next + r * row + from);
            for (long k = from; k < to; k++) ADD_TERM(rows, vectors, a + k * term, row, b + k * b_row, sums, 0);
        }
    else if (task == COPY)
        for (long k = 0; k < depth; k++) {
            UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(b + (k + PREFETCH_TERMS) * b_row + v * WIDTH);
            ADD_TERM(rows, vectors, a + k * term, row, b + k * b_row, sums, m->copy + k * vectors * WIDTH);
        }
    else {
        long k = 0;
        if (task == LINES)
            for (Ahead *ahead = m->ahead; ahead < m->ahead + 2; ahead++)
                for (long most = MIN(m->share, depth), count; ahead->rows && k < most; go_on(ahead, count)) {
                    const char *at = ahead->at + ahead->line * 64;
                    count = MIN(most - k, ahead->lines - ahead->line);
                    for (const char *end = at + count * 64; at < end; at += 64, k++) {
                        __builtin_prefetch(at, 0, 2);
                        ADD_TERM(rows, vectors, a + k * term, row, b + k * b_row, sums, 0);
                    }
                }
        for (; k < depth; k++) ADD_TERM(rows, vectors, a + k * term, row, b + k * b_row, sums, 0);
    }
    if (end->norm)
        UNROLL for (int v = 0; v < vectors; v++) {
            const float *at = end->norm + v * WIDTH;
            const Lanes mean = LOAD(at), scale = LOAD(at + end->row), shift = LOAD(at + 2 * end->row);
            UNROLL for (int r = 0; r < rows; r++) sums[r][v] = (sums[r][v] - mean) * scale + shift;
        }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++)
            STORE(c + r * c_row + v * WIDTH, end->relu ? RECTIFY(sums[r][v]) : sums[r][v]);
}

#define DO_TILE(rows, vectors, task) \
    if (packed) tile(rows, vectors, task, a, 1, ROWS, b, start, start_row, c, c_row, depth, end, m); \
    else tile(rows, vectors, task, a, row, 1, b, start, start_row, c, c_row, depth, end, m)
#define TILE(rows, vectors, task) case ROWS * (vectors) + (rows) - 1: DO_TILE(rows, vectors, task); break;
#define TILES(vectors, task) \
    TILE(6, vectors, task) TILE(1, vectors, task) TILE(2, vectors, task) TILE(3, vectors, task) \
    TILE(4, vectors, task) TILE(5, vectors, task)
/* a is `packed`, or as it lies. Panels that are copied are whole ones. */
static void any_tile(int rows, int vectors, const float *a, long row, int packed, const float *b, const float *start,
                     long start_row, float *c, long c_row, long depth, const End *end, const Meanwhile *m)
{
    const int number = ROWS * vectors + rows - 1, whole = rows == ROWS && vectors == VECTORS;
    if (LARGE_VECTORS && m->task == COPY) switch (number) { TILES(VECTORS, COPY) }
    else if (!LARGE_VECTORS && m->task == NEXT && whole) DO_TILE(ROWS, VECTORS, NEXT);
    else if (m->task == LINES && whole) DO_TILE(ROWS, VECTORS, LINES);
    else switch (number) {
        TILES(1, NOTHING) TILES(2, NOTHING)
#if defined(__AVX512F__)
        TILES(3, NOTHING) TILES(4, NOTHING)
#endif
    }
}

/* The same for a panel of fewer columns. */
UNUSED static void narrow_tile(int rows, long columns, const float *a, long row, int packed, const float *b,
                        const float *start, long start_row, float *c, long c_row, long depth, const End *end,
                        const Meanwhile *m)
{
    const int vectors = CEIL_DIV(columns, WIDTH);
    if (columns % WIDTH == 0) {
        any_tile(rows, vectors, a, row, packed, b, start, start_row, c, c_row, depth, end, m);
        return;
    }
    Part parts[VECTORS];
    for (int v = 0; v < vectors; v++) parts[v] = first_numbers(columns - v * WIDTH);
    float whole[ROWS * PANEL];
    for (int r = 0; start && r < rows; r++)
        for (int v = 0; v < vectors; v++)
            STORE(whole + r * PANEL + v * WIDTH, LOAD_PART(start + r * start_row + v * WIDTH, parts[v]));
    any_tile(rows, vectors, a, row, packed, b, start ? whole : 0, PANEL, whole, PANEL, depth, end, m);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            STORE_PART(c + r * c_row + v * WIDTH, parts[v], LOAD(whole + r * PANEL + v * WIDTH));
}

/* How wide a panel of `columns` columns is, or of all but the first of more: whole vectors. */
static inline long width_of(long columns) { return MIN(PANEL, CEIL_DIV(columns, WIDTH) * WIDTH); }
