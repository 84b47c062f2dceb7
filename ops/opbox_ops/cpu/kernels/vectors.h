/* Vectors of float32, as long as the processor has them: 16 numbers with AVX-512, 8 with AVX2 and FMA.

   Nothing that includes this compiles for other processors. A vector's first numbers can be read and written alone;
   LOAD and STORE take any address, PASS, which writes past the caches, multiples of a vector's bytes. */
#pragma once

#include <immintrin.h>

#if defined(__AVX512F__)
enum { WIDTH = 16 };
typedef __m512 Lanes;
typedef __mmask16 Part;
#define MULTIPLY_ADD _mm512_fmadd_ps
#define ALL _mm512_set1_ps
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define PASS _mm512_stream_ps
#define KEEP(x) __asm__("" : "+v"(x))
#define RECTIFY(x) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ), x)
#define LOAD_PART(from, part) _mm512_maskz_loadu_ps(part, from)
#define STORE_PART(to, part, x) _mm512_mask_storeu_ps(to, part, x)

static inline Part first_numbers(long count) { return count < 16 ? (1u << count) - 1 : 0xffff; }
#elif defined(__AVX2__) && defined(__FMA__)
enum { WIDTH = 8 };
typedef __m256 Lanes;
typedef __m256i Part;
#define MULTIPLY_ADD _mm256_fmadd_ps
#define ALL _mm256_set1_ps
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define PASS _mm256_stream_ps
#define KEEP(x) __asm__("" : "+x"(x))
#define RECTIFY(x) _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LE_OQ), x)
#define LOAD_PART _mm256_maskload_ps
#define STORE_PART _mm256_maskstore_ps

static inline Part first_numbers(long count)
{
    static const int ones[3 * WIDTH] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const void *)(ones + WIDTH - (count < WIDTH ? count : WIDTH)));
}
#else
#error "no vectors"
#endif
/* A region of a thread whose arithmetic takes numbers below 2^-126 for zero, and writes zero for them: many processors
   take a hundred times as long for a product of such a number. */
#define FLUSHED \
    for (unsigned mode = _mm_getcsr(), flushes = (_mm_setcsr(mode | 0x8040), 1); flushes; _mm_setcsr(mode), flushes = 0)

/* RECTIFY: the larger of a number and 0; NaN stays NaN. */
#define UNROLL _Pragma("GCC unroll 16")

/* Of a function in a header that not every file calls. */
#define UNUSED __attribute__((unused))
