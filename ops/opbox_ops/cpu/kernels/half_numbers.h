/* Numbers of 16 bits: rows of float16 and of bfloat16 to float32 and back, and float32 rounded to either.

   They are rounded to the nearest, half-way to the even one, as NumPy rounds; what is too large becomes infinite. Rows
   take the processor's instructions for float16 where it has some (AVX-512, F16C). A single number is rounded by
   arithmetic on float32 alone, which compilers make vectors of. */
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { HALVES = 16 };
#define WIDEN_HALVES(to, from) _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from))))
#define ROUND_HALVES(to, from) \
    _mm256_storeu_si256((void *)(to), _mm512_cvtps_ph(_mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT))
#elif defined(__F16C__)
enum { HALVES = 8 };
#define WIDEN_HALVES(to, from) _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from))))
#define ROUND_HALVES(to, from) \
    _mm_storeu_si128((void *)(to), _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT))
#else
enum { HALVES = 1 };
#define WIDEN_HALVES(to, from)            \
    ({                                    \
        _Float16 half;                    \
        __builtin_memcpy(&half, from, 2); \
        *(to) = half;                     \
    })
#define ROUND_HALVES(to, from)          \
    ({                                  \
        const _Float16 half = *(from);  \
        __builtin_memcpy(to, &half, 2); \
    })
#endif

static inline void widen_float16(float *to, const unsigned short *from, long n)
{
    long i = 0;
    for (; i + HALVES <= n; i += HALVES) WIDEN_HALVES(to + i, from + i);
    if (i == n) return;
    unsigned short rest[HALVES] = {0};
    float wide[HALVES];
    __builtin_memcpy(rest, from + i, 2 * (n - i));
    WIDEN_HALVES(wide, rest);
    __builtin_memcpy(to + i, wide, 4 * (n - i));
}

static inline void narrow_float16(unsigned short *to, const float *from, long n)
{
    long i = 0;
    for (; i + HALVES <= n; i += HALVES) ROUND_HALVES(to + i, from + i);
    if (i == n) return;
    float rest[HALVES] = {0};
    unsigned short halves[HALVES];
    __builtin_memcpy(rest, from + i, 4 * (n - i));
    ROUND_HALVES(halves, rest);
    __builtin_memcpy(to + i, halves, 2 * (n - i));
}

static inline unsigned bits_of(float x)
{
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}
static inline float of_bits(unsigned bits)
{
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

/* The bits of a number that is rounded to a bfloat16, in the upper half. */
static inline unsigned nearest_bfloat16(float x)
{
    const unsigned bits = bits_of(x);
    return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u : (bits & 0x80000000u) | 0x7fc00000u;
}

static inline void widen_bfloat16(float *to, const unsigned short *from, long n)
{
    for (long i = 0; i < n; i++) to[i] = of_bits((unsigned)from[i] << 16);
}

static inline void narrow_bfloat16(unsigned short *to, const float *from, long n)
{
    for (long i = 0; i < n; i++) to[i] = nearest_bfloat16(from[i]) >> 16;
}

static inline float round_bfloat16(float x) { return of_bits(nearest_bfloat16(x)); }

/* Numbers from 2^-14 on have 11 bits; smaller ones are multiples of 2^-24, as float32 has them from 0.5 to 1. */
static inline float round_float16(float x)
{
    const unsigned bits = bits_of(x), sign = bits & 0x80000000u;
    const float size = of_bits(bits ^ sign), small = (size + 0.5f) - 0.5f;
    const float large = of_bits(((bits ^ sign) + 0xfff + (bits >> 13 & 1)) & 0xffffe000u);
    const float whole = large > 65504 ? __builtin_inff() : large;
    const float rounded = size < 0x1p-14f ? small : whole;
    return x == x ? of_bits(bits_of(rounded) | sign) : x;
}
