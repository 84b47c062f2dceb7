/* Sums of a matrix's columns; `column_sums` says what is computed. */

#include "loops.h"

enum { MOST = 32, ALONE = 1 << 16 };

void opbox_column_sums(const float *restrict x, float *restrict out, long rows, long columns)
{
    const long chunks = (columns + MOST - 1) / MOST;
    const int threads = rows * columns > ALONE && chunks > 1 ? omp_get_max_threads() : 1;
    IN_THREADS(chunk, chunks, 1) {
        const long first = chunk * MOST, count = columns - first < MOST ? columns - first : MOST;
        const float *from = x + first;
        float sums[MOST];
        for (long j = 0; j < count; j++) sums[j] = from[j];
        if (count == MOST)
            for (long r = 1; r < rows; r++)
                for (long j = 0; j < MOST; j++) sums[j] += from[r * columns + j];
        else
            for (long r = 1; r < rows; r++)
                for (long j = 0; j < count; j++) sums[j] += from[r * columns + j];
        for (long j = 0; j < count; j++) out[first + j] = sums[j];
    }
}
