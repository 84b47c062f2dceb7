/* 8 x 8 numbers transposed, for what reads or writes rows of few numbers by vectors. */
#pragma once

#include <immintrin.h>

/* Rows of eight numbers, transposed: from every `of_from` numbers to every `of_to`. */
static inline void turn(const float *from, long of_from, float *to, long of_to)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from + i * of_from);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * of_to, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * of_to, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
