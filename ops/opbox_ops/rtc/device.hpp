// What a CUDA kernel sees when it runs on a CPU: its coordinates, qualifiers, shared memory, barriers and warp functions.
// The functions that are always inlined are seen under the line of the kernel that calls them.
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __inline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __CUDA_ARCH__ 900
#define __CUDACC__
#define OPBOX_INLINE __attribute__((always_inline)) inline

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  operator uint3() const { return {x, y, z}; }
};

extern "C" {
#define OPBOX_HIDDEN __attribute__((visibility("hidden")))
OPBOX_HIDDEN extern const uint3 opbox_thread, opbox_block;
OPBOX_HIDDEN extern const uint3 opbox_block_size, opbox_grid_size;
OPBOX_HIDDEN extern uint64_t opbox_lanes[1024][32];
OPBOX_HIDDEN extern char opbox_dynamic_shared[];
OPBOX_HIDDEN int opbox_barrier(int line, int predicate, int function);
OPBOX_HIDDEN uint32_t opbox_warp(int function, uint32_t mask, uint64_t value, int line);
[[noreturn]] OPBOX_HIDDEN void opbox_assert(const char *text, int line);
[[noreturn]] OPBOX_HIDDEN void opbox_trap(int line);
OPBOX_HIDDEN void *opbox_malloc(size_t n);
OPBOX_HIDDEN void opbox_free(void *given);
OPBOX_HIDDEN void opbox_run(void (*kernel)(void **), void **args, int32_t count, const int32_t *in_array, const int64_t *offsets,
                            const void *given, int32_t given_count, const uint32_t *grid, const uint32_t *block,
                            size_t shared, int32_t waits, void *report);
OPBOX_HIDDEN void __asan_loadN_noabort(uintptr_t at, size_t n);
OPBOX_HIDDEN void __asan_storeN_noabort(uintptr_t at, size_t n);
}

namespace opbox {

// These are the emulator's own, so what reads them is not checked.
#define OPBOX_OWN __attribute__((no_sanitize("address"), no_sanitize("undefined")))
OPBOX_OWN inline uint3 thread() { return opbox_thread; }
OPBOX_OWN inline uint3 block() { return opbox_block; }
OPBOX_OWN inline dim3 block_size() { return opbox_block_size; }
OPBOX_OWN inline dim3 grid_size() { return opbox_grid_size; }
OPBOX_OWN inline unsigned number() {
  return opbox_thread.x + opbox_block_size.x * (opbox_thread.y + opbox_block_size.y * opbox_thread.z);
}
OPBOX_OWN inline uint64_t given_by(unsigned lane) { return opbox_lanes[number()][lane]; }

template <class T> uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= 8, "a warp function takes values of 8 bytes at most");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T> T value_of(uint64_t bits) {
  T value;
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
inline unsigned lane() { return number() & 31; }

enum Function { SYNC, SHUFFLE, UP, DOWN, XOR, BALLOT, ANY, ALL, MATCH, MATCH_ALL, REDUCE };

// The value of lane `from` after all of `mask` gave theirs; a lane that is not there gives bits that are all set (NaN).
template <class T> T exchange(int function, unsigned mask, T value, unsigned from, int line) {
  opbox_warp(function, mask, bits_of(value), line);
  return value_of<T>(given_by(from));
}

// The kernel's parameters are what args point at.
template <class... A, size_t... I> OPBOX_OWN void call(void (*kernel)(A...), void **args, std::index_sequence<I...>) {
  kernel(*(std::remove_reference_t<A> *)args[I]...);
}
template <class... A> OPBOX_OWN void call(void (*kernel)(A...), void **args) {
  call(kernel, args, std::index_sequence_for<A...>{});
}
// One letter a parameter: p pointer, f floating, i anything else; and its size.
template <class T> constexpr int parameter() {
  return int(sizeof(T)) * 4 + (std::is_pointer_v<T> ? 1 : std::is_floating_point_v<T> ? 2 : 0);
}
template <class... A> OPBOX_OWN int parameters(void (*)(A...), int *kinds) {
  const int found[] = {parameter<A>()..., 0};
  for (size_t i = 0; i < sizeof...(A) && i < 512; ++i) kinds[i] = found[i];
  return int(sizeof...(A));
}

}  // namespace opbox

#define threadIdx (::opbox::thread())
#define blockIdx (::opbox::block())
#define blockDim (::opbox::block_size())
#define gridDim (::opbox::grid_size())
#define warpSize 32
#define __syncthreads() ((void)opbox_barrier(__LINE__, 0, 0))
#define __syncthreads_count(p) opbox_barrier(__LINE__, bool(p), 0)
#define __syncthreads_and(p) opbox_barrier(__LINE__, bool(p), 1)
#define __syncthreads_or(p) opbox_barrier(__LINE__, bool(p), 2)
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __threadfence_system() ((void)0)
#define __nanosleep(n) ((void)(n))
#define __trap() opbox_trap(__LINE__)
#define assert(...) ((__VA_ARGS__) ? (void)0 : opbox_assert(#__VA_ARGS__, __LINE__))



inline long long clock64() { return clock(); }

OPBOX_INLINE void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
  opbox_warp(opbox::SYNC, mask, 0, line);
}
inline unsigned __activemask(int line = __builtin_LINE()) { return opbox_warp(-1, 0, 0, line); }

