/* Rows of several arrays beside one another; `joined_rows` says what is computed. */

#include <string.h>

#include "loops.h"

/* A thread takes a PIECE at a time; up to ALONE bytes are one thread's. */
enum { PIECE = 1 << 15, ALONE = 1 << 18 };

/* Rows of `widths` bytes, `count` beside one another in rows of `all`: joined to there, or with `parts` taken apart. */
void opbox_joined_rows(char *const *arrays, const long *widths, long count, char *joined, long rows, long all,
                       long parts)
{
    const int threads = rows * all > ALONE ? omp_get_max_threads() : 1;
    IN_THREADS(row, rows, PIECE / all + 1) {
        char *place = joined + row * all;
        for (long i = 0; i < count; place += widths[i++]) {
            char *own = arrays[i] ? arrays[i] + row * widths[i] : 0;
            if (own) memcpy(parts ? own : place, parts ? place : own, widths[i]);
        }
    }
}
