/* Images as sums of windows; `window_sums` says what is computed. */

#include "loops.h"

enum { ALONE = 1 << 17 };

void opbox_window_sums(const float *restrict windows, float *restrict images, long batch, long height, long width,
                       long taps, long run, long image, long row, long down, long right)
{
    const long of_image = height * width * taps * run;
    const int threads = batch > 1 && batch * of_image > ALONE ? omp_get_max_threads() : 1;
    IN_THREADS(n, batch, 1) {
        const float *restrict from = windows + n * of_image;
        float *restrict target = images + n * image;
        for (long j = 0; j < image; j++) target[j] = 0;
        for (long y = 0; y < height; y++)
            for (long x = 0; x < width; x++)
                for (long i = 0; i < taps; i++, from += run) {
                    float *restrict to = target + (y * down + i) * row + x * right;
                    for (long j = 0; j < run; j++) to[j] += from[j];
                }
    }
}
