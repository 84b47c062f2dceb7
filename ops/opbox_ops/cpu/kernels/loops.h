/* Loops in the threads of OpenMP, by the shares of each. */
#pragma once

#include <omp.h>

#include "shares.h"

/* In a region, of which `threads` says how many threads it has: parts for all of them; and a loop over the pieces that
   a thread gets, or over what is in them. Who gives shares anew does so between two barriers, behind the last piece. */
#define GIVE(shares, all) give_shares(shares, all, omp_get_thread_num(), omp_get_num_threads(), threads)
#define EACH_PIECE(shares, begin, end, most, line) \
    for (long end, begin; (begin = take_piece(shares, omp_get_thread_num(), threads, most, line, &end)) >= 0;)
#define SHARED(shares, i, most)                            \
    EACH_PIECE(shares, begin_##i, end_##i, most, 1L << 31) \
        for (long i = begin_##i; i < end_##i; i++)

/* A loop over 0 to `all` - 1 in a region of its own, of `threads` threads. */
#define IN_THREADS(i, all, most)  \
    Share shares_of_##i[threads]; \
    GIVE(shares_of_##i, all);     \
    _Pragma("omp parallel num_threads(threads)") SHARED(shares_of_##i, i, most)
