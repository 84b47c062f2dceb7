/* LRN over channels; `lrn_channels` says what is computed. Windows have up to MAX_NEIGHBOURS channels. */

#include "loops.h"
#include "vectors.h"

#if defined(__AVX512F__)
#define ROOT _mm512_sqrt_ps
#else
#define ROOT _mm256_sqrt_ps
#endif

/* A thread takes SOME chunks of positions at a time, of VECTORS_OF vectors; a ring has the terms of the last
   RING channels of a chunk. Work of up to ALONE numbers is one thread's. */
enum { VECTORS_OF = 4, CHUNK = VECTORS_OF * WIDTH, RING = MAX_NEIGHBOURS + 1, SOME = 4, ALONE = 1 << 14 };
#define MIN(x, y) ((x) < (y) ? (x) : (y))

typedef struct {
    long batch, channels, positions, reach;
    float alpha, knorm, factor;
} Sizes;

/* Loops over the vectors of a chunk of `count` numbers, v the first number and `part` those that there are. */
#define EACH_VECTOR(v, part, count)           \
    for (long v = 0; v < (count); v += WIDTH) \
        for (Part part = first_numbers((count) - v), *once = &part; once; once = 0)
#define AT(ring, c, v) ((ring) + (c) % RING * CHUNK + (v))

/* The sum of a channel's terms and those of its neighbours, the nearest first. */
static inline Lanes neighbours(const float *ring, long c, long v, const Sizes *s)
{
    Lanes total = LOAD(AT(ring, c, v));
    for (long shift = 1; shift <= s->reach; shift++) {
        if (c >= shift) total += LOAD(AT(ring, c - shift, v));
        if (c + shift < s->channels) total += LOAD(AT(ring, c + shift, v));
    }
    return total;
}

/* scale to the power of 3/4 */
static inline Lanes power(Lanes scale)
{
    const Lanes root = ROOT(scale);
    return ROOT(root) * root;
}

#define CHUNKS_OF(s, job, count, at)                                                                   \
    const long chunks = ((s).positions + CHUNK - 1) / CHUNK;                                           \
    const int threads = (s).batch * (s).channels * (s).positions <= ALONE ? 1 : omp_get_max_threads(); \
    IN_THREADS(job, (s).batch * chunks, SOME)                                                          \
        for (long at = job / chunks * (s).channels * (s).positions + job % chunks * CHUNK,             \
                  count = MIN((s).positions - job % chunks * CHUNK, CHUNK);                            \
             count; count = 0)

/* out and, unless it is NULL, scale, from data (batch, channels, positions). */
void opbox_lrn(const float *restrict data, float *restrict out, float *restrict scale, const Sizes *sizes)
{
    const Sizes s = *sizes;
    CHUNKS_OF(s, job, count, at) {
        float squares[RING * CHUNK] __attribute__((aligned(64)));
        for (long next = 0; next < s.channels + s.reach; next++) {
            if (next < s.channels)
                EACH_VECTOR(v, part, count) {
                    const Lanes x = LOAD_PART(data + at + next * s.positions + v, part);
                    STORE(AT(squares, next, v), x * x);
                }
            const long c = next - s.reach;
            if (c < 0) continue;
            const long row = at + c * s.positions;
            EACH_VECTOR(v, part, count) {
                const Lanes norm = neighbours(squares, c, v, &s) * ALL(s.alpha) + ALL(s.knorm);
                if (scale) STORE_PART(scale + row + v, part, norm);
                if (out) STORE_PART(out + row + v, part, LOAD_PART(data + row + v, part) / power(norm));
            }
        }
    }
}

/* gdata from gout, data and scale. */
void opbox_lrn_gradient(const float *restrict gout, const float *restrict data, const float *restrict scale,
                        float *restrict gdata, const Sizes *sizes)
{
    const Sizes s = *sizes;
    CHUNKS_OF(s, job, count, at) {
        float direct[RING * CHUNK] __attribute__((aligned(64))), terms[RING * CHUNK] __attribute__((aligned(64)));
        for (long next = 0; next < s.channels + s.reach; next++) {
            if (next < s.channels)
                EACH_VECTOR(v, part, count) {
                    const long place = at + next * s.positions + v;
                    const Lanes norm = LOAD_PART(scale + place, part);
                    const Lanes own = LOAD_PART(gout + place, part) / power(norm);
                    STORE(AT(direct, next, v), own);
                    STORE(AT(terms, next, v), own * LOAD_PART(data + place, part) / norm);
                }
            const long c = next - s.reach;
            if (c < 0) continue;
            const long row = at + c * s.positions;
            EACH_VECTOR(v, part, count) {
                const Lanes total = neighbours(terms, c, v, &s) * LOAD_PART(data + row + v, part);
                STORE_PART(gdata + row + v, part, total * ALL(s.factor) + LOAD(AT(direct, c, v)));
            }
        }
    }
}
