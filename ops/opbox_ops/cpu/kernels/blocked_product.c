/* Products in blocks; `blocked_product` says what is computed. */

#include "loops.h"
#include "transpose.h"
#include "vectors.h"
#include "product_term.h"
#include "windows.h"
#include "product_tiles.h"
#include "product_windows.h"
#include "split_numbers.h"
#include "split_product.h"

/* b to [panel][term][column], a panel every `of_panel` numbers; zeros beyond its columns. */
static void pack_b(const float *b, long term, long column, long depth, long columns, float *to, long of_panel)
{
    const long whole = column == 1 ? columns / PANEL : 0;
    for (long k = 0; k < depth; k++)
        for (long p = 0; p < whole; p++) {
            const float *from = b + k * term + p * PANEL;
            __builtin_prefetch(from + PREFETCH_TERMS * term);
            for (int v = 0; v < PANEL; v += WIDTH) STORE(to + p * of_panel + k * PANEL + v, LOAD(from + v));
        }
    for (long p = whole; p * PANEL < columns; p++) {
        const long count = MIN(columns - p * PANEL, PANEL), width = width_of(count);
        const long transposed = term == 1 ? count / 8 * 8 : 0, deep = depth / LINE * LINE;
        const float *panel = b + p * PANEL * column;
        float *target = to + p * of_panel;
        for (long k = 0; k < deep; k += LINE) /* all of a line at once: others may have its place in the cache soon */
            for (long j = 0; j < transposed; j += 8) {
                for (int i = 0; i < 8; i++) __builtin_prefetch(panel + (j + i) * column + k + LINE, 0, 2);
                for (long i = k; i < k + LINE; i += 8)
                    turn(panel + i + j * column, column, target + i * width + j, width);
            }
        for (long k = 0; k < depth; k++)
            for (long j = k < deep ? transposed : 0; j < width; j++)
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
        for (long r = 0; r < rows; r += LINE) __builtin_prefetch(from + PREFETCH_TERMS * term + r);
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

/* c = a b of few terms, where a lies transposed: what takes time is writing c, a row after the other. */
static void thin_product(const float *a, const float *b, float *c, const Sizes *s, int threads)
{
    const int past = s->rows * s->columns > LARGE && s->columns % WIDTH == 0 && (long)c % (4 * WIDTH) == 0;
    Share rows[threads];
    GIVE(rows, s->rows);
    _Pragma("omp parallel num_threads(threads)")
    FLUSHED EACH_PIECE(rows, start, end, 4 * THIN_ROWS, 1L << 31) {
        float own_a[THIN_ROWS][THIN], own_b[THIN][CHUNK];
        for (long chunk = 0; chunk < s->columns; chunk += CHUNK) {
            const long count = MIN(CHUNK, s->columns - chunk);
            for (long k = 0; k < s->terms; k++)
                for (long j = 0; j < count; j++) own_b[k][j] = b[k * s->b_term + chunk + j];
            for (long r = start; r < end; r++) {
                if ((r - start) % THIN_ROWS == 0)
                    for (long k = 0; k < s->terms; k++)
                        for (long i = 0; i < MIN(THIN_ROWS, end - r); i++) own_a[i][k] = a[k * s->a_term + r + i];
                const float *x = own_a[(r - start) % THIN_ROWS];
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
#if defined(MATRIX_UNIT)
    if (s.splits) {
        split_product(all_a, all_b, packed, bias, all_c, sums, sizes, windows, addend, norm, threads);
        return;
    }
#endif
    const int packs_a = s.a_term != 1;
    const int copies_a = !packs_a && s.a_row % SETS == 0 && s.columns >= WIDE && s.rows > 4 * ROWS;
    if (packs_a && s.terms < THIN && s.b_column == 1 && s.batch == 1 && !windows && !packed && !bias && !addend) {
        thin_product(all_a, all_b, all_c, &s, threads);
        return;
    }
    const long panels = CEIL_DIV(s.columns, PANEL), slab = CEIL_DIV(s.terms, s.slabs);
    const long deep = packs_a ? SHALLOW : DEPTH * PANEL / width_of(s.columns) / WIDTH * WIDTH;
    const long depth = CEIL_DIV(CEIL_DIV(slab, CEIL_DIV(slab, deep)), WIDTH) * WIDTH;
    long blocks = CEIL_DIV(s.rows, !packs_a ? LONG : windows ? MAX_SHORT_ROWS : SHORT);
    const long others = s.batch * panels * s.slabs;
    if (others * blocks < 32 * threads) /* as many for each thread */
        while (others * blocks % threads && blocks * 4 * ROWS < s.rows) blocks++;
    const long block = CEIL_DIV(CEIL_DIV(s.rows, blocks), ROWS) * ROWS;
    blocks = CEIL_DIV(s.rows, block);
    const long least = slab * block > TALL ? GROUP : 1;
    /* A panel of b as it lies is read to its end before the next, as memory has its rows. */
    const long enough = packed || slab <= depth ? CEIL_DIV(PIECE, slab * block * PANEL) : 1;
    const long most = packs_a || copies_a ? panels : MAX(enough, least);
    Share units[threads];
    GIVE(units, s.batch * s.slabs * blocks * panels);
    _Pragma("omp parallel num_threads(threads)")
    {
        float own_b[GROUP * DEPTH * PANEL] __attribute__((aligned(64)));
        float own_a[MAX_NUMBERS_OF_A] __attribute__((aligned(64)));
        const float *packed_b = 0;
        long packed_k = -1, packed_q = -1, packed_end = -1; /* what own_b has */
        FLUSHED EACH_PIECE(units, unit, end, most, panels) {
            const long from = unit % panels, first = unit / panels % blocks * block;
            const long number = unit / panels / blocks % s.slabs, item = unit / panels / blocks / s.slabs;
            const float *a = all_a + item * s.rows * s.terms, *b = all_b + item * s.terms * s.columns;
            float *c = all_c + item * s.rows * s.columns;
            const long count = end - unit, rows = MIN(s.rows - first, block);
            const long stop = MIN(s.terms, (number + 1) * slab);
            float *out = number ? sums + (number - 1) * s.rows * s.columns : c;
            const long out_row = number ? s.columns : s.c_row;
            const float *begin = number ? 0 : bias && addend ? c : addend;
            if (bias && begin) add_bias(c, addend, bias, &s, first, rows, from * PANEL, (from + count) * PANEL);
            for (long k = number * slab; k < stop; k += depth) {
                const long terms = MIN(stop - k, depth);
                const int finishes = k + terms == stop;
                const float *base = k > number * slab ? out : begin;
                Ahead ahead[2] = {0}; /* of b, and of a */
                if (packs_a) pack_a(a + first * s.a_row + k * s.a_term, s.a_term, rows, terms, own_a);
                if (copies_a) copy_a(a + first * s.a_row + k, s.a_row, rows, terms, own_a);
                const int goes_on = k + depth < stop;
                const long next_row = goes_on ? first : first + block, lower = MIN(s.rows - next_row, block);
                const long next_term = goes_on ? k + depth : number * slab, more = MIN(stop - next_term, depth);
                const float *soon = a + next_row * s.a_row + next_term * s.a_term;
                if (packs_a && goes_on) ahead[1] = next_terms(soon, s.a_term, 1, more, lower);
                if (LARGE_VECTORS && !packs_a && lower > 0) {
                    const long begun = goes_on ? 0 : lower * from / panels;
                    const long done = goes_on ? lower : lower * (from + count) / panels;
                    ahead[1] = next_terms(soon + begun * s.a_row, s.a_row, 1, done - begun, more);
                }
                const long part = CEIL_DIV(ahead[1].rows * ahead[1].lines, count * CEIL_DIV(rows, ROWS));
                for (long q = from; q < from + count; q += GROUP) {
                    const long group = MIN(from + count - q, GROUP), columns = s.columns - q * PANEL;
                    const int same = packed_b == b && packed_k == k && packed_q == q && packed_end == q + group;
                    const int ready = packed || same;
                    const int contiguous = !windows && s.b_column == 1 && columns >= group * PANEL;
                    const int copies = LARGE_VECTORS && !ready && contiguous;
                    if (windows && !ready)
                        for (long p = 0; p < group; p++)
                            pack_windows(b, windows, (q + p) * PANEL, columns - p * PANEL, windows->first + k, terms,
                                         own_b + p * terms * PANEL);
                    else if (!ready && !copies)
                        pack_b(b + k * s.b_term + q * PANEL * s.b_column, s.b_term, s.b_column, terms,
                               MIN(columns, group * PANEL), own_b, terms * PANEL);
                    packed_b = b;
                    packed_k = k;
                    packed_q = q;
                    packed_end = q + group;
                    const int last = q + GROUP >= from + count;
                    const long next_k = last ? k + depth : k, next_q = last ? from : q + GROUP;
                    const long next_depth = MIN(stop - next_k, depth);
                    const int pays = LARGE_VECTORS || (!packed && rows <= MAX_ROWS_TO_PREFETCH);
                    if (windows || next_k >= stop || !pays) ahead[0] = (Ahead){0};
                    else if (packed) {
                        const long width = width_of(s.columns - next_q * PANEL);
                        const float *at = packed + next_q * s.terms * PANEL + next_k * width;
                        ahead[0] = (Ahead){(const char *)at, 1, 0, CEIL_DIV(next_depth * width, 16), 0};
                    } else
                        ahead[0] = next_terms(b + next_k * s.b_term + next_q * PANEL * s.b_column, s.b_term, s.b_column,
                                              next_depth, MIN(s.columns - next_q * PANEL, GROUP * PANEL));
                    const long share = CEIL_DIV(ahead[0].rows * ahead[0].lines, group * CEIL_DIV(rows, ROWS)) + part;
                    for (long p = q; p < q + group; p++) {
                        float *own = own_b + (p - q) * terms * PANEL;
                        const long wide = s.columns - p * PANEL;
                        const float *panel = packed ? packed + p * s.terms * PANEL + k * width_of(wide) : own;
                        const float *added = bias && !number ? bias + p * PANEL : 0;
                        const float *own_norm = norm && finishes ? norm + p * PANEL : 0;
                        const End end = {own_norm, CEIL_DIV(s.columns, COLUMNS) * COLUMNS, s.relu && finishes};
                        for (long r = 0, n; r < rows; r += n) {
                            n = packs_a ? MIN(rows - r, ROWS) : next_height(rows - r, ROWS);
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
        add_slabs(all_c, sums, &s);
    }
}

/* All panels of b; all strips of a, in its place, where the sizes say that a is packed. */
void opbox_product_pack(const float *b, float *packed, const Sizes *sizes)
{
    const Sizes s = *sizes;
    const int threads = omp_get_max_threads();
#if defined(MATRIX_UNIT)
    if (s.splits) {
        if (s.packs_a) split_strips(b, (uint32_t *)packed, sizes, threads);
        else split_panels(b, (uint32_t *)packed, sizes, 1, 0, threads);
        return;
    }
#endif
    IN_THREADS(p, CEIL_DIV(s.columns, PANEL), 1)
        pack_b(b + p * PANEL * s.b_column, s.b_term, s.b_column, s.terms, MIN(s.columns - p * PANEL, PANEL),
               packed + p * PANEL * s.terms, 0);
}

/* All panels of b for windows that are read in the place of a, of a weight (filters, channels, taps); `rotated` for the
   gradient of data. Without a matrix unit there are no such products. */
void opbox_product_pack_taps(const float *weight, float *packed, const Sizes *sizes, const long *taps,
                             const long *rotated)
{
#if defined(MATRIX_UNIT)
    split_panels(weight, (uint32_t *)packed, sizes, *taps, *rotated, omp_get_max_threads());
#endif
}
