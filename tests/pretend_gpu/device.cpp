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

constexpr size_t MAX_THREADS = 1024, stack_size = 128 << 10;
static auto &lane_values = pretend_lanes;
#include "fibers.hpp"  // the emulator's, of opbox_ops.rtc

static char *stacks;
static sigjmp_buf leave;
static int counted, failure;

static void coordinates(size_t t) {
  const size_t row = t / blockDim.x;
  threadIdx = {unsigned(t % blockDim.x), unsigned(row % blockDim.y), unsigned(row / blockDim.y)};
}

static char *enter(size_t t) {
  coordinates(t);
  return stacks + t * stack_size;
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

static void release_barrier(size_t threads) {
  counted = 0;
  for (size_t t = 0; t < threads; ++t) {
    // Some wait for the block, others for lanes that do: a device would hang.
    if (fibers[t].state == AT_WARP) pretend_stop(702);
    if (fibers[t].state == AT_BARRIER) counted += int(fibers[t].value);
  }
  for (size_t t = 0; t < threads; ++t)
    if (fibers[t].state == AT_BARRIER) fibers[t].state = READY;
}

static void fault(int) { pretend_stop(700); }

// The status: 0, 700 for an access to no memory, or what stopped the kernel.
extern "C" int pretend_launch(void (*kernel)(void **), int waits, const unsigned *sizes, void **args) {
  gridDim = dim3(sizes[0], sizes[1], sizes[2]);
  blockDim = dim3(sizes[3], sizes[4], sizes[5]);
  body = kernel;
  body_args = args;
  failure = 0;
  made = 0;
  const size_t threads = size_t(blockDim.x) * blockDim.y * blockDim.z;
  if (threads == 0 || threads > MAX_THREADS || !gridDim.x || !gridDim.y || !gridDim.z || sizes[6] > sizeof pretend_dynamic) return 1;
  if (waits && !stacks) {
    stacks = (char *)mmap(nullptr, MAX_THREADS * stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
          if (waits) run_block_of_fibers(threads);
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
