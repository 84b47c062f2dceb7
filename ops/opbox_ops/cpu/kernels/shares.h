/* Loops whose threads take pieces as they get on.

   A loop in equal parts takes as long as its slowest thread: where other programs use the machine too, or its cores are
   not alike, the others wait. Here a thread takes pieces of a part of its own, one after the other, and then of what
   another has not begun. While all get on alike, that is the loop in equal parts, and a core finds in its cache what it
   has left there in the loop before. Whoever computes a piece, it comes out the same. */
#pragma once

/* What is left of a thread's part of a loop: its end in the upper half, its begin in the lower. Each has two lines of
   the cache to itself. */
typedef struct {
    unsigned long left;
    char apart[120];
} Share;

/* Parts of the loop over 0 to `all` - 1 for `threads` threads; thread `me` of `team` writes those of every `team`th. */
static inline void give_shares(Share *shares, long all, long me, long team, long threads)
{
    for (long thread = me; thread < threads; thread += team) {
        const unsigned long begin = all * thread / threads, end = all * (thread + 1) / threads;
        __atomic_store_n(&shares[thread].left, end << 32 | begin, __ATOMIC_RELAXED);
    }
}

/* The begin of the next piece for thread `me`, -1 if nothing is left, and its end: `most` at most, within a `line`.
   Who has nothing left takes the later half of the largest part that another has. */
static inline long take_piece(Share *shares, long me, long threads, long most, long line, long *end)
{
    for (;;) {
        unsigned long left = __atomic_load_n(&shares[me].left, __ATOMIC_RELAXED);
        while (left >> 32 > (unsigned)left) {
            const long begin = (unsigned)left, last = left >> 32, stop = (begin / line + 1) * line;
            *end = begin + most < last ? begin + most : last;
            if (stop < *end) *end = stop;
            if (__atomic_compare_exchange_n(&shares[me].left, &left, (unsigned long)last << 32 | *end, 0,
                                            __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                return begin;
        }
        long richest = -1, count = 0;
        for (long thread = 0; thread < threads; thread++) {
            const unsigned long other = __atomic_load_n(&shares[thread].left, __ATOMIC_RELAXED);
            if ((long)(other >> 32) - (long)(unsigned)other <= count) continue;
            count = (long)(other >> 32) - (long)(unsigned)other;
            richest = thread;
            left = other;
        }
        if (richest < 0) return -1;
        const unsigned long begin = (unsigned)left, last = left >> 32, from = begin + (last - begin) / 2;
        if (__atomic_compare_exchange_n(&shares[richest].left, &left, from << 32 | begin, 0, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            __atomic_store_n(&shares[me].left, last << 32 | from, __ATOMIC_RELAXED);
    }
}