template <class T> T __shfl_sync(unsigned mask, T value, int from, int width = 32, int line = __builtin_LINE()) {
  const unsigned first = opbox::lane() & ~(width - 1);
  return opbox::exchange(opbox::SHUFFLE, mask, value, first + (from & (width - 1)), line);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) {
  const unsigned lane = opbox::lane(), inside = lane & (width - 1);
  return opbox::exchange(opbox::UP, mask, value, inside < by ? lane : lane - by, line);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) {
  const unsigned lane = opbox::lane(), inside = lane & (width - 1);
  return opbox::exchange(opbox::DOWN, mask, value, inside + by >= unsigned(width) ? lane : lane + by, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, int line = __builtin_LINE()) {
  const unsigned lane = opbox::lane(), from = lane ^ unsigned(with), end = (lane & ~(width - 1)) + width;
  return opbox::exchange(opbox::XOR, mask, value, from >= end || from > 31 ? lane : from, line);
}

namespace opbox {
template <class Test> unsigned lanes_where(int function, unsigned mask, uint64_t value, int line, Test test) {
  const unsigned came = opbox_warp(function, mask, value, line);
  unsigned found = 0;
  for (unsigned other = 0; other < 32; ++other)
    if (came >> other & 1 && test(given_by(other))) found |= 1u << other;
  return found;
}
template <class T, class Join> T reduced(unsigned mask, T value, int line, Join join) {
  const unsigned came = opbox_warp(REDUCE, mask, bits_of(value), line), mine = lane();
  for (unsigned other = 0; other < 32; ++other)
    if (came >> other & 1 && other != mine) value = join(value, value_of<T>(given_by(other)));
  return value;
}
}  // namespace opbox

inline unsigned __ballot_sync(unsigned mask, int p, int line = __builtin_LINE()) {
  return opbox::lanes_where(opbox::BALLOT, mask, p != 0, line, [](uint64_t v) { return v != 0; });
}
inline int __any_sync(unsigned mask, int p, int line = __builtin_LINE()) {
  return opbox::lanes_where(opbox::ANY, mask, p != 0, line, [](uint64_t v) { return v != 0; }) != 0;
}
inline int __all_sync(unsigned mask, int p, int line = __builtin_LINE()) {
  return opbox::lanes_where(opbox::ALL, mask, p != 0, line, [](uint64_t v) { return v == 0; }) == 0;
}
template <class T> unsigned __match_any_sync(unsigned mask, T value, int line = __builtin_LINE()) {
  const uint64_t mine = opbox::bits_of(value);
  return opbox::lanes_where(opbox::MATCH, mask, mine, line, [=](uint64_t v) { return v == mine; });
}
template <class T> unsigned __match_all_sync(unsigned mask, T value, int *all, int line = __builtin_LINE()) {
  const uint64_t mine = opbox::bits_of(value);
  const bool differs = opbox::lanes_where(opbox::MATCH_ALL, mask, mine, line, [=](uint64_t v) { return v != mine; });
  *all = !differs;
  return differs ? 0 : mask;
}
#define OPBOX_REDUCE(name, T, expression)                                        \
  inline T name(unsigned mask, T value, int line = __builtin_LINE()) {           \
    return opbox::reduced(mask, value, line, [](T a, T b) -> T { return expression; }); }
OPBOX_REDUCE(__reduce_add_sync, unsigned, a + b)
OPBOX_REDUCE(__reduce_add_sync, int, a + b)
OPBOX_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
OPBOX_REDUCE(__reduce_min_sync, int, a < b ? a : b)
OPBOX_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
OPBOX_REDUCE(__reduce_max_sync, int, a > b ? a : b)
OPBOX_REDUCE(__reduce_and_sync, unsigned, a & b)
OPBOX_REDUCE(__reduce_or_sync, unsigned, a | b)
OPBOX_REDUCE(__reduce_xor_sync, unsigned, a ^ b)

// Copies of bytes are checked whole.
OPBOX_INLINE void *opbox_memcpy(void *to, const void *from, size_t n) {
  __asan_loadN_noabort((uintptr_t)from, n);
  __asan_storeN_noabort((uintptr_t)to, n);
  return __builtin_memmove(to, from, n);
}
OPBOX_INLINE void *opbox_memset(void *to, int value, size_t n) {
  __asan_storeN_noabort((uintptr_t)to, n);
  return __builtin_memset(to, value, n);
}

#define memcpy opbox_memcpy
#define memmove opbox_memcpy
#define memset opbox_memset
#define malloc opbox_malloc
#define free opbox_free
#ifdef __clang__
#define OPBOX_NEW  // it has an option for their visibility
#else
#define OPBOX_NEW OPBOX_HIDDEN
#endif
OPBOX_NEW void *operator new(size_t n) { return opbox_malloc(n); }
OPBOX_NEW void *operator new[](size_t n) { return opbox_malloc(n); }
OPBOX_NEW void operator delete(void *given) noexcept { opbox_free(given); }
OPBOX_NEW void operator delete[](void *given) noexcept { opbox_free(given); }
OPBOX_NEW void operator delete(void *given, size_t) noexcept { opbox_free(given); }
OPBOX_NEW void operator delete[](void *given, size_t) noexcept { opbox_free(given); }

#define OPBOX_LAUNCH(n)                                                                                          \
  extern "C" __attribute__((visibility("default"))) void opbox_launch_##n(                                       \
      void **args, int32_t count, const int32_t *in_array, const int64_t *offsets, const void *given,            \
      int32_t given_count, const uint32_t *grid, const uint32_t *block, size_t shared, int32_t waits, void *report) { \
    opbox_run(opbox_call_##n, args, count, in_array, offsets, given, given_count, grid, block, shared, waits, report); \
  }
