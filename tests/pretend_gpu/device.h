// What a CUDA kernel sees on the pretend device: coordinates, barriers, warp functions, atomics. Unchecked, for the
// text that CuPy generates; the kernels of users are checked by opbox_ops/rtc.
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include "driver_types.h"
#include "vector_types.h"
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__ static
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__
#undef __constant__
#define __constant__
#define __CUDACC_VER_MAJOR__ 13
using std::abs;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;
extern "C" {
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern char pretend_dynamic[];
extern uint64_t pretend_lanes[1024][32];
void pretend_barrier();
int pretend_count(int predicate);
uint32_t pretend_warp(uint32_t mask, uint64_t value);
[[noreturn]] void pretend_stop(int status);
}
#define warpSize 32
namespace pretend {
inline unsigned number() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
inline unsigned lane() { return number() & 31; }
template <class T> uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T> T value_of(uint64_t bits) {
  T value;
  memcpy((void *)&value, &bits, sizeof(T));
  return value;
}
template <class T> T exchange(uint32_t mask, T value, unsigned from) {
  const uint32_t came = pretend_warp(mask, bits_of(value));
  return came >> from & 1 ? value_of<T>(pretend_lanes[number()][from]) : value;
}
template <class... A, size_t... I> void call(void (*kernel)(A...), void **args, std::index_sequence<I...>) {
  kernel(*(std::remove_reference_t<A> *)args[I]...);
}
template <class... A> void call(void (*kernel)(A...), void **args) {
  call(kernel, args, std::index_sequence_for<A...>{});
}
template <class... A> int sizes(void (*)(A...), int *out) {
  const int all[] = {int(sizeof(A))..., 0};
  for (size_t i = 0; i < sizeof...(A); ++i) out[i] = all[i];
  return int(sizeof...(A));
}
}  // namespace pretend
#define __syncthreads() pretend_barrier()
#define __syncthreads_count(p) pretend_count(bool(p))
#define __syncthreads_or(p) (pretend_count(bool(p)) > 0)
#define __syncthreads_and(p) (pretend_count(!(p)) == 0)
inline void __syncwarp(unsigned mask = 0xffffffffu) { pretend_warp(mask, 0); }
inline unsigned __activemask() { return 0xffffffffu; }
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __threadfence_system() ((void)0)
#define __trap() pretend_stop(719)
#undef assert
#define assert(...) ((__VA_ARGS__) ? (void)0 : pretend_stop(710))
template <class T> T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  return pretend::exchange(mask, value, (pretend::lane() & ~(width - 1)) + (from & (width - 1)));
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned lane = pretend::lane();
  return pretend::exchange(mask, value, (lane & (width - 1)) < by ? lane : lane - by);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned lane = pretend::lane();
  return pretend::exchange(mask, value, (lane & (width - 1)) + by >= unsigned(width) ? lane : lane + by);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  const unsigned lane = pretend::lane(), from = lane ^ unsigned(with);
  return pretend::exchange(mask, value, from >= (lane & ~(width - 1)) + width || from > 31 ? lane : from);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint32_t came = pretend_warp(mask, predicate != 0);
  unsigned set = 0;
  for (unsigned k = 0; k < 32; ++k) set |= unsigned(came >> k & 1 && pretend_lanes[pretend::number()][k]) << k;
  return set;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
#define PRETEND_REDUCE(name, T, expression)                                                            \
  inline T name(unsigned mask, T value) {                                                              \
    const uint32_t came = pretend_warp(mask, pretend::bits_of(value));                                 \
    const unsigned mine = pretend::lane();                                                             \
    T a = value;                                                                                       \
    for (unsigned k = 0; k < 32; ++k)                                                                  \
      if (came >> k & 1 && k != mine) { T b = pretend::value_of<T>(pretend_lanes[pretend::number()][k]); a = expression; } \
    return a;                                                                                          \
  }
PRETEND_REDUCE(__reduce_add_sync, unsigned, a + b)
PRETEND_REDUCE(__reduce_add_sync, int, a + b)
PRETEND_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
PRETEND_REDUCE(__reduce_max_sync, int, a > b ? a : b)
PRETEND_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
PRETEND_REDUCE(__reduce_min_sync, int, a < b ? a : b)
#define __popc __builtin_popcount
#define __popcll __builtin_popcountll
#define __ffs __builtin_ffs
#define __clz(x) ((x) ? __builtin_clz(x) : 32)
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline long long clock64() { return 0; }
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(a) < T(b) ? T(b) : T(a);
}
template <class T, class F> inline T pretend_as(F from) {
  T to;
  static_assert(sizeof(T) == sizeof(F));
  memcpy(&to, &from, sizeof to);
  return to;
}
#define PRETEND_AS(name, T, F) \
  static inline T name(F v) { return pretend_as<T>(v); }
