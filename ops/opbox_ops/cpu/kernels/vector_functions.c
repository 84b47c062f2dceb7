/* exp and tanh of float32, which are called as NumPy's loops are; `vector_loops` says which there are. */

#include <string.h>

#include "vectors.h"

#define INLINE static inline __attribute__((always_inline))

/* x / log 2, rounded. */
INLINE Lanes power_of(Lanes x) { return (x * ALL(1.44269504088896341f) + ALL(0x1.8p23f)) - ALL(0x1.8p23f); }

/* exp(x) / 2^k. */
INLINE Lanes factor_of(Lanes x, Lanes k)
{
    const Lanes r = MULTIPLY_ADD(k, ALL(-1.42860677e-6f), MULTIPLY_ADD(k, ALL(-6.93145752e-1f), x));
    Lanes p = MULTIPLY_ADD(ALL(5.082762527590693718096e-04f), r, ALL(6.757896990527504603057e-03f));
    p = MULTIPLY_ADD(p, r, ALL(5.114512081637298353406e-02f));
    p = MULTIPLY_ADD(p, r, ALL(2.473615434895520810817e-01f));
    p = MULTIPLY_ADD(p, r, ALL(7.257664613233124478488e-01f));
    p = MULTIPLY_ADD(p, r, ALL(9.999999999980870924916e-01f));
    Lanes q = MULTIPLY_ADD(ALL(2.159509375685829852307e-02f), r, ALL(-2.742335390411667452936e-01f));
    q = MULTIPLY_ADD(q, r, ALL(1));
    return p / q;
}

/* From LARGEST on exp is infinite, up to SMALLEST it is 0. */
#define LARGEST ALL(88.72283935546875f)
#define SMALLEST ALL(-103.97208404541015625f)

#if defined(__AVX512F__)
INLINE Lanes exp_of(Lanes x)
{
    const Part large = _mm512_cmp_ps_mask(x, LARGEST, _CMP_GE_OQ), small = _mm512_cmp_ps_mask(x, SMALLEST, _CMP_LE_OQ);
    const Part nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const Lanes k = power_of(x);
    Lanes p = _mm512_scalef_ps(factor_of(x, k), k);
    if (__builtin_expect(large | small | nan, 0)) {
        p = _mm512_mask_mov_ps(p, nan, ALL(__builtin_nanf("")));
        p = _mm512_mask_mov_ps(p, large, ALL(__builtin_inff()));
        p = _mm512_mask_mov_ps(p, small, ALL(0));
    }
    return p;
}
#else
typedef __m256i Whole;
#define ALL_WHOLE _mm256_set1_epi32
#define WHOLE _mm256_castps_si256
#define NUMBERS _mm256_castsi256_ps
#define SELDOM(x) __builtin_expect(_mm256_movemask_ps(x), 0)

/* x 2^k. */
INLINE Lanes scaled(Lanes x, Lanes k)
{
    return NUMBERS(_mm256_add_epi32(WHOLE(x), _mm256_slli_epi32(_mm256_cvtps_epi32(k), 23)));
}

INLINE Lanes exp_of(Lanes x)
{
    const Lanes large = _mm256_cmp_ps(x, LARGEST, _CMP_GE_OQ), small = _mm256_cmp_ps(x, SMALLEST, _CMP_LE_OQ);
    const Lanes nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q), special = _mm256_or_ps(_mm256_or_ps(large, small), nan);
    if (SELDOM(special)) x = _mm256_andnot_ps(special, x);
    const Lanes k = power_of(x), least = ALL(-125), low = _mm256_cmp_ps(k, least, _CMP_LE_OQ);
    Lanes p = factor_of(x, k);
    if (SELDOM(low)) { /* denormal numbers, rounded once */
        const Whole rest = _mm256_cvtps_epi32(_mm256_and_ps(least - k, low));
        p = scaled(p, _mm256_max_ps(k, least));
        p = _mm256_blendv_ps(p, p / _mm256_cvtepi32_ps(_mm256_sllv_epi32(ALL_WHOLE(1), rest)), low);
    } else p = scaled(p, k);
    if (SELDOM(special)) {
        p = _mm256_blendv_ps(p, ALL(__builtin_nanf("")), nan);
        p = _mm256_andnot_ps(small, _mm256_blendv_ps(p, ALL(__builtin_inff()), large));
    }
    return p;
}

