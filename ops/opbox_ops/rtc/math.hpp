// CUDA's mathematical functions and conversions that C++ does not have; those that it has come from <cmath>.
using std::abs; using std::isfinite; using std::isinf; using std::isnan; using std::signbit;

namespace opbox {
// CUDA has no min or max of a floating number and an integer: which type is meant is for the kernel to say.
template <class A, class B>
using Alike = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B> &&
                                   std::is_floating_point_v<A> == std::is_floating_point_v<B>,
                               std::common_type_t<A, B>>;
}  // namespace opbox
template <class A, class B> constexpr opbox::Alike<A, B> min(A a, B b) {
  using T = opbox::Alike<A, B>;
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> constexpr opbox::Alike<A, B> max(A a, B b) {
  using T = opbox::Alike<A, B>;
  return T(a) < T(b) ? T(b) : T(a);
}
#define OPBOX_LESS(name, T) \
  inline T name##min(T a, T b) { return a < b ? a : b; } \
  inline T name##max(T a, T b) { return a < b ? b : a; }
OPBOX_LESS(u, unsigned)
OPBOX_LESS(ll, long long)
OPBOX_LESS(ull, unsigned long long)

#define OPBOX_F1(name, expression) inline float name(float x) { return float(expression); }
#define OPBOX_D1(name, expression) inline double name(double x) { return expression; }
#define OPBOX_BOTH(name, expression) OPBOX_D1(name, expression) \
  inline float name##f(float given) { const double x = given; return float(expression); }
#define OPBOX_PI 3.14159265358979323846
namespace opbox {
// The inverse of erf: Giles, "Approximating the erfinv function" (2010), then two steps of Newton's method.
inline double inverse_erf(double x) {
  if (!(std::fabs(x) < 1)) return std::fabs(x) == 1 ? x * double(INFINITY) : double(NAN);
  double w = -std::log((1 - x) * (1 + x)), p;
  if (w < 5) {
    const double c[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                        -0.00417768164, 0.246640727, 1.50140941};
    w -= 2.5, p = c[0];
    for (int i = 1; i < 9; ++i) p = c[i] + p * w;
  } else {
    const double c[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                        0.00943887047, 1.00167406, 2.83297682};
    w = std::sqrt(w) - 3, p = c[0];
    for (int i = 1; i < 9; ++i) p = c[i] + p * w;
  }
  double y = p * x;
  for (int i = 0; i < 2; ++i) y -= (std::erf(y) - x) / (2 / std::sqrt(OPBOX_PI) * std::exp(-y * y));
  return y;
}
inline double scaled_erfc(double x) {
  if (x < 25) return std::exp(x * x) * std::erfc(x);
  return 1 / (x * std::sqrt(OPBOX_PI)) * (1 - 1 / (2 * x * x));
}
}  // namespace opbox
OPBOX_BOTH(rsqrt, 1 / std::sqrt(x))
OPBOX_BOTH(rcbrt, 1 / std::cbrt(x))
OPBOX_BOTH(sinpi, std::sin(OPBOX_PI * std::fmod(x, 2.0)))
OPBOX_BOTH(cospi, std::cos(OPBOX_PI * std::fmod(x, 2.0)))
OPBOX_BOTH(erfinv, opbox::inverse_erf(x))
OPBOX_BOTH(erfcinv, opbox::inverse_erf(1 - x))
OPBOX_BOTH(erfcx, opbox::scaled_erfc(x))
OPBOX_BOTH(normcdf, std::erfc(-x / std::sqrt(2.0)) / 2)
OPBOX_BOTH(normcdfinv, std::sqrt(2.0) * opbox::inverse_erf(2 * x - 1))
inline double rhypot(double x, double y) { return 1 / std::hypot(x, y); }
inline float rhypotf(float x, float y) { return 1 / std::hypot(x, y); }
inline double norm3d(double x, double y, double z) { return std::sqrt(x * x + y * y + z * z); }
inline float norm3df(float x, float y, float z) { return float(norm3d(x, y, z)); }
inline double norm4d(double x, double y, double z, double w) { return std::sqrt(x * x + y * y + z * z + w * w); }
inline float norm4df(float x, float y, float z, float w) { return float(norm4d(x, y, z, w)); }
inline double rnorm3d(double x, double y, double z) { return 1 / norm3d(x, y, z); }
inline float rnorm3df(float x, float y, float z) { return float(1 / norm3d(x, y, z)); }
inline float fdividef(float x, float y) { return x / y; }

// <cmath> writes through these pointers unseen, so the kernel's own are written here.
#define OPBOX_PAIR(name, T, first, second) \
  OPBOX_INLINE void name(T x, T *s, T *c) { *s = T(first); *c = T(second); }
OPBOX_PAIR(opbox_sincosf, float, std::sin(x), std::cos(x))
OPBOX_PAIR(opbox_sincos, double, std::sin(x), std::cos(x))
OPBOX_PAIR(sincospif, float, sinpif(x), cospif(x))
OPBOX_PAIR(sincospi, double, sinpi(x), cospi(x))
OPBOX_PAIR(__sincosf, float, std::sin(x), std::cos(x))
#define sincosf opbox_sincosf
#define sincos opbox_sincos

// The fast forms, as exact here as the others.
OPBOX_F1(__expf, std::exp(x))
OPBOX_F1(__exp10f, ::exp10f(x))
OPBOX_F1(__logf, std::log(x))
OPBOX_F1(__log2f, std::log2(x))
OPBOX_F1(__log10f, std::log10(x))
OPBOX_F1(__sinf, std::sin(x))
OPBOX_F1(__cosf, std::cos(x))
OPBOX_F1(__tanf, std::tan(x))
OPBOX_F1(__tanhf, std::tanh(x))
OPBOX_F1(__saturatef, x >= 1 ? 1 : x > 0 ? x : 0)
OPBOX_F1(__frsqrt_rn, 1 / std::sqrt(x))
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }

// Forms with a rounding are rounded to nearest, whichever is asked for.
#define OPBOX_ROUNDINGS(each) each(rn) each(rz) each(ru) each(rd)
#define OPBOX_ARITHMETIC(r)                                            \
  inline float __fadd_##r(float a, float b) { return a + b; }          \
  inline float __fsub_##r(float a, float b) { return a - b; }          \
  inline float __fmul_##r(float a, float b) { return a * b; }          \
  inline float __fdiv_##r(float a, float b) { return a / b; }          \
  inline float __frcp_##r(float a) { return 1 / a; }                   \
  inline float __fsqrt_##r(float a) { return std::sqrt(a); }           \
  inline float __fmaf_##r(float a, float b, float c) { return std::fma(a, b, c); } \
  inline double __dadd_##r(double a, double b) { return a + b; }       \
  inline double __dsub_##r(double a, double b) { return a - b; }       \
  inline double __dmul_##r(double a, double b) { return a * b; }       \
  inline double __ddiv_##r(double a, double b) { return a / b; }       \
  inline double __drcp_##r(double a) { return 1 / a; }                 \
  inline double __dsqrt_##r(double a) { return std::sqrt(a); }         \
  inline double __fma_##r(double a, double b, double c) { return std::fma(a, b, c); } \
  inline float __double2float_##r(double a) { return float(a); }       \
  inline float __int2float_##r(int a) { return float(a); }             \
  inline float __uint2float_##r(unsigned a) { return float(a); }       \
  inline float __ll2float_##r(long long a) { return float(a); }        \
  inline float __ull2float_##r(unsigned long long a) { return float(a); } \
  inline double __ll2double_##r(long long a) { return double(a); }     \
  inline double __ull2double_##r(unsigned long long a) { return double(a); }
OPBOX_ROUNDINGS(OPBOX_ARITHMETIC)
inline double __int2double_rn(int a) { return a; }
inline double __uint2double_rn(unsigned a) { return a; }

