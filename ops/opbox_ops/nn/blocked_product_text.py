"""The C of products in blocks; `blocked_product` says what it computes, and compiles it."""

from __future__ import annotations

__all__ = ["TEXT"]

TEXT = r"""
/* A tile of the result, ROWS by PANEL, stays in registers for DEPTH terms, LONG rows of a in the second cache. Where a
   is packed too, that is SHORT rows, a multiple of ROWS, of SHALLOW terms; MOST_SHORT where windows are laid out for
   each such part of a. GROUP panels of b are packed together. While a tile is worked off, what comes next is fetched:
   b's next group, on a processor with small vectors beside FEW rows alone, and a's next rows. Work of up to ALONE
   multiplications is one thread's. A LINE of the cache holds so many numbers; while b or a is being packed, what lies
   SOON terms ahead is fetched. Fewer than THIN terms are added up CHUNK columns and LOT rows at a time; a LARGE result
   of them is written past the caches. A thread takes work of a PIECE at a time, some 20 us, or MANY small ones; where a
   is packed or copied, all columns of some rows, and where its rows are TALL, more than the second cache has, a GROUP.
   Packed b has a multiple of COLUMNS. Rows of a that lie a multiple of SETS numbers apart evict one another from that
   cache, and are copied for WIDE results and more. */
enum { LARGE_VECTORS = WIDTH == 16, ROWS = 6, VECTORS = LARGE_VECTORS ? 4 : 2, PANEL = VECTORS * WIDTH };
enum { DEPTH = 512, SHALLOW = 256, LONG = LARGE_VECTORS ? 288 : 144, FEW = 96 };
enum { SHORT = LARGE_VECTORS ? 252 : 258, MOST_SHORT = LARGE_VECTORS ? 2 * SHORT : SHORT };
enum { GROUP = 64 / PANEL, ALONE = 1 << 19, LINE = 16, SOON = 8, THIN = 16, LOT = 64, CHUNK = 512, LARGE = 1 << 22 };
enum { PIECE = LARGE_VECTORS ? 1 << 21 : 1 << 20, COLUMNS = 16, MANY = 16, SETS = 1024, WIDE = 64, TALL = 1 << 17 };
#define LEAST(x, y) ((x) < (y) ? (x) : (y))
#define MOST(x, y) ((x) > (y) ? (x) : (y))
#define PIECES(all, most) (((all) + (most) - 1) / (most))
#define MOST_OF_A MOST(MOST_SHORT * SHALLOW, LONG * (DEPTH + LINE))

typedef struct {
    long rows, terms, columns, a_row, a_term, b_term, b_column, c_row, slabs, rectifies;
    long batch; /* of such products, whose matrices lie one after the other */
} Sizes;

/* Lines to be fetched: `lines` of each of `rows` rows, from `line` of the first one on. */
typedef struct { const char *at; long rows, step, lines, line; } Ahead;

static inline Ahead next_terms(const float *b, long term, long column, long depth, long columns)
{
    const long rows = column == 1 ? depth : columns, across = column == 1 ? columns : depth;
    return (Ahead){(const char *)b, rows, (column == 1 ? term : column) * (long)sizeof(float), PIECES(across, 16), 0};
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
typedef struct { int task; const float *next; Ahead *ahead; long share; float *copy; long b_row; } Meanwhile;

/* What is done to a number of a finished sum, by its column: x becomes (x - norm[0]) norm[1] + norm[2], three rows that
   lie `row` apart, unless norm is NULL; then the larger of that and 0 where it `rectifies`. */
typedef struct { const float *norm; long row; int rectifies; } End;

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
            const long to = LEAST(from + LINE, depth);
            UNROLL for (int r = 0; r < ROWS; r++) __builtin_prefetch(m->next + r * row + from);
            for (long k = from; k < to; k++) ADD_TERM(rows, vectors, a + k * term, row, b + k * b_row, sums, 0);
        }
    else if (task == COPY)
        for (long k = 0; k < depth; k++) {
            UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(b + (k + SOON) * b_row + v * WIDTH);
            ADD_TERM(rows, vectors, a + k * term, row, b + k * b_row, sums, m->copy + k * vectors * WIDTH);
        }
    else {
        long k = 0;
        if (task == LINES)
            for (Ahead *ahead = m->ahead; ahead < m->ahead + 2; ahead++)
                for (long most = LEAST(m->share, depth), count; ahead->rows && k < most; go_on(ahead, count)) {
                    const char *at = ahead->at + ahead->line * 64;
                    count = LEAST(most - k, ahead->lines - ahead->line);
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
            STORE(c + r * c_row + v * WIDTH, end->rectifies ? RECTIFY(sums[r][v]) : sums[r][v]);
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
static void narrow_tile(int rows, long columns, const float *a, long row, int packed, const float *b,
                        const float *start, long start_row, float *c, long c_row, long depth, const End *end,
                        const Meanwhile *m)
{
    const int vectors = PIECES(columns, WIDTH);
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
static inline long width_of(long columns) { return LEAST(PANEL, PIECES(columns, WIDTH) * WIDTH); }

/* b to [panel][term][column], a panel every `of_panel` numbers; zeros beyond its columns. */
static void pack_b(const float *b, long term, long column, long depth, long columns, float *to, long of_panel)
{
    const long whole = column == 1 ? columns / PANEL : 0;
    for (long k = 0; k < depth; k++)
        for (long p = 0; p < whole; p++) {
            const float *from = b + k * term + p * PANEL;
            __builtin_prefetch(from + SOON * term);
            for (int v = 0; v < PANEL; v += WIDTH) STORE(to + p * of_panel + k * PANEL + v, LOAD(from + v));
        }
    for (long p = whole; p * PANEL < columns; p++) {
        const long count = LEAST(columns - p * PANEL, PANEL), width = width_of(count);
        const long turned = term == 1 ? count / 8 * 8 : 0, deep = depth / LINE * LINE;
        const float *panel = b + p * PANEL * column;
        float *target = to + p * of_panel;
        for (long k = 0; k < deep; k += LINE) /* all of a line at once: others may have its place in the cache soon */
            for (long j = 0; j < turned; j += 8) {
                for (int i = 0; i < 8; i++) __builtin_prefetch(panel + (j + i) * column + k + LINE, 0, 2);
                for (long i = k; i < k + LINE; i += 8)
                    turn(panel + i + j * column, column, target + i * width + j, width);
            }
        for (long k = 0; k < depth; k++)
            for (long j = k < deep ? turned : 0; j < width; j++)
                target[k * width + j] = j < count ? panel[k * term + j * column] : 0;
    }
}

/* a, whose rows lie together for each term, to [ROWS of them][term][ROWS]. */
static void pack_a(const float *a, long term, long rows, long depth, float *to)
{
    const long last = (rows - 1) / ROWS, count = rows - last * ROWS;
    for (long k = 0; k < depth; k++) {
        const float *from = a + k * term;
        float *target = to + k * ROWS;
        for (long r = 0; r < rows; r += LINE) __builtin_prefetch(from + SOON * term + r);
        for (long r = 0; r < last; r++, from += ROWS, target += ROWS * depth) {
            _mm_storeu_ps(target, _mm_loadu_ps(from));
            _mm_storel_epi64((void *)(target + 4), _mm_loadl_epi64((const void *)(from + 4)));
        }
        for (long i = 0; i < count; i++) target[i] = from[i];
    }
}

/* Rows of a for `depth` terms to rows that lie a LINE further apart than that. */
static void copy_a(const float *a, long row, long rows, long depth, float *to)
{
    for (long r = 0; r < rows; r++) {
        const float *from = a + r * row;
        float *target = to + r * (depth + LINE);
        long k = 0;
        for (; k + WIDTH <= depth; k += WIDTH) STORE(target + k, LOAD(from + k));
        STORE(target + k, LOAD_PART(from + k, first_numbers(depth - k)));
    }
}

static inline long between(long x, long low, long high) { return x < low ? low : x > high ? high : x; }

/* A panel of the matrix of windows over x, (images, rows and columns of out) by (rows and columns of the kernel,
   channels): its columns from `column` on, `columns` of them, and `depth` rows from `row` on. Padding is zeros. Columns
   that lie together in x are copied together. */
static void pack_windows(const float *x, const Windows *w, long column, long columns, long row, long depth, float *to)
{
    const long width = width_of(columns);
    const long step = w->across * w->channels, span = w->across_kernel * w->channels;
    const long of_line = w->width * w->channels, first_line = row / w->out_width, first_p = row % w->out_width;
    const long first_image = first_line / w->out_height, first_row = first_line % w->out_height;
    for (long j = 0, lanes; j < width; j += lanes) {
        const long at = column + j, in_line = at % span;
        const int together = columns - j >= 4 && j + 4 <= width && w->dilate_across == 1 && in_line + 4 <= span;
        lanes = w->channels % width == 0 ? width : w->channels % WIDTH == 0 ? WIDTH
                                                 : w->channels % 4 == 0 || together ? 4 : 1;
        const long y = at / span * w->dilate_down - w->above;
        const long left = in_line / w->channels * w->dilate_across - w->before;
        const long last = (in_line + lanes - 1) / w->channels * w->dilate_across - w->before;
        const long begin = left < 0 ? PIECES(-left, w->across) : 0;
        const long end = between(w->width - 1 - last < 0 ? 0 : (w->width - 1 - last) / w->across + 1, 0, w->out_width);
        long out_row = first_row, p = first_p;
        const float *image = x + first_image * w->height * of_line + in_line % w->channels + left * w->channels;
        float *target = to + j;
        for (long left_over = depth; left_over > 0; p = 0) {
            const long stop = LEAST(w->out_width, p + left_over), down = out_row * w->down + y;
            const int inside = j < columns && down >= 0 && down < w->height;
            const long from = inside ? between(begin, p, stop) : stop;
            const long until = inside ? between(end, from, stop) : stop;
            const float *source = image + down * of_line;
            left_over -= stop - p;
            if (++out_row == w->out_height) {
                out_row = 0;
                image += w->height * of_line;
            }
            for (; p < stop; p++, target += width) {
                if (p == from) {
                    if (lanes == 1)
                        for (; p < until; p++, target += width) *target = source[p * step];
                    else if (lanes == 4)
                        for (; p < until; p++, target += width) _mm_storeu_ps(target, _mm_loadu_ps(source + p * step));
                    else
                        for (; p < until; p++, target += width)
                            for (int v = 0; v < lanes; v += WIDTH) STORE(target + v, LOAD(source + p * step + v));
                    if (p == stop) break;
                }
                for (int i = 0; i < lanes; i++) {
                    const long tap = (in_line + i) / w->channels * w->dilate_across - w->before + p * w->across;
                    target[i] = inside && tap >= 0 && tap < w->width ? source[p * step + i] : 0;
                }
            }
        }
    }
}

/* c = a b of few terms, where a lies transposed: what takes time is writing c, a row after the other. */
static void thin_product(const float *a, const float *b, float *c, const Sizes *s, int threads)
{
    const int past = s->rows * s->columns > LARGE && s->columns % WIDTH == 0 && (long)c % (4 * WIDTH) == 0;
    Share rows[threads];
    GIVE(rows, s->rows);
    _Pragma("omp parallel num_threads(threads)")
    FLUSHED PIECES_OF(rows, start, end, 4 * LOT, 1L << 31) {
        float own_a[LOT][THIN], own_b[THIN][CHUNK];
        for (long chunk = 0; chunk < s->columns; chunk += CHUNK) {
            const long count = LEAST(CHUNK, s->columns - chunk);
            for (long k = 0; k < s->terms; k++)
                for (long j = 0; j < count; j++) own_b[k][j] = b[k * s->b_term + chunk + j];
            for (long r = start; r < end; r++) {
                if ((r - start) % LOT == 0)
                    for (long k = 0; k < s->terms; k++)
                        for (long i = 0; i < LEAST(LOT, end - r); i++) own_a[i][k] = a[k * s->a_term + r + i];
                const float *x = own_a[(r - start) % LOT];
                float *to = c + r * s->c_row + chunk;
                long j = 0;
                for (; j + 4 * WIDTH <= count; j += 4 * WIDTH) {
                    Lanes sums[4] = {ALL(0), ALL(0), ALL(0), ALL(0)};
                    for (long k = 0; k < s->terms; k++)
                        UNROLL for (int i = 0; i < 4; i++)
                            sums[i] = MULTIPLY_ADD(ALL(x[k]), LOAD(own_b[k] + j + i * WIDTH), sums[i]);
                    UNROLL for (int i = 0; i < 4; i++)
                        if (past) PASS(to + j + i * WIDTH, sums[i]);
                        else STORE(to + j + i * WIDTH, sums[i]);
                }
                for (; j < count; j++) {
                    float sum = 0;
                    for (long k = 0; k < s->terms; k++) sum = __builtin_fmaf(x[k], own_b[k][j], sum);
                    to[j] = sum;
                }
            }
        }
        if (past) _mm_sfence(); /* before other threads read it */
    }
}

/* c = a b + bias + addend, which lies as c does, or is c; or that normalized, which is not for slabs; or the larger of
   it and 0. norm has rows as long as b's when it is packed. b is `packed`, or the windows over b, or as it lies; of a
   batch there are a, b and c alone. The terms come in slabs, whose sums but the first's go to `sums` and are added at
   the end. A thread has so many blocks of rows by panels of columns. */
void opbox_product(const float *all_a, const float *all_b, const float *packed, const float *bias, float *all_c,
                   float *sums, const Sizes *sizes, const Windows *windows, const float *addend, const float *norm)
{
    const Sizes s = *sizes;
    const int threads = s.batch * s.rows * s.columns * s.terms > ALONE ? omp_get_max_threads() : 1;
    const int packs_a = s.a_term != 1;
    const int copies_a = !packs_a && s.a_row % SETS == 0 && s.columns >= WIDE && s.rows > 4 * ROWS;
    if (packs_a && s.terms < THIN && s.b_column == 1 && s.batch == 1 && !windows && !packed && !bias && !addend) {
        thin_product(all_a, all_b, all_c, &s, threads);
        return;
    }
    const long panels = PIECES(s.columns, PANEL), slab = PIECES(s.terms, s.slabs);
    const long deep = packs_a ? SHALLOW : DEPTH * PANEL / width_of(s.columns) / WIDTH * WIDTH;
    const long depth = PIECES(PIECES(slab, PIECES(slab, deep)), WIDTH) * WIDTH;
    long blocks = PIECES(s.rows, !packs_a ? LONG : windows ? MOST_SHORT : SHORT);
    const long others = s.batch * panels * s.slabs;
    if (others * blocks < 32 * threads) /* as many for each thread */
        while (others * blocks % threads && blocks * 4 * ROWS < s.rows) blocks++;
    const long block = PIECES(PIECES(s.rows, blocks), ROWS) * ROWS;
    blocks = PIECES(s.rows, block);
    const long least = slab * block > TALL ? GROUP : 1;
    /* A panel of b as it lies is read to its end before the next, as memory has its rows. */
    const long enough = packed || slab <= depth ? PIECES(PIECE, slab * block * PANEL) : 1;
    const long most = packs_a || copies_a ? panels : MOST(enough, least);
    Share units[threads];
    GIVE(units, s.batch * s.slabs * blocks * panels);
    _Pragma("omp parallel num_threads(threads)")
    {
        float own_b[GROUP * DEPTH * PANEL] __attribute__((aligned(64)));
        float own_a[MOST_OF_A] __attribute__((aligned(64)));
        const long all = omp_get_num_threads(), me = omp_get_thread_num();
        const float *packed_b = 0;
        long packed_k = -1, packed_q = -1, packed_end = -1; /* what own_b has */
        FLUSHED PIECES_OF(units, unit, end, most, panels) {
            const long from = unit % panels, first = unit / panels % blocks * block;
            const long number = unit / panels / blocks % s.slabs, item = unit / panels / blocks / s.slabs;
            const float *a = all_a + item * s.rows * s.terms, *b = all_b + item * s.terms * s.columns;
            float *c = all_c + item * s.rows * s.columns;
            const long count = end - unit, rows = LEAST(s.rows - first, block);
            const long stop = LEAST(s.terms, (number + 1) * slab);
            float *out = number ? sums + (number - 1) * s.rows * s.columns : c;
            const long out_row = number ? s.columns : s.c_row;
            const float *begin = number ? 0 : bias && addend ? c : addend;
            if (bias && begin)
                for (long r = first; r < first + rows; r++)
                    for (long j = from * PANEL; j < LEAST(s.columns, (from + count) * PANEL); j++)
                        c[r * s.c_row + j] = addend[r * s.c_row + j] + bias[j];
            for (long k = number * slab; k < stop; k += depth) {
                const long terms = LEAST(stop - k, depth);
                const int finishes = k + terms == stop;
                const float *base = k > number * slab ? out : begin;
                Ahead ahead[2] = {0}; /* of b, and of a */
                if (packs_a) pack_a(a + first * s.a_row + k * s.a_term, s.a_term, rows, terms, own_a);
                if (copies_a) copy_a(a + first * s.a_row + k, s.a_row, rows, terms, own_a);
                const int goes_on = k + depth < stop;
                const long next_row = goes_on ? first : first + block, lower = LEAST(s.rows - next_row, block);
                const long next_term = goes_on ? k + depth : number * slab, more = LEAST(stop - next_term, depth);
                const float *soon = a + next_row * s.a_row + next_term * s.a_term;
                if (packs_a && goes_on) ahead[1] = next_terms(soon, s.a_term, 1, more, lower);
                if (LARGE_VECTORS && !packs_a && lower > 0) {
                    const long begun = goes_on ? 0 : lower * from / panels;
                    const long done = goes_on ? lower : lower * (from + count) / panels;
                    ahead[1] = next_terms(soon + begun * s.a_row, s.a_row, 1, done - begun, more);
                }
                const long part = PIECES(ahead[1].rows * ahead[1].lines, count * PIECES(rows, ROWS));
                for (long q = from; q < from + count; q += GROUP) {
                    const long group = LEAST(from + count - q, GROUP), columns = s.columns - q * PANEL;
                    const int same = packed_b == b && packed_k == k && packed_q == q && packed_end == q + group;
                    const int ready = packed || same;
                    const int lies = !windows && s.b_column == 1 && columns >= group * PANEL;
                    const int copies = LARGE_VECTORS && !ready && lies;
                    if (windows && !ready)
                        for (long p = 0; p < group; p++)
                            pack_windows(b, windows, (q + p) * PANEL, columns - p * PANEL, windows->first + k, terms,
                                         own_b + p * terms * PANEL);
                    else if (!ready && !copies)
                        pack_b(b + k * s.b_term + q * PANEL * s.b_column, s.b_term, s.b_column, terms,
                               LEAST(columns, group * PANEL), own_b, terms * PANEL);
                    packed_b = b;
                    packed_k = k;
                    packed_q = q;
                    packed_end = q + group;
                    const int last = q + GROUP >= from + count;
                    const long next_k = last ? k + depth : k, next_q = last ? from : q + GROUP;
                    const long next_depth = LEAST(stop - next_k, depth);
                    const int pays = LARGE_VECTORS || (!packed && rows <= FEW);
                    if (windows || next_k >= stop || !pays) ahead[0] = (Ahead){0};
                    else if (packed) {
                        const long width = width_of(s.columns - next_q * PANEL);
                        const float *at = packed + next_q * s.terms * PANEL + next_k * width;
                        ahead[0] = (Ahead){(const char *)at, 1, 0, PIECES(next_depth * width, 16), 0};
                    } else
                        ahead[0] = next_terms(b + next_k * s.b_term + next_q * PANEL * s.b_column, s.b_term, s.b_column,
                                              next_depth, LEAST(s.columns - next_q * PANEL, GROUP * PANEL));
                    const long share = PIECES(ahead[0].rows * ahead[0].lines, group * PIECES(rows, ROWS)) + part;
                    for (long p = q; p < q + group; p++) {
                        float *own = own_b + (p - q) * terms * PANEL;
                        const long wide = s.columns - p * PANEL;
                        const float *panel = packed ? packed + p * s.terms * PANEL + k * width_of(wide) : own;
                        const float *added = bias && !number ? bias + p * PANEL : 0;
                        const float *own_norm = norm && finishes ? norm + p * PANEL : 0;
                        const End end = {own_norm, PIECES(s.columns, COLUMNS) * COLUMNS, s.rectifies && finishes};
                        for (long r = 0, n; r < rows; r += n) {
                            n = packs_a ? LEAST(rows - r, ROWS) : next_height(rows - r, ROWS);
                            const long row = copies_a ? terms + LINE : s.a_row;
                            const float *left = packs_a ? own_a + r * terms : copies_a ? own_a + r * row
                                                                                       : a + (first + r) * row + k;
                            float *to = out + (first + r) * out_row + p * PANEL;
                            const float *start = base ? base + (to - out) : added;
                            const long start_row = base ? out_row : 0;
                            const int plain = !packs_a && !copies_a, far = p == from && plain && r + 2 * ROWS <= rows;
                            const int copy = copies && r == 0;
                            const int task = copy ? COPY : far && !LARGE_VECTORS ? NEXT : LINES;
                            const Meanwhile m = {task, left + ROWS * row, ahead, share, own, s.b_term};
                            const float *factors = copy ? b + k * s.b_term + p * PANEL : panel;
                            if (wide >= PANEL)
                                any_tile(n, VECTORS, left, row, packs_a, factors, start, start_row, to, out_row, terms,
                                         &end, &m);
                            else
                                narrow_tile(n, wide, left, row, packs_a, factors, start, start_row, to, out_row, terms,
                                            &end, &m);
                        }
                    }
                }
            }
        }
        if (s.slabs > 1) {
            _Pragma("omp barrier")
            for (long r = me * s.rows / all; r < (me + 1) * s.rows / all; r++)
                for (long n = 0; n < s.slabs - 1; n++)
                    for (long j = 0; j < s.columns; j++)
                        all_c[r * s.c_row + j] += sums[(n * s.rows + r) * s.columns + j];
        }
    }
}

/* All panels of b. */
void opbox_product_pack(const float *b, float *packed, const Sizes *sizes)
{
    const Sizes s = *sizes;
    const int threads = omp_get_max_threads();
    IN_THREADS(p, PIECES(s.columns, PANEL), 1)
        pack_b(b + p * PANEL * s.b_column, s.b_term, s.b_column, s.terms, LEAST(s.columns - p * PANEL, PANEL),
               packed + p * PANEL * s.terms, 0);
}

/* The windows over b as a matrix: a row for each position, channel by channel and tap by tap. */
void opbox_product_lay(const float *b, float *to, const Windows *windows)
{
    const Windows w = *windows;
    const long taps = w.down_kernel * w.across_kernel;
    const int threads = omp_get_max_threads();
    IN_THREADS(p, w.batch * w.out_height * w.out_width, MANY)
        for (long i = 0; i < taps; i++) {
            const long y = p / w.out_width % w.out_height, x = p % w.out_width, image = p / w.out_width / w.out_height;
            const long row = y * w.down + i / w.across_kernel * w.dilate_down - w.above;
            const long column = x * w.across + i % w.across_kernel * w.dilate_across - w.before;
            const int inside = row >= 0 && row < w.height && column >= 0 && column < w.width;
            const float *from = b + ((image * w.height + row) * w.width + column) * w.channels;
            float *target = to + p * taps * w.channels + i;
            for (long c = 0; c < w.channels; c++) target[c * taps] = inside ? from[c] : 0;
        }
}

/* The sums of such windows at the places that they are of: all of b. */
void opbox_product_gather(const float *from, float *b, const Windows *windows)
{
    const Windows w = *windows;
    const long taps = w.down_kernel * w.across_kernel;
    const int threads = omp_get_max_threads();
    IN_THREADS(place, w.batch * w.height * w.width, MANY) {
        const long row = place / w.width % w.height, column = place % w.width, image = place / w.width / w.height;
        float *to = b + place * w.channels;
        int any = 0;
        for (long i = 0; i < taps; i++) {
            const long y = row + w.above - i / w.across_kernel * w.dilate_down;
            const long x = column + w.before - i % w.across_kernel * w.dilate_across;
            if (y < 0 || x < 0 || y % w.down || x % w.across) continue;
            if (y / w.down >= w.out_height || x / w.across >= w.out_width) continue;
            const long p = (image * w.out_height + y / w.down) * w.out_width + x / w.across;
            const float *window = from + p * taps * w.channels + i;
            if (any) for (long c = 0; c < w.channels; c++) to[c] += window[c * taps];
            else for (long c = 0; c < w.channels; c++) to[c] = window[c * taps];
            any = 1;
        }
        if (!any) for (long c = 0; c < w.channels; c++) to[c] = 0;
    }
}
"""