/* b and the coefficients of R from the lowest on, as bits. */
static const unsigned coefficients[32][8] __attribute__((aligned(32))) = {
    {0x00000000, 0x00000000, 0x3f800000, 0xb0343c7b, 0xbeaaaaa5, 0xb76dd6b9, 0x3e0910e9, 0xbc0e2f66},
    {0x3d700000, 0x3d6fb9c9, 0x3f7f1f84, 0xbd6ee69d, 0xbeab0612, 0xbe1c276d, 0x43761143, 0x460bda12},
    {0x3d900000, 0x3d8fc35f, 0x3f7ebd11, 0xbd8f0da7, 0xbea7f01f, 0x3c1dcf2f, 0x4165ecdc, 0x43d638ef},
    {0x3db00000, 0x3daf9169, 0x3f7e1e5f, 0xbdae477d, 0xbea4e120, 0x3dc1a78d, 0xc190f756, 0xc3e11c3e},
    {0x3dd00000, 0x3dcf49ab, 0x3f7d609f, 0xbdcd2a1f, 0xbea387b7, 0x3d96f985, 0xc08c097d, 0xc2baa4e9},
    {0x3df00000, 0x3deee849, 0x3f7c842d, 0xbdeba80d, 0xbea15962, 0x3da2b61b, 0xc02ba813, 0xc249da2d},
    {0x3e100000, 0x3e0f0ee8, 0x3f7b00e5, 0xbe0c443b, 0xbe9d57f7, 0x3dc13397, 0xbf7f6bda, 0xc1859b82},
    {0x3e300000, 0x3e2e4984, 0x3f789580, 0xbe293cf3, 0xbe976b5a, 0x3dd2f670, 0x3f2b1dc0, 0x40dd5b57},
    {0x3e500000, 0x3e4d2f8e, 0x3f75b8ad, 0xbe44f282, 0xbe90230d, 0x3df48a0a, 0x3ece105d, 0x40494640},
    {0x3e700000, 0x3e6bb32e, 0x3f726fd9, 0xbe5f3651, 0xbe880dff, 0x3e06c5a8, 0x3f426a94, 0x40c730a8},
    {0x3e900000, 0x3e8c51cd, 0x3f6cc59b, 0xbe81c7c0, 0xbe7479b3, 0x3e1a3aba, 0xbadb0dc4, 0xbf0f160e},
    {0x3eb00000, 0x3ea96163, 0x3f63fb92, 0xbe96d7ca, 0xbe4c3d88, 0x3e27c405, 0x3da43b17, 0x3e30e76f},
    {0x3ed00000, 0x3ec543f1, 0x3f59ff97, 0xbea7fb8e, 0xbe212482, 0x3e2e78d0, 0xbd51ab88, 0xbea81387},
    {0x3ef00000, 0x3edfd735, 0x3f4f11d7, 0xbeb50e9e, 0xbdeb8cba, 0x3e2c3e44, 0xbcaea23d, 0xbdb26a1c},
    {0x3f100000, 0x3f028438, 0x3f3d7573, 0xbec12efe, 0xbd5e78ad, 0x3e1d3097, 0xbd3b6d8d, 0xbd351e57},
    {0x3f300000, 0x3f18abf0, 0x3f24f360, 0xbec4be92, 0x3c6b5e6e, 0x3df4a8f4, 0xbd6caaad, 0xbb4c01a0},
    {0x3f500000, 0x3f2bc480, 0x3f0cbfe7, 0xbebce070, 0x3d839143, 0x3da38508, 0xbd795bed, 0x3c1d7bfb},
    {0x3f700000, 0x3f3bec1c, 0x3eec1a69, 0xbead510e, 0x3dc21ee1, 0x3d31416a, 0xbd5fddda, 0x3c722cd1},
    {0x3f900000, 0x3f4f2e5b, 0x3eb0a801, 0xbe8ef7d6, 0x3de347af, 0x3b562657, 0xbd038f3b, 0x3c973f1c},
    {0x3fb00000, 0x3f613c53, 0x3e6753a2, 0xbe4b8704, 0x3dcbec96, 0xbcaeeac9, 0xbc1cad63, 0x3c33a31b},
    {0x3fd00000, 0x3f6ce37d, 0x3e132f1a, 0xbe083237, 0x3d99ef2d, 0xbcce9419, 0x3abb4766, 0x3b862ef4},
    {0x3ff00000, 0x3f743c4f, 0x3db7e7d3, 0xbdaf7449, 0x3d542ea1, 0xbcaaeac4, 0x3b95f10b, 0x3a27b3d0},
    {0x40100000, 0x3f7a5feb, 0x3d320845, 0xbd2e1ec4, 0x3cdde701, 0xbc49e7d0, 0x3b825873, 0xba3b5907},
    {0x40300000, 0x3f7dea85, 0x3c84d3d4, 0xbc83bf06, 0x3c2cca67, 0xbba71ddd, 0x3afaea66, 0xba0efc22},
    {0x40500000, 0x3f7f3b3d, 0x3bc477b7, 0xbbc3e0b5, 0x3b81cb27, 0xbb003b0e, 0x3a49f878, 0xb97f9f0f},
    {0x40700000, 0x3f7fb78c, 0x3b10d3da, 0xbb10aadc, 0x3ac073a1, 0xba3f9a05, 0x39996bf3, 0xb8c8af50},
    {0x40900000, 0x3f7fefd4, 0x3a01601e, 0xba0157db, 0x39ac3032, 0xb92c08a7, 0x388f3e6c, 0xb7bdddfb},
    {0x40b00000, 0x3f7ffdd0, 0x388c1a3b, 0xb88c18f2, 0x383a94d9, 0xb7ba9232, 0x371bb0e3, 0xb64f2950},
    {0x40d00000, 0x3f7fffb4, 0x3717b0da, 0xb717b096, 0x36ca081d, 0xb64a0b0f, 0x35a8a5e6, 0xb4e085b1},
    {0x40f00000, 0x3f7ffff6, 0x35a43bce, 0xb5a43bae, 0x355abd4c, 0xb4dac169, 0x34369b17, 0xb3731dfa},
    {0x41100000, 0x3f7fffff, 0x338306c6, 0xb383012c, 0x332b3cb6, 0xb2ab78ac, 0x322487b0, 0xb15a1f04},
    {0x00000000, 0x3f800000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000},
};

