// Runs a grid on the CPU: blocks one after another, the threads of a block as fibers where the kernel has barriers.
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "driver_types.h"
#include "vector_types.h"

extern "C" {
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
alignas(1024) char pretend_dynamic[256 << 10];
uint64_t pretend_lanes[1024][32];
}

enum State { READY, DONE, AT_BARRIER, AT_WARP };
struct Fiber {
  jmp_buf resume;
  int state;
  uint32_t mask;
  uint64_t value;
};
static Fiber fibers[1024];
static size_t begun, running;
constexpr size_t STACK = 128 << 10;
static char *stacks;
static jmp_buf scheduler;
static sigjmp_buf leave;
static ucontext_t first_context, scheduler_context;
static void (*body)(void **);
static void **body_args;
static int counted, failure;

static void coordinates(size_t t) {
  const size_t row = t / blockDim.x;
  threadIdx = {unsigned(t % blockDim.x), unsigned(row % blockDim.y), unsigned(row / blockDim.y)};
}

static void wait(int state) {
  Fiber &fiber = fibers[running];
  fiber.state = state;
  if (_setjmp(fiber.resume) == 0) _longjmp(scheduler, 1);
}

static void fiber_main() {
  for (;;) {
    body(body_args);
    wait(DONE);
  }
}

static void run(size_t t) {
  running = t;
  coordinates(t);
  if (_setjmp(scheduler)) return;
  if (t < begun) _longjmp(fibers[t].resume, 1);
  begun = t + 1;
  getcontext(&first_context);
  first_context.uc_stack.ss_sp = stacks + t * STACK;
  first_context.uc_stack.ss_size = STACK;
  first_context.uc_link = nullptr;
  makecontext(&first_context, fiber_main, 0);
  swapcontext(&scheduler_context, &first_context);
}

extern "C" void pretend_stop(int status) {
  failure = status;
  siglongjmp(leave, 1);
}

extern "C" int pretend_count(int predicate) {
  fibers[running].value = uint64_t(predicate);
  wait(AT_BARRIER);
  return counted;
}

extern "C" void pretend_barrier() { pretend_count(0); }

// Waits for the lanes of `mask`, and answers which came.
extern "C" uint32_t pretend_warp(uint32_t mask, uint64_t value) {
  fibers[running].mask = mask;
  fibers[running].value = value;
  wait(AT_WARP);
  return fibers[running].mask;
}

static bool release_warp(size_t first, size_t threads) {
  const size_t lanes = threads - first < 32 ? threads - first : 32;
  bool released = false;
  for (size_t lane = 0; lane < lanes; ++lane) {
    if (fibers[first + lane].state != AT_WARP) continue;
    const uint32_t mask = fibers[first + lane].mask;
    uint32_t group = 0;
    bool all = true;
    for (size_t other = 0; other < lanes; ++other) {
      const Fiber &peer = fibers[first + other];
      if (!(mask >> other & 1) || peer.state == DONE) continue;
      group |= 1u << other;
      all = all && peer.state == AT_WARP && peer.mask == mask;
    }
    if (!all) continue;
    for (size_t to = 0; to < lanes; ++to)
      for (size_t from = 0; from < lanes && group >> to & 1; ++from) pretend_lanes[first + to][from] = fibers[first + from].value;
    for (size_t to = 0; to < lanes; ++to)
      if (group >> to & 1) {
        fibers[first + to].mask = group;
        fibers[first + to].state = READY;
      }
    released = true;
  }
  return released;
}

static void run_block(size_t threads) {
  for (size_t t = 0; t < threads; ++t) fibers[t].state = READY;
  for (;;) {
    for (size_t t = 0; t < threads; ++t)
      if (fibers[t].state == READY) run(t);
    size_t alive = 0, waiting = 0;
    for (size_t t = 0; t < threads; ++t) {
      alive += fibers[t].state != DONE;
      waiting += fibers[t].state == AT_BARRIER;
    }
    if (alive == 0) return;
    bool released = false;
    for (size_t first = 0; first < threads; first += 32) released |= release_warp(first, threads);
    if (released) continue;
    // Some wait for the block, others for lanes that do: a device would hang.
    if (waiting != alive) pretend_stop(702);
    counted = 0;
    for (size_t t = 0; t < threads; ++t)
      if (fibers[t].state == AT_BARRIER) {
        counted += int(fibers[t].value);
        fibers[t].state = READY;
      }
  }
}

static void fault(int) { pretend_stop(700); }

// The status: 0, 700 for an access to no memory, or what stopped the kernel.
extern "C" int pretend_launch(void (*kernel)(void **), int waits, const unsigned *sizes, void **args) {
  gridDim = dim3(sizes[0], sizes[1], sizes[2]);
  blockDim = dim3(sizes[3], sizes[4], sizes[5]);
  body = kernel;
  body_args = args;
  failure = 0;
  begun = 0;
  const size_t threads = size_t(blockDim.x) * blockDim.y * blockDim.z;
  if (threads == 0 || threads > 1024 || !gridDim.x || !gridDim.y || !gridDim.z || sizes[6] > sizeof pretend_dynamic) return 1;
  if (waits && !stacks) {
    stacks = (char *)mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return 2;
  }
  struct sigaction action, before[2];
  memset(&action, 0, sizeof action);
  action.sa_handler = fault;
  action.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &action, &before[0]);
  sigaction(SIGBUS, &action, &before[1]);
  if (sigsetjmp(leave, 1) == 0)
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
      for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
          memset(pretend_dynamic, 0xAB, sizes[6]);
          if (waits) run_block(threads);
          else
            for (size_t t = 0; t < threads; ++t) {
              coordinates(t);
              body(body_args);
            }
        }
  sigaction(SIGSEGV, &before[0], nullptr);
  sigaction(SIGBUS, &before[1], nullptr);
  return failure;
}
