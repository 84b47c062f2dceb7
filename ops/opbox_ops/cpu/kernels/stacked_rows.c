/* Rows of several arrays below one another; `stacked_rows` says what is computed. */

#include <string.h>

#include "loops.h"

enum { CHUNK = 256, ALONE = 1 << 14 };

typedef struct {
    const float *from;
    long rows;
} Block;

/* `sums` is NULL, or gets the sums of the columns; or has them added to what it has, where it `adds`. */
void opbox_stack_rows(const Block *blocks, long count, long columns, float *to, float *sums, long adds)
{
    const long chunks = (columns + CHUNK - 1) / CHUNK;
    long rows = 0;
    for (long i = 0; i < count; i++) rows += blocks[i].rows;
    const int threads = rows * columns > ALONE && chunks > 1 ? omp_get_max_threads() : 1;
    IN_THREADS(chunk, chunks, 1) {
        const long first = chunk * CHUNK, width = columns - first < CHUNK ? columns - first : CHUNK;
        float own[CHUNK], *target = to + first;
        for (long i = 0, all = 0; i < count; i++)
            for (long r = 0; r < blocks[i].rows; r++, all++, target += columns) {
                const float *from = blocks[i].from + r * columns + first;
                if (!sums) memcpy(target, from, width * sizeof(float));
                else if (!all)
                    for (long j = 0; j < width; j++) target[j] = own[j] = from[j];
                else
                    for (long j = 0; j < width; j++) {
                        target[j] = from[j];
                        own[j] += from[j];
                    }
            }
        for (long j = 0; sums && j < width; j++) sums[first + j] = adds ? sums[first + j] + own[j] : own[j];
    }
}
