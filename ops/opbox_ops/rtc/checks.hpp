// Every access of an emulated kernel is checked before it is made: the compiler calls the __asan_ and __ubsan_ functions
// below from the kernel's code. This file, fibers.hpp and runtime.hpp are one program, compiled without such calls.
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define CALLER __builtin_return_address(0)

enum Kind { FINE, OUTSIDE, BARRIERS, NOTHING, NAMED, NOWHERE, MISALIGNED, DIVISION, CONSTANT, BOUNDS, ASSERT, TRAP, WARP, SHARED, ROOM, DEEP };

// The answer of a launch; the Python side mirrors this layout, and that of Array.
struct Report {
  int32_t kind, line, other_line, column, argument, other_thread;
  int64_t index, size, code;
  uint32_t thread[3], block[3], mask;
  char text[160];
};
// Memory that a launch works on; several arguments may lie in it.
struct Array {
  char *memory;
  int64_t bytes;
  int32_t argument, itemsize, writable;
};
struct Coordinates { uint32_t x, y, z; };
struct Place { const char *file; uint32_t line, column; };
struct Type { uint16_t kind, info; char name[1]; };
struct Global { uintptr_t begin; size_t size, with_gap; const char *name, *module; size_t dynamic; Place *place; size_t odr; };

constexpr int MAX_ARRAYS = 512, MAX_THREADS = 1024, MAX_GLOBALS = 4096;
constexpr size_t STACKS = 256 << 20, MOST_STACK = 1 << 20, MAX_SHARED = 227 << 10;
// Arrays lie far apart, so that a wrong index is seen and told by the array it started from, not by the one it hits.
constexpr uintptr_t FIRST = uintptr_t(1) << 44, APART = uintptr_t(1) << 36;

extern "C" {
HIDDEN Coordinates opbox_thread, opbox_block, opbox_block_size, opbox_grid_size;
HIDDEN uint64_t opbox_lanes[MAX_THREADS][32];
static auto &lane_values = opbox_lanes;
alignas(1024) HIDDEN char opbox_dynamic_shared[MAX_SHARED];
HIDDEN extern char __ehdr_start, _end;
}

static Report report;
static jmp_buf leave;
static Array arrays[MAX_ARRAYS];
static uintptr_t begins[MAX_ARRAYS], ends[MAX_ARRAYS];
static size_t array_count, dynamic_bytes;
static uintptr_t stack_begin, stack_size;
static Global globals[MAX_GLOBALS];
static size_t global_count;
// Where the variable of an address was found last, by bits of the address: there are 32 bytes or more between two.
static size_t recent[1024];
static inline size_t &found_at(uintptr_t at) { return recent[at >> 5 & 1023]; }

[[noreturn]] static void stop(int kind, int line, void *code) {
  report.kind = kind;
  report.line = line;
  report.code = code ? (char *)code - &__ehdr_start : 0;
  memcpy(report.thread, &opbox_thread, sizeof opbox_thread);
  memcpy(report.block, &opbox_block, sizeof opbox_block);
  _longjmp(leave, 1);
}

static void note(const char *text) { strncpy(report.text, text, sizeof report.text - 1); }

[[noreturn]] static void outside(int kind, uintptr_t at, uintptr_t begin, size_t bytes, size_t unit, void *code) {
  const int64_t offset = int64_t(at - begin);
  report.index = offset >= 0 ? offset / int64_t(unit) : -((-offset + int64_t(unit) - 1) / int64_t(unit));
  report.size = int64_t(bytes / unit);
  stop(kind, 0, code);
}

// What is no argument's memory: variables, shared memory, this thread's stack.
static __attribute__((noinline)) void check_others(uintptr_t at, size_t bytes, void *code) {
  if (at - stack_begin < stack_size) return;
  if ((uintptr_t)__builtin_frame_address(0) - stack_begin >= stack_size) {
    report.size = int64_t(stack_size);
    stop(DEEP, 0, code);
  }
  const bool variable = at - (uintptr_t)&__ehdr_start < (uintptr_t)(&_end - &__ehdr_start);
  const uintptr_t shared = at - (uintptr_t)opbox_dynamic_shared;
  if (shared < dynamic_bytes && shared + bytes <= dynamic_bytes) return;
  if (shared < MAX_SHARED || (!variable && shared + (1 << 20) < MAX_SHARED + (2 << 20)))
    outside(SHARED, at, (uintptr_t)opbox_dynamic_shared, dynamic_bytes, bytes, code);
  for (size_t i = 0; i < global_count; ++i) {
    const Global &each = globals[i];
    if (at - each.begin >= each.with_gap) continue;
    found_at(at) = i;
    if (at + bytes <= each.begin + each.size) return;
    note(each.name);
    outside(NAMED, at, each.begin, each.size, bytes, code);
  }
  if (!variable) stop(at + (1 << 20) < (2 << 20) ? NOTHING : NOWHERE, 0, code);
}

