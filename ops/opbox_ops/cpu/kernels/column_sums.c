/* Sums of a matrix's columns; `column_sums` says what is computed. */

#include "loops.h"

enum { MAX_COLUMNS = 32, ALONE = 1 << 16 };

void opbox_column_sums(const float *restrict x, float *restrict out, long rows, long columns)
{
    const long chunks = (columns + MAX_COLUMNS - 1) / MAX_COLUMNS;
    const int threads = rows * columns > ALONE && chunks > 1 ? omp_get_max_threads() : 1;
    IN_THREADS(chunk, chunks, 1) {
        const long first = chunk * MAX_COLUMNS, count = columns - first < MAX_COLUMNS ? columns - first : MAX_COLUMNS;
        const float *from = x + first;
        float sums[MAX_COLUMNS];
        for (long j = 0; j < count; j++) sums[j] = from[j];
        if (count == MAX_COLUMNS)
            for (long r = 1; r < rows; r++)
                for (long j = 0; j < MAX_COLUMNS; j++) sums[j] += from[r * columns + j];
        else
            for (long r = 1; r < rows; r++)
                for (long j = 0; j < count; j++) sums[j] += from[r * columns + j];
        for (long j = 0; j < count; j++) out[first + j] = sums[j];
    }
}