namespace opbox {
// A device turns what does not fit into the nearest value that does, and NaN into 0.
template <class T> T integer(double x) {
  if (x != x) return 0;
  if (x >= double(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return x <= double(std::numeric_limits<T>::min()) ? std::numeric_limits<T>::min() : T(x);
}
}  // namespace opbox
#define OPBOX_TO_INTEGER(from, type, to, T)                                                     \
  inline T __##from##2##to##_rn(type x) { return opbox::integer<T>(std::nearbyint(double(x))); } \
  inline T __##from##2##to##_rz(type x) { return opbox::integer<T>(std::trunc(double(x))); }     \
  inline T __##from##2##to##_ru(type x) { return opbox::integer<T>(std::ceil(double(x))); }      \
  inline T __##from##2##to##_rd(type x) { return opbox::integer<T>(std::floor(double(x))); }
#define OPBOX_TO_INTEGERS(from, type)                        \
  OPBOX_TO_INTEGER(from, type, int, int)                     \
  OPBOX_TO_INTEGER(from, type, uint, unsigned)               \
  OPBOX_TO_INTEGER(from, type, ll, long long)                \
  OPBOX_TO_INTEGER(from, type, ull, unsigned long long)
OPBOX_TO_INTEGERS(float, float)
OPBOX_TO_INTEGERS(double, double)

#define OPBOX_PUN(name, From, To) \
  inline To name(From x) { To y; static_assert(sizeof x == sizeof y); __builtin_memcpy(&y, &x, sizeof y); return y; }
OPBOX_PUN(__float_as_int, float, int)
OPBOX_PUN(__float_as_uint, float, unsigned)
OPBOX_PUN(__int_as_float, int, float)
OPBOX_PUN(__uint_as_float, unsigned, float)
OPBOX_PUN(__double_as_longlong, double, long long)
OPBOX_PUN(__longlong_as_double, long long, double)
inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

inline int __mul24(int a, int b) { return int((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned long long __brevll(unsigned long long x) {
  unsigned long long y = 0;
  for (int i = 0; i < 64; ++i) y |= (x >> i & 1) << (63 - i);
  return y;
}
inline unsigned __brev(unsigned x) { return unsigned(__brevll(x) >> 32); }
inline unsigned __sad(int a, int b, unsigned c) { return c + (a > b ? unsigned(a) - unsigned(b) : unsigned(b) - unsigned(a)); }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }
inline int __hadd(int a, int b) { return int(((long long)a + b) >> 1); }
inline int __rhadd(int a, int b) { return int(((long long)a + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b) >> 1); }
inline unsigned __urhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b + 1) >> 1); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned y = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = s >> (4 * i) & 15, byte = unsigned(both >> (8 * (pick & 7)) & 255);
    y |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return y;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned((((unsigned long long)high << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}
template <class Byte, class T> T opbox_dot4(T a, T b, T c) {
  for (int i = 0; i < 32; i += 8) c += T(Byte(a >> i)) * T(Byte(b >> i));
  return c;
}
inline int __dp4a(int a, int b, int c) { return opbox_dot4<signed char>(a, b, c); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return opbox_dot4<unsigned char>(a, b, c); }

// Of math_constants.h.
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ll)
#define CUDART_NAN __longlong_as_double(0x7ff8000000000000ll)
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.14159265358979323846
#define CUDART_PIO2_F 1.570796327f
#define CUDART_2_OVER_PI_F 0.636619772f
#define CUDART_SQRT_TWO_F 1.414213562f
#define CUDART_SQRT_HALF_F 0.707106781f
#define CUDART_LN2_F 0.693147181f
#define CUDART_L2E_F 1.442695041f
#define CUDART_MAX_NORMAL_F __int_as_float(0x7f7fffff)
#define CUDART_MIN_DENORM_F __int_as_float(0x00000001)
