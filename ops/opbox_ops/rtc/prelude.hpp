// What a CUDA kernel sees when it runs on a CPU: thread coordinates, checked pointers, barriers, atomics, CUDA's functions.
// One block at a time; the threads of a block are loops, or fibers where the kernel has a barrier.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static const
#define __restrict__
#define __launch_bounds__(...)
#define OPBOX_SHARED static

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };

namespace opbox {

// The answer of a launch; the Python side mirrors this layout.
struct Report {
  int32_t kind;        // 0 fine, 1 index out of range, 2 threads at different barriers, 3 null pointer
  int32_t line;        // of the user's source
  int32_t other_line;  // the other barrier
  int32_t argument;    // position of the array among the kernel's arguments, -1: shared or local memory
  int64_t index, size;
  uint32_t thread[3], block[3];
};

struct Stop {};  // ends one emulated thread; the report says why

struct Array { const char *begin, *end; int32_t argument; int64_t itemsize; };

static std::vector<Array> arrays;
static Report report;
static uint3 thread_index, block_index;
static dim3 block_size, grid_size;
static char *dynamic_shared;
static size_t dynamic_bytes;

[[noreturn]] inline void fail(int kind, int line, int argument, int64_t index, int64_t size) {
  if (report.kind == 0) {
    report = {kind, line, 0, argument, index, size,
              {thread_index.x, thread_index.y, thread_index.z}, {block_index.x, block_index.y, block_index.z}};
  }
  throw Stop{};
}

// An index that remembers the line it was written on: a default argument is worked out where the conversion happens.
struct Index {
  int64_t value; int line;
  template <class I, class = std::enable_if_t<std::is_integral_v<I> || std::is_enum_v<I>>>
  Index(I i, int at = __builtin_LINE()) : value(static_cast<int64_t>(i)), line(at) {}
};

// A pointer that knows its array. Made from a raw address, it finds the array that the address lies in.
template <class T> struct Ptr {
  T *at = nullptr; T *begin = nullptr; int64_t size = -1; int32_t argument = -1; int line = 0;
  using Plain = std::remove_cv_t<T>;
  Ptr() = default;
  Ptr(std::nullptr_t) {}
  Ptr(T *raw, T *first, int64_t n, int32_t position) : at(raw), begin(first), size(n), argument(position) {}
  Ptr(T *raw, int written = __builtin_LINE()) : at(raw), line(written) { find(); }
  template <class U, class = std::enable_if_t<!std::is_same_v<U, T>>>
  Ptr(const Ptr<U> &other) : at((T *)other.at), line(other.line) {
    if (other.size >= 0) {
      begin = (T *)other.begin;
      size = other.size * int64_t(bytes<U>()) / int64_t(bytes<T>());
      argument = other.argument;
    }
  }
  template <class U, class = std::enable_if_t<!std::is_convertible_v<U *, T *>>>
  explicit Ptr(U *raw, int written = __builtin_LINE()) : at((T *)raw), line(written) { find(); }
  template <class U> static constexpr size_t bytes() { if constexpr (std::is_void_v<U>) return 1; else return sizeof(U); }
  void find() {
    const char *raw = (const char *)at;
    for (const Array &array : arrays)
      if (raw >= array.begin && raw < array.end) {
        begin = (T *)array.begin;
        size = (array.end - array.begin) / int64_t(bytes<T>());
        argument = array.argument;
        return;
      }
  }
  T *check(int64_t offset, int where) const {
    if (at == nullptr) fail(3, where, argument, offset, 0);
    if (size >= 0) {
      const int64_t index = (at - begin) + offset;
      if (index < 0 || index >= size) fail(1, where, argument, index, size);
    }
    return at + offset;
  }
  template <class U = T> U &operator[](Index i) const { return *check(i.value, i.line); }
  template <class U = T> U &operator*() const { return *check(0, line); }
  T *operator->() const { return check(0, line); }
  Ptr moved(int64_t n, int where) const { Ptr next = *this; next.at += n; next.line = where; return next; }
  Ptr operator+(Index i) const { return moved(i.value, i.line); }
  Ptr operator-(Index i) const { return moved(-i.value, i.line); }
  friend Ptr operator+(Index i, const Ptr &p) { return p.moved(i.value, i.line); }
  template <class U> ptrdiff_t operator-(const Ptr<U> &other) const { return at - other.at; }
  Ptr &operator+=(Index i) { return *this = moved(i.value, i.line); }
  Ptr &operator-=(Index i) { return *this = moved(-i.value, i.line); }
  Ptr &operator++() { ++at; return *this; }
  Ptr &operator--() { --at; return *this; }
  Ptr operator++(int) { Ptr was = *this; ++at; return was; }
  Ptr operator--(int) { Ptr was = *this; --at; return was; }
  explicit operator bool() const { return at != nullptr; }
  template <class U> bool operator==(const Ptr<U> &o) const { return at == o.at; }
  template <class U> bool operator!=(const Ptr<U> &o) const { return at != o.at; }
  template <class U> bool operator<(const Ptr<U> &o) const { return at < o.at; }
  bool operator==(std::nullptr_t) const { return at == nullptr; }
  bool operator!=(std::nullptr_t) const { return at != nullptr; }
};

// Argument `position` of the kernel, with its bounds.
template <class T> Ptr<T> argument(void **args, int32_t position) {
  T *raw = *(T **)args[position];
  for (const Array &array : arrays)
    if (array.argument == position) return Ptr<T>(raw, raw, (array.end - array.begin) / int64_t(sizeof(T)), position);
  return Ptr<T>();
}

template <class To, class From> To cast(const From &from) { return To(from); }

// An array in shared or local memory of a known length.
template <class T, size_t N> struct Fixed {
  T items[N];
  T &operator[](Index i) {
    if (i.value < 0 || i.value >= int64_t(N)) fail(1, i.line, -1, i.value, N);
    return items[i.value];
  }
  const T &operator[](Index i) const { return const_cast<Fixed *>(this)->operator[](i); }
  operator Ptr<T>() { return Ptr<T>(items, items, N, -1); }
  operator Ptr<const T>() const { return Ptr<const T>(items, items, N, -1); }
  T &operator*() { return items[0]; }
  Ptr<T> operator+(Index i) { return Ptr<T>(*this) + i; }
};

template <class T> Ptr<T> shared_bytes() {
  return Ptr<T>((T *)dynamic_shared, (T *)dynamic_shared, int64_t(dynamic_bytes / sizeof(T)), -1);
}

// Fibers: the threads of a block that meet at barriers.
constexpr size_t STACK = 256 << 10;
struct Fiber { ucontext_t context; bool done; int barrier; };
static std::vector<Fiber> fibers;
static char *stacks = nullptr;
static size_t stack_bytes = 0;
static ucontext_t scheduler;
static size_t running;
static void (*body)(void **) = nullptr;
static void **body_args = nullptr;
static bool with_fibers = false;

inline void coordinates(size_t t) {
  thread_index = {unsigned(t % block_size.x), unsigned(t / block_size.x % block_size.y),
                  unsigned(t / (size_t(block_size.x) * block_size.y))};
}

inline void run_one() {
  try { body(body_args); } catch (const Stop &) {}
}

inline void fiber_main() {
  run_one();
  fibers[running].done = true;
  swapcontext(&fibers[running].context, &scheduler);
}

inline void barrier(int line) {
  if (!with_fibers) return;
  fibers[running].barrier = line;
  swapcontext(&fibers[running].context, &scheduler);
  if (report.kind) throw Stop{};
}

inline void run_block_of_fibers(size_t threads) {
  fibers.assign(threads, Fiber{});
  for (size_t t = 0; t < threads; ++t) {
    Fiber &fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks + t * STACK;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, (void (*)())fiber_main, 0);
  }
  for (bool alive = true; alive;) {
    alive = false;
    int line = 0;
    for (running = 0; running < threads; ++running) {
      if (fibers[running].done) continue;
      coordinates(running);
      fibers[running].barrier = 0;
      swapcontext(&scheduler, &fibers[running].context);
      if (fibers[running].done) continue;
      alive = true;
      const int reached = fibers[running].barrier;
      if (line == 0) line = reached;
      else if (line != reached && report.kind == 0) {
        report = {2, line, reached, -1, 0, 0,
                  {thread_index.x, thread_index.y, thread_index.z}, {block_index.x, block_index.y, block_index.z}};
      }
    }
  }
}

