// Fibers: the threads of a block, which wait for each other at barriers and at warp functions.
enum State { READY, DONE, AT_BARRIER, AT_WARP, AT_ACTIVE };
struct Fiber {
  jmp_buf resume;
  int state, line, function;
  uint32_t mask;
  uint64_t value;
};
static Fiber fibers[MAX_THREADS];
static size_t made, running;
static char *stacks;
// Below the first stack, so that a stack that is too small is told by the next check of an access.
constexpr size_t SPARE = 4 << 20;
static jmp_buf scheduler;
static ucontext_t first_context, scheduler_context;
static void (*body)(void **);
static void **body_args;
static int64_t counted, all_true, any_true;

static void coordinates(size_t t) {
  const size_t row = t / opbox_block_size.x;
  opbox_thread = {uint32_t(t % opbox_block_size.x), uint32_t(row % opbox_block_size.y), uint32_t(row / opbox_block_size.y)};
}

static void wait(int state) {
  Fiber &fiber = fibers[running];
  fiber.state = state;
  if (_setjmp(fiber.resume) == 0) _longjmp(scheduler, 1);
}

// A fiber runs one thread of each block, so it is made once a launch.
static void fiber_main() {
  for (;;) {
    body(body_args);
    wait(DONE);
  }
}

static void run(size_t t) {
  running = t;
  coordinates(t);
  stack_begin = (uintptr_t)stacks + SPARE + t * stack_size;
  if (_setjmp(scheduler)) return;
  if (t < made) _longjmp(fibers[t].resume, 1);
  made = t + 1;
  getcontext(&first_context);
  first_context.uc_stack.ss_sp = (void *)stack_begin;
  first_context.uc_stack.ss_size = stack_size;
  first_context.uc_link = nullptr;
  makecontext(&first_context, fiber_main, 0);
  swapcontext(&scheduler_context, &first_context);
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

static void release(size_t first, uint32_t group) {
  for (size_t lane = 0; lane < 32; ++lane) {
    if (!(group >> lane & 1)) continue;
    uint64_t *seen = opbox_lanes[first + lane];
    for (size_t other = 0; other < 32; ++other)
      seen[other] = group >> other & 1 ? fibers[first + other].value : ~uint64_t(0);
  }
  for (size_t lane = 0; lane < 32; ++lane)
    if (group >> lane & 1) {
      fibers[first + lane].mask = group;
      fibers[first + lane].state = READY;
    }
}

static bool release_warp(size_t first, size_t threads) {
  const size_t lanes = threads - first < 32 ? threads - first : 32;
  uint32_t alive = 0;
  for (size_t lane = 0; lane < lanes; ++lane)
    if (fibers[first + lane].state != DONE) alive |= 1u << lane;
  bool released = false;
  for (size_t lane = 0; lane < lanes; ++lane) {
    const Fiber &fiber = fibers[first + lane];
    if (fiber.state != AT_WARP) continue;
    const uint32_t group = fiber.mask & alive;
    bool all = true;
    for (size_t other = 0; other < lanes && all; ++other) {
      const Fiber &peer = fibers[first + other];
      if (group >> other & 1) all = peer.state == AT_WARP && peer.mask == fiber.mask && peer.function == fiber.function;
    }
    if (all) { release(first, group); released = true; }
  }
  // Threads that ask which are active run together as far as they can.
  for (size_t lane = 0; lane < lanes && !released; ++lane) {
    if (fibers[first + lane].state != AT_ACTIVE) continue;
    uint32_t group = 0;
    for (size_t other = lane; other < lanes; ++other) {
      const Fiber &peer = fibers[first + other];
      if (peer.state == AT_ACTIVE && peer.line == fibers[first + lane].line) group |= 1u << other;
    }
    release(first, group);
    released = true;
  }
  return released;
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

static void run_block_of_fibers(size_t threads) {
  for (size_t t = 0; t < threads; ++t) fibers[t].state = READY;
  for (;;) {
    for (size_t t = 0; t < threads; ++t)
      if (fibers[t].state == READY) run(t);
    size_t alive = 0;
    for (size_t t = 0; t < threads; ++t) alive += fibers[t].state != DONE;
    if (alive == 0) return;
    bool released = false;
    for (size_t first = 0; first < threads; first += 32) released |= release_warp(first, threads);
    if (!released) release_barrier(threads);
  }
}
