// __half on a CPU: IEEE binary16 in 16 bits, each operation worked out in float and rounded to the nearest even.
// What cuda_fp16.h offers for one half; half2 and the *_sat forms are not here.
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
      std::memcpy(&wide, &small, 4);
      wide |= sign;
    }
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  static uint16_t round(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    const uint16_t sign = uint16_t(wide >> 16 & 0x8000);
    wide &= 0x7fffffff;
    if (wide > 0x7f800000) return sign | 0x7e00;
    if (wide >= 0x477ff000) return sign | 0x7c00;
    if (wide < 0x38800000) {
      // 0.5 has the spacing of the smallest halves, so the addition rounds as it should.
      float small;
      std::memcpy(&small, &wide, 4);
      small += 0.5f;
      std::memcpy(&wide, &small, 4);
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
