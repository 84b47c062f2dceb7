"""The C of products in blocks; `blocked_product` says what it computes, and compiles it."""

from __future__ import annotations

__all__ = ["TEXT"]

TEXT = r"""
#include <immintrin.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "no vectors"
#endif

/* A tile of the result, ROWS by PANEL, stays in registers for DEPTH terms, LONG rows of a in the second cache. Where a
   is packed too, that is SHORT rows, a multiple of ROWS, of SHALLOW terms, whose next ones are fetched meanwhile. GROUP
   panels of b are packed together; beside FEW rows the next group is fetched meanwhile. Work of up to ALONE
   multiplications is one thread's. A LINE of the cache holds so many numbers; while b or a is being packed, what lies
   SOON terms ahead is fetched. Fewer than THIN terms are added up CHUNK columns and LOT rows at a time; a LARGE result
   of them is written past the caches. A thread takes work of a PIECE at a time, some 20 us, or MANY small ones; where a
   is packed or copied, all columns of some rows, and where its rows are TALL, more than the second cache has, a GROUP.
   Rows of a that lie a multiple of SETS numbers apart evict one another from that cache, and are copied for WIDE
   results and more. */
enum { WIDTH = 8, ROWS = 6, PANEL = 16, DEPTH = 512, SHALLOW = 256, GROUP = 4, LONG = 144, SHORT = 258, FEW = 96 };
enum { ALONE = 1 << 19, LINE = 16, SOON = 8, THIN = 16, LOT = 64, CHUNK = 512, LARGE = 1 << 22 };
enum { PIECE = 1 << 20, MANY = 16, SETS = 1024, WIDE = 64, TALL = 1 << 17 };
typedef __m256 Lanes;
#define MULTIPLY_ADD _mm256_fmadd_ps
#define ALL _mm256_set1_ps
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define KEEP(x) __asm__("" : "+x"(x))
#define RECTIFY(x) _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LE_OQ), x) /* NaN stays NaN */
#define LEAST(x, y) ((x) < (y) ? (x) : (y))
#define MOST(x, y) ((x) > (y) ? (x) : (y))
#define UNROLL _Pragma("GCC unroll 8")
#define PIECES(all, most) (((all) + (most) - 1) / (most))
#define MOST_OF_A (SHORT * SHALLOW > LONG * (DEPTH + LINE) ? SHORT * SHALLOW : LONG * (DEPTH + LINE))

typedef struct { long rows, terms, columns, a_row, a_term, b_term, b_column, c_row, slabs, rectifies; } Sizes;

/* c = start + a b, or the larger of that and 0 where `rectifies`, for `rows` rows of a panel; start of zeros if it is
   NULL. The next rows of start, and of a from `next` on, are fetched meanwhile. */
static inline __attribute__((always_inline)) void tile(const int rows, const float *restrict a, long row, long term,
                                                       const float *restrict b, const float *start, long start_row,
                                                       float *restrict c, long c_row, long depth, int rectifies,
                                                       const float *next)
{
    Lanes sums[ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) {
        sums[r][0] = start ? LOAD(start + r * start_row) : ALL(0);
        sums[r][1] = start ? LOAD(start + r * start_row + WIDTH) : ALL(0);
    }
    if (start && start_row) UNROLL for (int r = 0; r < ROWS; r++) __builtin_prefetch(start + (rows + r) * start_row);
    for (long from = 0; from < depth; from += LINE) {
        const long to = LEAST(from + LINE, depth);
        if (next) UNROLL for (int r = 0; r < ROWS; r++) __builtin_prefetch(next + r * row + from);
        for (long k = from; k < to; k++) ADD_TERM(rows, a + k * term, row, b + k * PANEL, sums);
    }
    if (rectifies)
        UNROLL for (int r = 0; r < rows; r++) {
            sums[r][0] = RECTIFY(sums[r][0]);
            sums[r][1] = RECTIFY(sums[r][1]);
        }
    UNROLL for (int r = 0; r < rows; r++) {
        STORE(c + r * c_row, sums[r][0]);
        STORE(c + r * c_row + WIDTH, sums[r][1]);
    }
}

#define TILE(n) case n: \
    if (packed) tile(n, a, 1, ROWS, b, start, start_row, c, c_row, depth, rectifies, 0); \
    else tile(n, a, row, 1, b, start, start_row, c, c_row, depth, rectifies, 0); \
    break;
static void any_tile(int rows, const float *a, long row, int packed, const float *b, const float *start, long start_row,
                     float *c, long c_row, long depth, int rectifies, const float *next)
{
    if (next && rows == ROWS) {
        tile(ROWS, a, row, 1, b, start, start_row, c, c_row, depth, rectifies, next);
        return;
    }
    switch (rows) { TILE(6) TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) }
}

/* The same for a panel of fewer columns. */
static void narrow_tile(int rows, long columns, const float *a, long row, int packed, const float *b,
                        const float *start, long start_row, float *c, long c_row, long depth, int rectifies)
{
    static const int ones[3 * WIDTH] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const int *end = ones + WIDTH, left = columns < WIDTH ? columns : WIDTH;
    const __m256i near = _mm256_loadu_si256((const void *)(end - left));
    const __m256i far = _mm256_loadu_si256((const void *)(end - (columns - left)));
    float whole[ROWS * PANEL];
    for (long i = 0; start && i < rows; i++) {
        STORE(whole + i * PANEL, _mm256_maskload_ps(start + i * start_row, near));
        STORE(whole + i * PANEL + WIDTH, _mm256_maskload_ps(start + i * start_row + WIDTH, far));
    }
    any_tile(rows, a, row, packed, b, start ? whole : 0, PANEL, whole, PANEL, depth, rectifies, 0);
    for (long i = 0; i < rows; i++) {
        _mm256_maskstore_ps(c + i * c_row, near, LOAD(whole + i * PANEL));
        _mm256_maskstore_ps(c + i * c_row + WIDTH, far, LOAD(whole + i * PANEL + WIDTH));
    }
}

/* b to [panel][term][PANEL], a panel every `of_panel` numbers; zeros beyond its columns. */
static void pack_b(const float *b, long term, long column, long depth, long columns, float *to, long of_panel)
{
    const long whole = column == 1 ? columns / PANEL : 0;
    for (long k = 0; k < depth; k++)
        for (long p = 0; p < whole; p++) {
            const float *from = b + k * term + p * PANEL;
            __builtin_prefetch(from + SOON * term);
            STORE(to + p * of_panel + k * PANEL, LOAD(from));
            STORE(to + p * of_panel + k * PANEL + WIDTH, LOAD(from + WIDTH));
        }
    for (long p = whole; p * PANEL < columns; p++) {
        const long count = LEAST(columns - p * PANEL, PANEL);
        const float *panel = b + p * PANEL * column;
        float *target = to + p * of_panel;
        long k = 0;
        if (term == 1 && count == PANEL)
            for (; k + WIDTH <= depth; k += WIDTH)
                for (int half = 0; half < PANEL; half += WIDTH)
                    turn(panel + k + half * column, column, target + k * PANEL + half, PANEL);
        for (; k < depth; k++)
            for (long j = 0; j < PANEL; j++) target[k * PANEL + j] = j < count ? panel[k * term + j * column] : 0;
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
            const Lanes six = _mm256_castps128_ps256(_mm_loadu_ps(from));
            const __m128i two = _mm_loadl_epi64((const void *)(from + 4));
            _mm_storeu_ps(target, _mm256_castps256_ps128(six));
            _mm_storel_epi64((void *)(target + 4), two);
        }
        for (long i = 0; i < count; i++) target[i] = from[i];
    }
}

/* Rows of a for `depth` terms, a multiple of WIDTH, to rows that lie a LINE further apart than that. */
static void copy_a(const float *a, long row, long rows, long depth, float *to)
{
    for (long r = 0; r < rows; r++) {
        const float *from = a + r * row;
        float *target = to + r * (depth + LINE);
        for (long k = 0; k < depth; k += WIDTH) STORE(target + k, LOAD(from + k));
    }
}

/* The lines of what is packed next, to be fetched while what is packed is worked off. */
typedef struct { const char *at; long rows, step, lines, line; } Ahead;

static inline Ahead next_terms(const float *b, long term, long column, long depth, long columns)
{
    const long rows = column == 1 ? depth : columns, across = column == 1 ? columns : depth;
    return (Ahead){(const char *)b, rows, (column == 1 ? term : column) * (long)sizeof(float), PIECES(across, 16), 0};
}

static inline void fetch(Ahead *ahead, long count)
{
    for (; count > 0 && ahead->rows > 0; count--) {
        __builtin_prefetch(ahead->at + ahead->line * 64, 0, 2);
        if (++ahead->line == ahead->lines) {
            ahead->line = 0;
            ahead->at += ahead->step;
            ahead->rows--;
        }
    }
}

static inline long between(long x, long low, long high) { return x < low ? low : x > high ? high : x; }

/* A panel of the matrix of windows over x, (images, rows and columns of out) by (rows and columns of the kernel,
   channels): its columns from `column` on, `columns` of them, and `depth` rows from `row` on. Padding is zeros. Columns
   that lie together in x are copied together. */
static void pack_windows(const float *x, const Windows *w, long column, long columns, long row, long depth, float *to)
{
    const long step = w->across * w->channels, span = w->across_kernel * w->channels;
    const long of_line = w->width * w->channels, first_line = row / w->out_width, first_p = row % w->out_width;
    const long first_image = first_line / w->out_height, first_row = first_line % w->out_height;
    for (long j = 0, lanes; j < PANEL; j += lanes) {
        const long at = column + j, in_line = at % span;
        const int together = columns - j >= 4 && j + 4 <= PANEL && w->dilate_across == 1 && in_line + 4 <= span;
        lanes = w->channels % PANEL == 0 ? PANEL : w->channels % 4 == 0 || together ? 4 : 1;
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
            for (; p < stop; p++, target += PANEL) {
                if (p == from) {
                    if (lanes == 1)
                        for (; p < until; p++, target += PANEL) *target = source[p * step];
                    else if (lanes == 4)
                        for (; p < until; p++, target += PANEL) _mm_storeu_ps(target, _mm_loadu_ps(source + p * step));
                    else
                        for (; p < until; p++, target += PANEL) {
                            STORE(target, LOAD(source + p * step));
                            STORE(target + WIDTH, LOAD(source + p * step + WIDTH));
                        }
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
    PIECES_OF(rows, start, end, 4 * LOT, 1L << 31) {
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
                        if (past) _mm256_stream_ps(to + j + i * WIDTH, sums[i]);
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

/* c = a b + bias + addend, which lies as c does, or is c; or the larger of that and 0. b is `packed`, or the windows
   over b, or as it lies. The terms come in slabs, whose sums but the first's go to `sums` and are added at the end. A
   thread has so many blocks of rows by panels of columns. */
void opbox_product(const float *a, const float *b, const float *packed, const float *bias, float *c, float *sums,
                   const Sizes *sizes, const Windows *windows, const float *addend)
{
    const Sizes s = *sizes;
    const int threads = s.rows * s.columns * s.terms > ALONE ? omp_get_max_threads() : 1;
    const int packs_a = s.a_term != 1;
    const int copies_a = !packs_a && s.a_row % SETS == 0 && s.columns >= WIDE && s.rows > 4 * ROWS;
    if (packs_a && s.terms < THIN && s.b_column == 1 && !windows && !packed && !bias && !addend) {
        thin_product(a, b, c, &s, threads);
        return;
    }
    const long panels = PIECES(s.columns, PANEL), slab = PIECES(s.terms, s.slabs);
    const long deep = packs_a ? SHALLOW : DEPTH, depth = PIECES(PIECES(slab, PIECES(slab, deep)), WIDTH) * WIDTH;
    long blocks = PIECES(s.rows, packs_a ? SHORT : LONG);
    const long coarse = blocks * panels * s.slabs;
    if (coarse < 4 * threads && coarse % threads) blocks = PIECES(s.rows, 4 * ROWS);
    const long block = PIECES(PIECES(s.rows, blocks), ROWS) * ROWS;
    blocks = PIECES(s.rows, block);
    const long least = slab * block > TALL ? GROUP : 1;
    const long most = packs_a || copies_a ? panels : MOST(PIECES(PIECE, slab * block * PANEL), least);
    Share units[threads];
    GIVE(units, s.slabs * blocks * panels);
    _Pragma("omp parallel num_threads(threads)")
    {
        float own_b[GROUP * DEPTH * PANEL] __attribute__((aligned(64)));
        float own_a[MOST_OF_A] __attribute__((aligned(64)));
        const long all = omp_get_num_threads(), me = omp_get_thread_num();
        long packed_k = -1, packed_q = -1, packed_end = -1; /* what own_b has */
        PIECES_OF(units, unit, end, most, panels) {
            const long from = unit % panels, first = unit / panels % blocks * block, number = unit / panels / blocks;
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
                const int rectifies = s.rectifies && k + terms == stop;
                const float *base = k > number * slab ? out : begin;
                Ahead rest = {0};
                if (packs_a) {
                    const float *place = a + first * s.a_row + k * s.a_term;
                    pack_a(place, s.a_term, rows, terms, own_a);
                    if (k + depth < stop)
                        rest = next_terms(place + depth * s.a_term, s.a_term, 1, LEAST(stop - k - depth, depth), rows);
                }
                if (copies_a) copy_a(a + first * s.a_row + k, s.a_row, rows, terms, own_a);
                const long part = PIECES(rest.rows * rest.lines, count * PIECES(rows, ROWS));
                for (long q = from; q < from + count; q += GROUP) {
                    const long group = LEAST(from + count - q, GROUP), columns = s.columns - q * PANEL;
                    const int ready = packed || (packed_k == k && packed_q == q && packed_end == q + group);
                    if (windows && !ready)
                        for (long p = 0; p < group; p++)
                            pack_windows(b, windows, (q + p) * PANEL, columns - p * PANEL, windows->first + k, terms,
                                         own_b + p * terms * PANEL);
                    else if (!ready)
                        pack_b(b + k * s.b_term + q * PANEL * s.b_column, s.b_term, s.b_column, terms,
                               LEAST(columns, group * PANEL), own_b, terms * PANEL);
                    packed_k = k;
                    packed_q = q;
                    packed_end = q + group;
                    const int last = q + GROUP >= from + count;
                    const long next_k = last ? k + depth : k, next_q = last ? from : q + GROUP;
                    Ahead ahead = {0};
                    if (!packed && !windows && rows <= FEW && next_k < stop)
                        ahead = next_terms(b + next_k * s.b_term + next_q * PANEL * s.b_column, s.b_term, s.b_column,
                                           LEAST(stop - next_k, depth),
                                           LEAST(s.columns - next_q * PANEL, GROUP * PANEL));
                    const long share = PIECES(ahead.rows * ahead.lines, group * PIECES(rows, ROWS));
                    for (long p = q; p < q + group; p++) {
                        const float *own = own_b + (p - q) * terms * PANEL;
                        const float *panel = packed ? packed + (p * s.terms + k) * PANEL : own;
                        const float *added = bias && !number ? bias + p * PANEL : 0;
                        for (long r = 0, n; r < rows; r += n) {
                            n = packs_a ? LEAST(rows - r, ROWS) : next_height(rows - r, ROWS);
                            fetch(&ahead, share);
                            fetch(&rest, part);
                            const long row = copies_a ? terms + LINE : s.a_row;
                            const float *left = packs_a ? own_a + r * terms : copies_a ? own_a + r * row
                                                                                       : a + (first + r) * row + k;
                            float *to = out + (first + r) * out_row + p * PANEL;
                            const float *start = base ? base + (to - out) : added;
                            const long start_row = base ? out_row : 0, wide = s.columns - p * PANEL;
                            const int far = p == from && !packs_a && !copies_a && r + 2 * ROWS <= rows;
                            if (wide >= PANEL)
                                any_tile(n, left, row, packs_a, panel, start, start_row, to, out_row, terms, rectifies,
                                         far ? left + ROWS * row : 0);
                            else
                                narrow_tile(n, wide, left, row, packs_a, panel, start, start_row, to, out_row, terms,
                                            rectifies);
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
                        c[r * s.c_row + j] += sums[(n * s.rows + r) * s.columns + j];
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
