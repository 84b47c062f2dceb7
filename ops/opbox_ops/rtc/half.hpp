// __half on a CPU: IEEE binary16 in 16 bits, each operation worked out in float and rounded to the nearest even.
// What cuda_fp16.h offers for one half and for two.
struct __half {
  uint16_t bits;
  __half() = default;
  __half(float value) : bits(round(value)) {}
  __half(double value) : bits(round(float(value))) {}
  __half(int value) : bits(round(float(value))) {}
  __half(unsigned value) : bits(round(float(value))) {}
  __half(long long value) : bits(round(float(value))) {}
  operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    uint32_t wide;
    if (exponent == 31) wide = sign | 0x7f800000 | fraction << 13;
    else if (exponent) wide = sign | (exponent + 112) << 23 | fraction << 13;
    else {
      const float small = float(fraction) * 5.9604644775390625e-8f;  // 2**-24
      __builtin_memcpy(&wide, &small, 4);
      wide |= sign;
    }
    float value;
    __builtin_memcpy(&value, &wide, 4);
    return value;
  }
  static uint16_t round(float value) {
    uint32_t wide;
    __builtin_memcpy(&wide, &value, 4);
    const uint16_t sign = uint16_t(wide >> 16 & 0x8000);
    wide &= 0x7fffffff;
    if (wide > 0x7f800000) return sign | 0x7e00;
    if (wide >= 0x477ff000) return sign | 0x7c00;
    if (wide < 0x38800000) {
      // 0.5 has the spacing of the smallest halves, so the addition rounds as it should.
      float small;
      __builtin_memcpy(&small, &wide, 4);
      small += 0.5f;
      __builtin_memcpy(&wide, &small, 4);
      return sign | uint16_t(wide - 0x3f000000);
    }
    return sign | uint16_t((wide - 0x38000000 + 0xfff + (wide >> 13 & 1)) >> 13);
  }
};
typedef __half half;

#define OPBOX_HALF_OPERATOR(op, name)                                              \
  inline __half operator op(__half a, __half b) { return __half(float(a) op float(b)); } \
  inline __half &operator op##=(__half &a, const __half &b) { return a = a op b; } \
  inline __half name(__half a, __half b) { return a op b; }
OPBOX_HALF_OPERATOR(+, __hadd)
OPBOX_HALF_OPERATOR(-, __hsub)
OPBOX_HALF_OPERATOR(*, __hmul)
OPBOX_HALF_OPERATOR(/, __hdiv)
inline __half operator-(__half a) { __half b; b.bits = a.bits ^ 0x8000; return b; }

#define OPBOX_HALF_COMPARISON(op, name)                                       \
  inline bool operator op(__half a, __half b) { return float(a) op float(b); } \
  inline bool name(__half a, __half b) { return float(a) op float(b); }
OPBOX_HALF_COMPARISON(<, __hlt)
OPBOX_HALF_COMPARISON(<=, __hle)
OPBOX_HALF_COMPARISON(>, __hgt)
OPBOX_HALF_COMPARISON(>=, __hge)
OPBOX_HALF_COMPARISON(==, __heq)
OPBOX_HALF_COMPARISON(!=, __hne)

inline float __half2float(__half a) { return a; }
inline __half __float2half(float a) { return a; }
inline __half __float2half_rn(float a) { return a; }
inline __half __double2half(double a) { return a; }
inline __half __int2half_rn(int a) { return a; }
inline int __half2int_rn(__half a) { return int(std::nearbyint(float(a))); }
inline int __half2int_rz(__half a) { return int(float(a)); }
inline __half __hfma(__half a, __half b, __half c) { return __half(double(float(a)) * float(b) + float(c)); }
inline __half __hneg(__half a) { return -a; }
inline __half __habs(__half a) { a.bits &= 0x7fff; return a; }
inline __half __hmax(__half a, __half b) { return __half(std::fmax(float(a), float(b))); }
inline __half __hmin(__half a, __half b) { return __half(std::fmin(float(a), float(b))); }
inline bool __hisnan(__half a) { return (a.bits & 0x7fff) > 0x7c00; }
inline unsigned short __half_as_ushort(__half a) { return a.bits; }
inline __half __ushort_as_half(unsigned short a) { __half b; b.bits = a; return b; }
#define OPBOX_HALF_FUNCTION(name, expression) inline __half name(__half h) { const float a = h; return __half(expression); }
OPBOX_HALF_FUNCTION(hexp, std::exp(a))
OPBOX_HALF_FUNCTION(hexp2, std::exp2(a))
OPBOX_HALF_FUNCTION(hlog, std::log(a))
OPBOX_HALF_FUNCTION(hlog2, std::log2(a))
OPBOX_HALF_FUNCTION(hsqrt, std::sqrt(a))
OPBOX_HALF_FUNCTION(hrsqrt, 1.0f / std::sqrt(a))
OPBOX_HALF_FUNCTION(hrcp, 1.0f / a)
OPBOX_HALF_FUNCTION(hsin, std::sin(a))
OPBOX_HALF_FUNCTION(hcos, std::cos(a))
OPBOX_HALF_FUNCTION(hfloor, std::floor(a))
OPBOX_HALF_FUNCTION(hceil, std::ceil(a))
OPBOX_HALF_FUNCTION(hexp10, std::pow(10.0f, a))
OPBOX_HALF_FUNCTION(hlog10, std::log10(a))
OPBOX_HALF_FUNCTION(htrunc, std::trunc(a))
OPBOX_HALF_FUNCTION(hrint, std::nearbyint(a))
OPBOX_HALF_FUNCTION(htanh, std::tanh(a))
OPBOX_HALF_FUNCTION(opbox_saturated, a >= 1 ? 1.0f : a > 0 ? a : 0.0f)
inline __half __hadd_sat(__half a, __half b) { return opbox_saturated(a + b); }
inline __half __hsub_sat(__half a, __half b) { return opbox_saturated(a - b); }
inline __half __hmul_sat(__half a, __half b) { return opbox_saturated(a * b); }
inline __half __hfma_sat(__half a, __half b, __half c) { return opbox_saturated(__hfma(a, b, c)); }
inline __half __float2half_rz(float a) {
  __half b = a;
  if (std::fabs(float(b)) > std::fabs(a)) b.bits -= 1;
  return b;
}
inline __half __uint2half_rn(unsigned a) { return a; }
inline int __hisinf(__half a) { return (a.bits & 0x7fff) == 0x7c00 ? (a.bits >> 15 ? -1 : 1) : 0; }
inline short __half_as_short(__half a) { return short(a.bits); }
inline __half __short_as_half(short a) { return __ushort_as_half((unsigned short)a); }
OPBOX_ATOMIC(atomicAdd, __half, old + val)