inline int launch(void (*kernel)(void **), void **args, const Array *known, int32_t count, const uint32_t *grid,
                  const uint32_t *block, size_t shared, bool barriers, Report *out) {
  arrays.assign(known, known + count);
  report = Report{};
  grid_size = dim3(grid[0], grid[1], grid[2]);
  block_size = dim3(block[0], block[1], block[2]);
  std::unique_ptr<char[]> memory(new char[shared + 64]());
  dynamic_shared = (char *)((uintptr_t(memory.get()) + 63) & ~uintptr_t(63));
  dynamic_bytes = shared;
  body = kernel;
  body_args = args;
  with_fibers = barriers;
  const size_t threads = size_t(block[0]) * block[1] * block[2];
  if (barriers && threads * STACK > stack_bytes) {
    if (stacks) munmap(stacks, stack_bytes);
    stack_bytes = threads * STACK;
    stacks = (char *)mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) { stacks = nullptr; stack_bytes = 0; return -1; }
  }
  for (unsigned z = 0; z < grid[2] && !report.kind; ++z)
    for (unsigned y = 0; y < grid[1] && !report.kind; ++y)
      for (unsigned x = 0; x < grid[0] && !report.kind; ++x) {
        block_index = {x, y, z};
        if (barriers) run_block_of_fibers(threads);
        else
          for (size_t t = 0; t < threads && !report.kind; ++t) { coordinates(t); run_one(); }
      }
  *out = report;
  return report.kind;
}

}  // namespace opbox