PRETEND_AS(__float_as_int, int, float)
PRETEND_AS(__int_as_float, float, int)
PRETEND_AS(__float_as_uint, unsigned, float)
PRETEND_AS(__uint_as_float, float, unsigned)
PRETEND_AS(__double_as_longlong, long long, double)
PRETEND_AS(__longlong_as_double, double, long long)
static inline int __double2hiint(double d) { return int(pretend_as<unsigned long long>(d) >> 32); }
static inline int __double2loint(double d) { return int(pretend_as<unsigned long long>(d)); }
static inline double __hiloint2double(int high, int low) {
  return pretend_as<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}
// Threads take turns, so a plain read and write is atomic.
#define PRETEND_ATOMIC(name, T, e) \
  static inline T name(T *at, T val) { const T old = *at; *at = (e); return old; }
#define PRETEND_ATOMIC_INTEGERS(name, e)   \
  PRETEND_ATOMIC(name, int, e)             \
  PRETEND_ATOMIC(name, unsigned, e)        \
  PRETEND_ATOMIC(name, unsigned long long, e)
PRETEND_ATOMIC_INTEGERS(atomicAdd, old + val)
PRETEND_ATOMIC(atomicAdd, float, old + val)
PRETEND_ATOMIC(atomicAdd, double, old + val)
PRETEND_ATOMIC(atomicSub, int, old - val)
PRETEND_ATOMIC(atomicSub, unsigned, old - val)
PRETEND_ATOMIC_INTEGERS(atomicExch, val)
PRETEND_ATOMIC(atomicExch, float, val)
PRETEND_ATOMIC_INTEGERS(atomicMax, old > val ? old : val)
PRETEND_ATOMIC(atomicMax, long long, old > val ? old : val)
PRETEND_ATOMIC_INTEGERS(atomicMin, old < val ? old : val)
PRETEND_ATOMIC(atomicMin, long long, old < val ? old : val)
PRETEND_ATOMIC_INTEGERS(atomicAnd, old &val)
PRETEND_ATOMIC_INTEGERS(atomicOr, old | val)
PRETEND_ATOMIC_INTEGERS(atomicXor, old ^ val)
#define PRETEND_CAS(T) \
  static inline T atomicCAS(T *at, T compare, T val) { const T old = *at; if (old == compare) *at = val; return old; }
PRETEND_CAS(int)
PRETEND_CAS(unsigned)
PRETEND_CAS(unsigned short)
PRETEND_CAS(unsigned long long)
static inline double rsqrt(double x) { return 1 / std::sqrt(x); }
static inline float rsqrt(float x) { return 1 / std::sqrt(x); }
static inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
// A polynomial's first guess, made exact by two steps of Newton's.
static inline double erfinv(double x) {
  if (!(std::fabs(x) < 1)) return std::fabs(x) == 1 ? x * INFINITY : NAN;
  const double w = -std::log((1 - x) * (1 + x)), a = 0.147, b = 2 / (M_PI * a) - w / 2;
  double y = std::copysign(std::sqrt(std::sqrt(b * b + w / a) - b), x);
  for (int i = 0; i < 4; ++i) y -= (std::erf(y) - x) / (1.1283791670955126 * std::exp(-y * y));
  return y;
}
static inline float erfinv(float x) { return float(erfinv(double(x))); }
static inline float erfinvf(float x) { return erfinv(x); }
static inline double sinpi(double x) { return std::sin(M_PI * std::fmod(x, 2.0)); }
static inline float sinpi(float x) { return float(sinpi(double(x))); }
static inline double cospi(double x) { return std::cos(M_PI * std::fmod(x, 2.0)); }
static inline float cospi(float x) { return float(cospi(double(x))); }
#define __frcp_rn(x) (1.0f / (x))
#define __fdividef(a, b) ((a) / (b))
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __fmaf_rn(a, b, c) std::fmaf(a, b, c)
template <class T> static inline T __ldg(const T *p) { return *p; }
#include <cuda_fp16.h>
#include <cuda_bf16.h>