INLINE Lanes two_halves(const unsigned *lower, const unsigned *upper)
{
    return _mm256_set_m128(_mm_load_ps((const float *)upper), _mm_load_ps((const float *)lower));
}

INLINE Lanes tanh_of(Lanes x)
{
    const Lanes sign = _mm256_and_ps(x, ALL(-0.0f));
    const Whole top = _mm256_and_si256(WHOLE(x), ALL_WHOLE(0x7fe00000)), first = ALL_WHOLE(0x3d400000);
    const Whole past = _mm256_max_epi32(_mm256_sub_epi32(top, first), ALL_WHOLE(0));
    unsigned row[WIDTH] __attribute__((aligned(32)));
    _mm256_store_si256((Whole *)row, _mm256_srli_epi32(_mm256_min_epi32(past, ALL_WHOLE(31 << 21)), 21));
    Lanes c[8];
    _Pragma("GCC unroll 2") for (int half = 0; half < 8; half += 4)
    {
        Lanes of[4];
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) of[i] =
            two_halves(coefficients[row[i]] + half, coefficients[row[i + 4]] + half);
        const Lanes left = _mm256_unpacklo_ps(of[0], of[1]), more_left = _mm256_unpacklo_ps(of[2], of[3]);
        const Lanes right = _mm256_unpackhi_ps(of[0], of[1]), more_right = _mm256_unpackhi_ps(of[2], of[3]);
        c[half] = _mm256_shuffle_ps(left, more_left, 0x44);
        c[half + 1] = _mm256_shuffle_ps(left, more_left, 0xee);
        c[half + 2] = _mm256_shuffle_ps(right, more_right, 0x44);
        c[half + 3] = _mm256_shuffle_ps(right, more_right, 0xee);
    }
    const Lanes y = _mm256_andnot_ps(ALL(-0.0f), x) - c[0];
    Lanes r = MULTIPLY_ADD(c[7], y, c[6]);
    _Pragma("GCC unroll 5") for (int i = 5; i > 0; i--) r = MULTIPLY_ADD(r, y, c[i]);
    r = _mm256_blendv_ps(r, ALL(1), NUMBERS(_mm256_cmpgt_epi32(top, ALL_WHOLE(0x7f000000))));
    return _mm256_blendv_ps(_mm256_or_ps(r, sign), ALL(__builtin_nanf("")), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
#endif

#define LOOP(of)                                                                                             \
    {                                                                                                        \
        const long n = sizes[0], whole = steps[0] == 4 && steps[1] == 4 ? n / (2 * WIDTH) * (2 * WIDTH) : 0; \
        const float *x = (const float *)places[0];                                                           \
        float *y = (float *)places[1];                                                                       \
        for (long i = 0; i < whole; i += 2 * WIDTH) {                                                        \
            const Lanes left = of(LOAD(x + i)), right = of(LOAD(x + i + WIDTH));                             \
            STORE(y + i, left);                                                                              \
            STORE(y + i + WIDTH, right);                                                                     \
        }                                                                                                    \
        for (long i = whole; i < n; i += WIDTH) {                                                            \
            float part[WIDTH] = {0};                                                                         \
            const int count = n - i < WIDTH ? n - i : WIDTH;                                                 \
            for (int j = 0; j < count; j++) memcpy(part + j, places[0] + (i + j) * steps[0], 4);             \
            STORE(part, of(LOAD(part)));                                                                     \
            for (int j = 0; j < count; j++) memcpy(places[1] + (i + j) * steps[1], part + j, 4);             \
        }                                                                                                    \
    }

void opbox_exp(char **places, const long *sizes, const long *steps, void *unused) LOOP(exp_of)
#if !defined(__AVX512F__)
    void opbox_tanh(char **places, const long *sizes, const long *steps, void *unused) LOOP(tanh_of)
#endif
