// A launch: arrays put where they can be told apart, blocks run one after another. One launch at a time.
static void run_grid(bool waits) {
  const size_t threads = size_t(opbox_block_size.x) * opbox_block_size.y * opbox_block_size.z;
  for (uint32_t z = 0; z < opbox_grid_size.z; ++z)
    for (uint32_t y = 0; y < opbox_grid_size.y; ++y)
      for (uint32_t x = 0; x < opbox_grid_size.x; ++x) {
        opbox_block = {x, y, z};
        // Shared memory has no value at first: a kernel that reads it before it writes it reads NaN.
        memset(opbox_dynamic_shared, 0xff, dynamic_bytes);
        if (waits) run_block_of_fibers(threads);
        else
          for (size_t t = 0; t < threads; ++t) { coordinates(t); body(body_args); }
      }
}

// Where array `i` is while a kernel runs; its alignment stays, up to the 256 bytes that a device gives.
static bool place(size_t i) {
  const uintptr_t at = FIRST + i * APART + APART / 2, odd = (uintptr_t)arrays[i].memory % 16;
  const size_t room = size_t(arrays[i].bytes) + 16;
  if (room > APART / 2) return false;
  void *got = mmap((void *)at, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return false;
  if (got != (void *)at) { munmap(got, room); return false; }
  begins[i] = at + odd;
  ends[i] = begins[i] + arrays[i].bytes;
  memcpy((void *)begins[i], arrays[i].memory, arrays[i].bytes);
  return true;
}

// Puts the kernel's pointers, given as offsets[p] into array in_array[p] (-1: args[p] is a number), into args, and runs.
extern "C" HIDDEN void opbox_run(void (*kernel)(void **), void **args, int32_t count, const int32_t *in_array, const int64_t *offsets,
                                 const Array *given, int32_t given_count, const uint32_t *grid, const uint32_t *block,
                                 size_t shared, int32_t waits, Report *out) {
  memset(&report, 0, sizeof report);
  memcpy(&opbox_grid_size, grid, sizeof opbox_grid_size);
  memcpy(&opbox_block_size, block, sizeof opbox_block_size);
  memcpy(arrays, given, size_t(given_count) * sizeof(Array));
  dynamic_bytes = shared;
  body = kernel;
  body_args = args;
  made = 0;
  const size_t threads = size_t(block[0]) * block[1] * block[2];
  size_t &placed = array_count;
  for (placed = 0; placed < size_t(given_count) && place(placed); ++placed) {}
  stacks = nullptr;
  // A kernel without fibers runs on the stack of whoever calls.
  stack_size = STACKS / threads < MOST_STACK ? STACKS / threads & ~size_t(4095) : MOST_STACK;
  const size_t room = SPARE + threads * stack_size;
  if (waits) {
    stacks = (char *)mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) stacks = nullptr;
  }
  if (placed < size_t(given_count) || (waits && !stacks)) report.kind = ROOM;
  else if (_setjmp(leave) == 0) {
    for (int32_t p = 0; p < count; ++p)
      if (in_array[p] >= 0) *(uintptr_t *)args[p] = begins[in_array[p]] + uintptr_t(offsets[p]);
    stack_begin = (uintptr_t)__builtin_frame_address(0) - stack_size;
    run_grid(waits);
  }
  for (size_t i = 0; i < placed; ++i) {
    if (arrays[i].writable) memcpy(arrays[i].memory, (void *)begins[i], arrays[i].bytes);
    munmap((void *)(begins[i] & ~uintptr_t(4095)), size_t(arrays[i].bytes) + 16);
  }
  if (stacks) munmap(stacks, room);
  fflush(stdout);
  *out = report;
}