#define threadIdx (::opbox::thread_index)
#define blockIdx (::opbox::block_index)
#define blockDim (::opbox::block_size)
#define gridDim (::opbox::grid_size)
#define warpSize 32
#define __syncthreads() ::opbox::barrier(__LINE__)
#define __threadfence()
#define __threadfence_block()

// CUDA's overloads for min and max, its fast approximations, and the float forms.
template <class A, class B> auto min(A a, B b) -> std::common_type_t<A, B> { return a < b ? a : b; }
template <class A, class B> auto max(A a, B b) -> std::common_type_t<A, B> { return a > b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rcbrtf(float x) { return 1.0f / std::cbrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __saturatef(float x) { return x < 0 ? 0.0f : x > 1 ? 1.0f : x; }
inline float fdividef(float x, float y) { return x / y; }
inline float exp10f(float x) { return std::pow(10.0f, x); }
inline float sinpif(float x) { return std::sin(3.14159265358979323846f * x); }
inline float cospif(float x) { return std::cos(3.14159265358979323846f * x); }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __float2int_rd(float x) { return int(std::floor(x)); }
inline int __float2int_ru(float x) { return int(std::ceil(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline float __int2float_rn(int x) { return float(x); }
inline int __float_as_int(float x) { int i; std::memcpy(&i, &x, 4); return i; }
inline float __int_as_float(int x) { float f; std::memcpy(&f, &x, 4); return f; }
inline int __mul24(int a, int b) { return a * b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
template <class T> T __ldg(const T *p) { return *::opbox::Ptr<const T>(p); }
template <class T> T __ldg(const ::opbox::Ptr<T> &p) { return *p; }

// Atomics: emulated threads take turns, so a plain read and write is one.
#define OPBOX_ATOMIC(name, expression)                                                                              \
  template <class T, class V> std::remove_cv_t<T> name(const ::opbox::Ptr<T> &p, V v) {                             \
    T &at = *p; const T old = at; const T val = T(v); at = (expression); return old; }                              \
  template <class T, class V> T name(T *p, V v) { return name(::opbox::Ptr<T>(p), v); }
OPBOX_ATOMIC(atomicAdd, old + val)
OPBOX_ATOMIC(atomicSub, old - val)
OPBOX_ATOMIC(atomicExch, val)
OPBOX_ATOMIC(atomicMin, old < val ? old : val)
OPBOX_ATOMIC(atomicMax, old > val ? old : val)
OPBOX_ATOMIC(atomicAnd, old & val)
OPBOX_ATOMIC(atomicOr, old | val)
OPBOX_ATOMIC(atomicXor, old ^ val)
OPBOX_ATOMIC(atomicInc, old >= val ? T(0) : T(old + 1))
OPBOX_ATOMIC(atomicDec, (old == 0 || old > val) ? val : T(old - 1))
template <class T, class C, class V> T atomicCAS(const ::opbox::Ptr<T> &p, C compare, V v) {
  T &at = *p; const T old = at; if (old == T(compare)) at = T(v); return old; }
template <class T, class C, class V> T atomicCAS(T *p, C compare, V v) { return atomicCAS(::opbox::Ptr<T>(p), compare, v); }

#define OPBOX_VECTOR(T, name)                                                                  \
  struct name##2 { T x, y; }; struct name##3 { T x, y, z; }; struct name##4 { T x, y, z, w; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                   \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                           \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
OPBOX_VECTOR(float, float)
OPBOX_VECTOR(double, double)
OPBOX_VECTOR(int, int)

using std::abs; using std::isinf; using std::isnan; using std::isfinite;
