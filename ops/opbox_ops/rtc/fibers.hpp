// Fibers: the threads of a block, which wait for each other at barriers and at warp functions.
//
// Whoever includes this has MAX_THREADS, stack_size and lane_values[MAX_THREADS][32], and defines the two functions here:
static char *enter(size_t thread);            // makes it the thread that runs; where its stack begins
static void release_barrier(size_t threads);  // no thread can go on but for a barrier: let them, or stop the launch

enum State { READY, DONE, AT_BARRIER, AT_WARP, AT_ACTIVE };
struct Fiber {
  jmp_buf resume;
  int state, line, function;
  uint32_t mask;
  uint64_t value;
};
static Fiber fibers[MAX_THREADS];
static size_t made, running;
static jmp_buf scheduler;
static ucontext_t first_context, scheduler_context;
static void (*body)(void **);
static void **body_args;

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
  char *stack = enter(t);
  if (_setjmp(scheduler)) return;
  if (t < made) _longjmp(fibers[t].resume, 1);
  made = t + 1;
  getcontext(&first_context);
  first_context.uc_stack.ss_sp = stack;
  first_context.uc_stack.ss_size = stack_size;
  first_context.uc_link = nullptr;
  makecontext(&first_context, fiber_main, 0);
  swapcontext(&scheduler_context, &first_context);
}

static void release(size_t first, uint32_t group) {
  for (size_t lane = 0; lane < 32; ++lane) {
    if (!(group >> lane & 1)) continue;
    uint64_t *seen = lane_values[first + lane];
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
