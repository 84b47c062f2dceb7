// How a kernel's threads wait, and what is wrong when some never come: fibers.hpp for the emulator.
static char *stacks;
// Below the first stack, so that a stack that is too small is told by the next check of an access.
constexpr size_t SPARE = 4 << 20;
static int64_t counted, all_true, any_true;

static void coordinates(size_t t) {
  const size_t row = t / opbox_block_size.x;
  opbox_thread = {uint32_t(t % opbox_block_size.x), uint32_t(row % opbox_block_size.y), uint32_t(row / opbox_block_size.y)};
}

static char *enter(size_t t) {
  coordinates(t);
  stack_begin = (uintptr_t)stacks + SPARE + t * stack_size;
  return (char *)stack_begin;
}

extern "C" HIDDEN int opbox_barrier(int line, int predicate, int function) {
  fibers[running].line = line;
  fibers[running].value = uint64_t(predicate != 0);
  wait(AT_BARRIER);
  return int(function == 0 ? counted : function == 1 ? all_true : any_true);
}

// Waits for the lanes of `mask`; the values that they gave are in opbox_lanes afterwards. The lanes that came.
extern "C" HIDDEN uint32_t opbox_warp(int function, uint32_t mask, uint64_t value, int line) {
  Fiber &fiber = fibers[running];
  fiber.line = line;
  fiber.function = function;
  fiber.mask = mask;
  fiber.value = value;
  if (function >= 0 && !(mask >> (running & 31) & 1)) {
    report.mask = mask;
    report.other_thread = -1;
    stop(WARP, line, nullptr);
  }
  wait(function < 0 ? AT_ACTIVE : AT_WARP);
  return fiber.mask;
}

static void release_barrier(size_t threads) {
  int line = 0;
  counted = any_true = 0;
  all_true = 1;
  for (size_t t = 0; t < threads; ++t) {
    const Fiber &fiber = fibers[t];
    if (fiber.state == DONE) continue;
    coordinates(t);
    if (fiber.state == AT_WARP) {
      report.mask = fiber.mask;
      for (size_t peer = t & ~size_t(31); peer < threads && peer < (t | 31) + 1; ++peer) {
        const Fiber &other = fibers[peer];
        const bool there = other.state == AT_WARP && other.mask == fiber.mask && other.function == fiber.function;
        if (!(fiber.mask >> (peer & 31) & 1) || other.state == DONE || there) continue;
        report.other_line = other.line;
        report.other_thread = int(peer);
      }
      stop(WARP, fiber.line, nullptr);
    }
    if (line == 0) line = fiber.line;
    if (line != fiber.line) {
      report.other_line = fiber.line;
      stop(BARRIERS, line, nullptr);
    }
    counted += int64_t(fiber.value);
    all_true &= int64_t(fiber.value);
    any_true |= int64_t(fiber.value);
  }
  for (size_t t = 0; t < threads; ++t)
    if (fibers[t].state == AT_BARRIER) fibers[t].state = READY;
}
