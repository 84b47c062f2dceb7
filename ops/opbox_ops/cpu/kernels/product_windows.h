/* Matrices of windows over an image: a panel of one for a product in blocks, a whole one, and its sums. */
#pragma once

#include "product_tiles.h"
#include "windows.h"

static inline long between(long x, long low, long high) { return x < low ? low : x > high ? high : x; }

/* A panel of the matrix of windows over x, (images, rows and columns of out) by (rows and columns of the kernel,
   channels): its columns from `column` on, `columns` of them, and `depth` rows from `row` on. Padding is zeros. Columns
   that lie together in x are copied together. */
UNUSED static void pack_windows(const float *x, const Windows *w, long column, long columns, long row, long depth,
                                float *to)
{
    const long width = width_of(columns);
    const long step = w->across * w->channels, span = w->across_kernel * w->channels;
    const long of_line = w->width * w->channels, first_line = row / w->out_width, first_p = row % w->out_width;
    const long first_image = first_line / w->out_height, first_row = first_line % w->out_height;
    for (long j = 0, lanes; j < width; j += lanes) {
        const long at = column + j, in_line = at % span;
        const int together = columns - j >= 4 && j + 4 <= width && w->dilate_across == 1 && in_line + 4 <= span;
        lanes = w->channels % width == 0           ? width
                : w->channels % WIDTH == 0         ? WIDTH
                : w->channels % 4 == 0 || together ? 4
                                                   : 1;
        const long y = at / span * w->dilate_down - w->above;
        const long left = in_line / w->channels * w->dilate_across - w->before;
        const long last = (in_line + lanes - 1) / w->channels * w->dilate_across - w->before;
        const long begin = left < 0 ? CEIL_DIV(-left, w->across) : 0;
        const long end = between(w->width - 1 - last < 0 ? 0 : (w->width - 1 - last) / w->across + 1, 0, w->out_width);
        long out_row = first_row, p = first_p;
        const float *image = x + first_image * w->height * of_line + in_line % w->channels + left * w->channels;
        float *target = to + j;
        for (long left_over = depth; left_over > 0; p = 0) {
            const long stop = MIN(w->out_width, p + left_over), down = out_row * w->down + y;
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
            if (any)
                for (long c = 0; c < w.channels; c++) to[c] += window[c * taps];
            else
                for (long c = 0; c < w.channels; c++) to[c] = window[c * taps];
            any = 1;
        }
        if (!any)
            for (long c = 0; c < w.channels; c++) to[c] = 0;
    }
}