// Two halves, worked on one after the other.
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half a, __half b) : x(a), y(b) {}
};
typedef __half2 half2;
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 __float2half2_rn(float a) { return {a, a}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline float __low2float(__half2 a) { return a.x; }
inline float __high2float(__half2 a) { return a.y; }
inline __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
inline __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
inline __half2 __lowhigh2highlow(__half2 a) { return {a.y, a.x}; }
#define OPBOX_HALF2_OPERATOR(op, name)                                                       \
  inline __half2 operator op(__half2 a, __half2 b) { return {a.x op b.x, a.y op b.y}; }        \
  inline __half2 &operator op##=(__half2 &a, const __half2 &b) { return a = a op b; }          \
  inline __half2 name(__half2 a, __half2 b) { return a op b; }
OPBOX_HALF2_OPERATOR(+, __hadd2)
OPBOX_HALF2_OPERATOR(-, __hsub2)
OPBOX_HALF2_OPERATOR(*, __hmul2)
OPBOX_HALF2_OPERATOR(/, __h2div)
#define OPBOX_HALF2_BOTH(name, one) inline __half2 name(__half2 a) { return {one(a.x), one(a.y)}; }
#define OPBOX_HALF2_PAIR(name, one) inline __half2 name(__half2 a, __half2 b) { return {one(a.x, b.x), one(a.y, b.y)}; }
#define OPBOX_HALF2_TEST(op, part, both)                                                                         \
  inline __half2 part(__half2 a, __half2 b) { return {float(a.x) op float(b.x) ? 1.0f : 0.0f, float(a.y) op float(b.y) ? 1.0f : 0.0f}; } \
  inline bool both(__half2 a, __half2 b) { return float(a.x) op float(b.x) && float(a.y) op float(b.y); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
OPBOX_HALF2_BOTH(__hneg2, __hneg)
OPBOX_HALF2_BOTH(__habs2, __habs)
OPBOX_HALF2_BOTH(h2exp, hexp)
OPBOX_HALF2_BOTH(h2exp2, hexp2)
OPBOX_HALF2_BOTH(h2log, hlog)
OPBOX_HALF2_BOTH(h2log2, hlog2)
OPBOX_HALF2_BOTH(h2sqrt, hsqrt)
OPBOX_HALF2_BOTH(h2rsqrt, hrsqrt)
OPBOX_HALF2_BOTH(h2rcp, hrcp)
OPBOX_HALF2_BOTH(h2sin, hsin)
OPBOX_HALF2_BOTH(h2cos, hcos)
OPBOX_HALF2_BOTH(h2floor, hfloor)
OPBOX_HALF2_BOTH(h2ceil, hceil)
OPBOX_HALF2_PAIR(__hmax2, __hmax)
OPBOX_HALF2_PAIR(__hmin2, __hmin)
OPBOX_HALF2_PAIR(__hadd2_sat, __hadd_sat)
OPBOX_HALF2_PAIR(__hmul2_sat, __hmul_sat)
OPBOX_HALF2_TEST(<, __hlt2, __hblt2)
OPBOX_HALF2_TEST(<=, __hle2, __hble2)
OPBOX_HALF2_TEST(>, __hgt2, __hbgt2)
OPBOX_HALF2_TEST(>=, __hge2, __hbge2)
OPBOX_HALF2_TEST(==, __heq2, __hbeq2)
OPBOX_HALF2_TEST(!=, __hne2, __hbne2)
OPBOX_ATOMIC(atomicAdd, __half2, old + val)