static inline void check(uintptr_t at, size_t bytes, bool write, void *code) {
  const uintptr_t slot = (at - FIRST) / APART;
  if (slot < array_count) {
    const bool inside = at >= begins[slot] && at + bytes <= ends[slot];
    if (inside && (!write || arrays[slot].writable)) return;
    report.argument = arrays[slot].argument;
    if (inside) stop(CONSTANT, 0, code);
    outside(OUTSIDE, at, begins[slot], arrays[slot].bytes, bytes == 1 ? arrays[slot].itemsize : bytes, code);
  }
  const Global &known = globals[found_at(at)];
  if (at >= known.begin && at + bytes <= known.begin + known.size) return;
  check_others(at, bytes, code);
}

extern "C" {
#define OPBOX_HOOK(n)                                                                                 \
  HIDDEN void __asan_load##n##_noabort(uintptr_t at) { check(at, n, false, CALLER); }                 \
  HIDDEN void __asan_store##n##_noabort(uintptr_t at) { check(at, n, true, CALLER); }
OPBOX_HOOK(1)
OPBOX_HOOK(2)
OPBOX_HOOK(4)
OPBOX_HOOK(8)
OPBOX_HOOK(16)
HIDDEN void __asan_loadN_noabort(uintptr_t at, size_t n) { if (n) check(at, n, false, CALLER); }
HIDDEN void __asan_storeN_noabort(uintptr_t at, size_t n) { if (n) check(at, n, true, CALLER); }
HIDDEN void __asan_handle_no_return() {}
HIDDEN void __asan_before_dynamic_init(const char *) {}
HIDDEN void __asan_after_dynamic_init() {}
HIDDEN void __asan_register_globals(Global *found, size_t n) {
  for (size_t i = 0; i < n && global_count < MAX_GLOBALS; ++i) globals[global_count++] = found[i];
}
HIDDEN void __asan_unregister_globals(Global *, size_t) {}

struct OutOfBounds { Place place; Type *array, *index; };
HIDDEN void __ubsan_handle_out_of_bounds(OutOfBounds *data, intptr_t index) {
  const int bits = 1 << (data->index->info >> 1);
  report.index = data->index->info & 1 ? int64_t(uint64_t(index) << (64 - bits)) >> (64 - bits) : index;
  report.column = int(data->place.column);
  note(data->array->name);
  stop(BOUNDS, int(data->place.line), nullptr);
}
struct TypeMismatch { Place place; Type *type; unsigned char log_alignment, access; };
HIDDEN void __ubsan_handle_type_mismatch_v1(TypeMismatch *data, uintptr_t at) {
  report.size = int64_t(1) << data->log_alignment;
  note(data->type->name);
  stop(at ? MISALIGNED : NOTHING, int(data->place.line), at ? nullptr : CALLER);
}
struct Overflow { Place place; Type *type; };
HIDDEN void __ubsan_handle_divrem_overflow(Overflow *data, uintptr_t, uintptr_t) {
  stop(DIVISION, int(data->place.line), nullptr);
}
HIDDEN void opbox_assert(const char *text, int line) { note(text); stop(ASSERT, line, nullptr); }
HIDDEN void opbox_trap(int line) { stop(TRAP, line, nullptr); }
// Memory of a kernel's malloc and new is known like a global.
HIDDEN void *opbox_malloc(size_t n) {
  void *made = global_count < MAX_GLOBALS ? malloc(n + 64) : nullptr;
  if (made) globals[global_count++] = {(uintptr_t)made, n, n + 64, "memory of malloc or new", "", 0, nullptr, 0};
  return made;
}
HIDDEN void opbox_free(void *given) {
  for (size_t i = 0; given && i < global_count; ++i)
    if (globals[i].begin == (uintptr_t)given) {
      globals[i] = globals[--global_count];
      free(given);
      return;
    }
}
}
