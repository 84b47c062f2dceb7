// Stands for libcudnn.so.9 on the pretend devices: its convolutions by loops over every product, and strict about what
// it is given. What it supports, the workspace that an algorithm asks for, and which one is fastest are made up, so
// that a caller who does not ask gets it wrong: the fastest are not deterministic, or not as exact as asked for.
#ifdef PRETEND_CUDNN_HEADER
#include <cudnn.h>
#else
#include "cudnn_types.h"
#endif
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

enum Pass { FORWARD, DATA, WEIGHT };
enum Magic {
  HANDLE = 0x48414e44,
  TENSOR = 0x54454e53,
  FILTER = 0x46494c54,
  CONVOLUTION = 0x434f4e56,
  ACTIVATION = 0x41435456,
  GONE = 0
};

struct cudnnContext {
  int magic, device;
  cudaStream_t stream;
};
struct cudnnTensorStruct {
  int magic, type, rank, sizes[8], strides[8];
};
struct cudnnFilterStruct {
  int magic, type, rank, sizes[8], format;
};
struct cudnnConvolutionStruct {
  int magic, rank, pad[6], stride[6], dilate[6], computed, groups, math;
};
struct cudnnActivationStruct {
  int magic, mode, nan;
};

// A convolution with three spatial dimensions, as it is run: sizes and strides of x, w, y in elements.
struct Job {
  Pass pass;
  int type, groups, tf32;
  long sizes[3][5], strides[3][5], window[3][3];
  char *arrays[3];
  char *workspace, *bias, *added;
  size_t workspace_bytes;
  double alpha, beta;  // beta: what the result, or the added array, is multiplied by
  int number;          // of the algorithm
};

// Python's side: the current device; a call's arrays, looked up, and the call queued; what waits for the device.
typedef int (*Device)();
typedef int (*Queue)(const char *name, int device, cudaStream_t stream, Job *job, const size_t *bytes, int number);
typedef int (*Wait)(const char *name);
static Device current_device;
static Queue queue_job;
static Wait wait_for;

extern "C" void pretend_cudnn_set(Device device, Queue queue, Wait wait) {
  current_device = device;
  queue_job = queue;
  wait_for = wait;
}

static size_t element_size(int type) { return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2; }

// -- numbers ----------------------------------------------------------------------------------------------------------

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
// Rounded to the nearest number with so many bits fewer.
static float rounded(float value, int bits) {
  const uint32_t half = 1u << (bits - 1), number = to_bits(value);
  if ((number & 0x7f800000) == 0x7f800000) return value;
  return from_bits((number + half - 1 + (number >> bits & 1)) & ~((1u << bits) - 1));
}

struct Bfloat {
  uint16_t bits;
  operator float() const { return from_bits(uint32_t(bits) << 16); }
  Bfloat(float value) : bits(uint16_t(to_bits(value != value ? value : rounded(value, 16)) >> 16)) {}
};
typedef _Float16 Half;

// -- loops ------------------------------------------------------------------------------------------------------------

template <typename T, typename A>
struct Loops {
  const Job &job;
  const T *operand(int k) const { return reinterpret_cast<const T *>(job.arrays[k]); }
  A product(A a, A b) const {
    return job.tf32 ? A(rounded(float(a), 13)) * A(rounded(float(b), 13)) : a * b;
  }
  long at(int k, const long *place) const {
    long offset = 0;
    for (int axis = 0; axis < 5; ++axis) offset += place[axis] * job.strides[k][axis];
    return offset;
  }
  // Every pair of places in x and y that a tap of the kernel connects, for one place of the result; `fixed` says whose.
  A sum(const long *fixed) const {
    const long(&X)[5] = job.sizes[0], (&W)[5] = job.sizes[1], (&Y)[5] = job.sizes[2];
    const long *stride = job.window[0], *dilate = job.window[1], *pad = job.window[2];
    const long per_group = Y[1] / job.groups;
    A total = 0;
    long x[5], w[5], y[5];
    if (job.pass == WEIGHT) {
      const long k = fixed[0], c = fixed[1] + k / per_group * W[1];
      for (y[0] = 0; y[0] < Y[0]; ++y[0])
        for (y[2] = 0; y[2] < Y[2]; ++y[2])
          for (y[3] = 0; y[3] < Y[3]; ++y[3])
            for (y[4] = 0; y[4] < Y[4]; ++y[4]) {
              x[0] = y[0], x[1] = c, y[1] = k;
              if (wide(x, y, fixed + 2, stride, dilate, pad, X)) total += product(operand(0)[at(0, x)], operand(2)[at(2, y)]);
            }
      return total;
    }
    const bool forward = job.pass == FORWARD;
    const long group = forward ? fixed[1] / per_group : fixed[1] / W[1];
    const long others = forward ? W[1] : per_group;
    for (long i = 0; i < others; ++i)
      for (w[2] = 0; w[2] < W[2]; ++w[2])
        for (w[3] = 0; w[3] < W[3]; ++w[3])
          for (w[4] = 0; w[4] < W[4]; ++w[4]) {
            if (forward) {
              w[0] = fixed[1], w[1] = i, x[0] = fixed[0], x[1] = group * W[1] + i;
              if (wide(x, fixed, w + 2, stride, dilate, pad, X)) total += product(operand(0)[at(0, x)], operand(1)[at(1, w)]);
            } else {
              y[0] = fixed[0], y[1] = w[0] = group * per_group + i, w[1] = fixed[1] % W[1];
              if (narrow(fixed, y, w + 2, stride, dilate, pad, Y)) total += product(operand(2)[at(2, y)], operand(1)[at(1, w)]);
            }
          }
    return total;
  }
  static bool wide(long *x, const long *y, const long *tap, const long *s, const long *d, const long *p, const long *X) {
    for (int i = 0; i < 3; ++i) {
      x[2 + i] = y[2 + i] * s[i] + tap[i] * d[i] - p[i];
      if (x[2 + i] < 0 || x[2 + i] >= X[2 + i]) return false;
    }
    return true;
  }
  static bool narrow(const long *x, long *y, const long *tap, const long *s, const long *d, const long *p, const long *Y) {
    for (int i = 0; i < 3; ++i) {
      const long reach = x[2 + i] + p[i] - tap[i] * d[i];
      if (reach < 0 || reach % s[i] || reach / s[i] >= Y[2 + i]) return false;
      y[2 + i] = reach / s[i];
    }
    return true;
  }
  void run() const {
    const int k = job.pass == FORWARD ? 2 : job.pass == DATA ? 0 : 1;
    T *out = reinterpret_cast<T *>(job.arrays[k]);
    const long(&S)[5] = job.sizes[k];
    long p[5];
    for (p[0] = 0; p[0] < S[0]; ++p[0])
      for (p[1] = 0; p[1] < S[1]; ++p[1])
        for (p[2] = 0; p[2] < S[2]; ++p[2])
          for (p[3] = 0; p[3] < S[3]; ++p[3])
            for (p[4] = 0; p[4] < S[4]; ++p[4]) {
              T &target = out[at(k, p)];
              const T *other = job.bias ? reinterpret_cast<const T *>(job.added) + at(k, p) : &target;
              A total = A(job.alpha) * sum(p);
              if (job.beta != 0) total += A(job.beta) * A(*other);
              if (job.bias) total += A(reinterpret_cast<const T *>(job.bias)[p[1]]);
              target = T(total);
            }
  }
};

extern "C" void pretend_cudnn_run(const Job *queued) {
  Job own = *queued, *job = &own;
  const char *wrong = getenv("PRETEND_CUDNN_WRONG");  // the number of a forward algorithm that gives twice its result
  if (wrong && job->pass == FORWARD && atoi(wrong) == job->number) job->alpha *= 2;
  if (job->workspace) memset(job->workspace, 0xCD, job->workspace_bytes);
  if (job->type == CUDNN_DATA_DOUBLE) Loops<double, double>{*job}.run();
  else if (job->type == CUDNN_DATA_FLOAT) Loops<float, float>{*job}.run();
  else if (job->type == CUDNN_DATA_HALF) Loops<Half, float>{*job}.run();
  else Loops<Bfloat, float>{*job}.run();
}

extern "C" void pretend_cudnn_drop(Job *job) { delete job; }

// -- descriptors ------------------------------------------------------------------------------------------------------

template <typename D>
static cudnnStatus_t made(D **place, int magic) {
  if (!place) return cudnnStatus_t(CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  *place = new D();
  memset(static_cast<void *>(*place), 0x77, sizeof(D));
  (*place)->magic = magic;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}
// Its memory stays, so that a later use is told.
template <typename D>
static cudnnStatus_t gone(D *descriptor, int magic) {
  if (!descriptor || descriptor->magic != magic) return cudnnStatus_t(CUDNN_STATUS_BAD_PARAM);
  descriptor->magic = GONE;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}
#define NEED(condition, status) \
  if (!(condition)) return cudnnStatus_t(CUDNN_STATUS_##status)

static bool known_type(int type) {
  return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_DOUBLE || type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
}

extern "C" {
size_t cudnnGetVersion(void) { return 91900; }

const char *cudnnGetErrorString(cudnnStatus_t status) {
  switch (int(status)) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER: return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT: return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_BAD_PARAM";
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  if (const int status = wait_for("cudnnCreate")) return cudnnStatus_t(status);
  const cudnnStatus_t status = made(handle, HANDLE);
  if (!status) (*handle)->device = current_device(), (*handle)->stream = nullptr;
  return status;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  NEED(handle && handle->magic == HANDLE, BAD_PARAM);
  handle->stream = stream;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *place) { return made(place, TENSOR); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t one) { return gone(one, TENSOR); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *place) { return made(place, FILTER); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t one) { return gone(one, FILTER); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *place) { return made(place, CONVOLUTION); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t one) { return gone(one, CONVOLUTION); }

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *place) { return made(place, ACTIVATION); }
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t one) { return gone(one, ACTIVATION); }
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t one, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan, double ceiling) {
  NEED(one && one->magic == ACTIVATION && ceiling >= 0, BAD_PARAM);
  one->mode = mode, one->nan = nan;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t one, cudnnDataType_t type, int rank, const int sizes[],
                                         const int strides[]) {
  NEED(one && one->magic == TENSOR && rank >= 4 && rank <= 5 && known_type(type), BAD_PARAM);
  double elements = 1;
  for (int axis = 0; axis < rank; ++axis) {
    NEED(sizes[axis] > 0 && strides[axis] > 0, BAD_PARAM);
    one->sizes[axis] = sizes[axis], one->strides[axis] = strides[axis];
    elements += double(sizes[axis] - 1) * strides[axis];
  }
  NEED(elements < 2147483648.0, NOT_SUPPORTED);
  one->type = type, one->rank = rank;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t one, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int rank, const int sizes[]) {
  NEED(one && one->magic == FILTER && rank >= 4 && rank <= 5 && known_type(type), BAD_PARAM);
  NEED(format == CUDNN_TENSOR_NCHW || format == CUDNN_TENSOR_NHWC, BAD_PARAM);
  for (int axis = 0; axis < rank; ++axis) {
    NEED(sizes[axis] > 0, BAD_PARAM);
    one->sizes[axis] = sizes[axis];
  }
  one->type = type, one->rank = rank, one->format = format;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t one, int rank, const int pad[],
                                              const int stride[], const int dilate[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t computed) {
  NEED(one && one->magic == CONVOLUTION && (rank == 2 || rank == 3), BAD_PARAM);
  NEED(mode == CUDNN_CROSS_CORRELATION, NOT_SUPPORTED);
  for (int axis = 0; axis < rank; ++axis) {
    NEED(pad[axis] >= 0 && stride[axis] > 0 && dilate[axis] > 0, BAD_PARAM);
    one->pad[axis] = pad[axis], one->stride[axis] = stride[axis], one->dilate[axis] = dilate[axis];
  }
  one->rank = rank, one->computed = computed, one->groups = 1, one->math = CUDNN_DEFAULT_MATH;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t one, int groups) {
  NEED(one && one->magic == CONVOLUTION && groups > 0, BAD_PARAM);
  one->groups = groups;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t one, cudnnMathType_t math) {
  NEED(one && one->magic == CONVOLUTION && math >= CUDNN_DEFAULT_MATH && math <= CUDNN_FMA_MATH, BAD_PARAM);
  one->math = math;
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}
}

// -- what is supported ------------------------------------------------------------------------------------------------

typedef cudnnTensorDescriptor_t Tensor;
typedef cudnnFilterDescriptor_t Filter;
typedef cudnnConvolutionDescriptor_t Window;

static bool lies(Tensor one, bool last) {
  int step = 1;
  for (int i = one->rank - 1; i > 0; --i) {
    const int axis = !last ? i : i == one->rank - 1 ? 1 : i + 1;
    if (one->strides[axis] != step) return false;
    step *= one->sizes[axis];
  }
  return one->strides[0] == step;
}

// The job without its arrays.
static cudnnStatus_t described(Pass pass, Tensor x, Filter w, Window c, Tensor y, Job &job) {
  NEED(x && x->magic == TENSOR && y && y->magic == TENSOR && w && w->magic == FILTER && c && c->magic == CONVOLUTION,
       BAD_PARAM);
  const int rank = x->rank;
  NEED(y->rank == rank && w->rank == rank && c->rank == rank - 2, BAD_PARAM);
  NEED(x->type == y->type && x->type == w->type, BAD_PARAM);
  NEED(c->computed == (x->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT), NOT_SUPPORTED);
  NEED(x->sizes[1] == w->sizes[1] * c->groups && y->sizes[1] == w->sizes[0] && y->sizes[1] % c->groups == 0, BAD_PARAM);
  NEED(x->sizes[0] == y->sizes[0], BAD_PARAM);
  const bool last = w->format == CUDNN_TENSOR_NHWC;
  NEED(lies(x, last) && lies(y, last), NOT_SUPPORTED);
  for (int i = 0; i < c->rank; ++i) {
    const int reach = c->dilate[i] * (w->sizes[2 + i] - 1) + 1;
    NEED(y->sizes[2 + i] == (x->sizes[2 + i] + 2 * c->pad[i] - reach) / c->stride[i] + 1, BAD_PARAM);
  }
  job = Job();
  job.pass = pass, job.type = x->type, job.groups = c->groups;
  job.tf32 = x->type == CUDNN_DATA_FLOAT && c->math != CUDNN_FMA_MATH;
  const int *sizes[3] = {x->sizes, w->sizes, y->sizes};
  const int front = 5 - rank;
  for (int k = 0; k < 3; ++k) {
    for (int axis = 0; axis < 5; ++axis) job.sizes[k][axis] = 1, job.strides[k][axis] = 0;
    long step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const int axis = !last || i == 0 ? i : i == rank - 1 ? 1 : i + 1, target = axis < 2 ? axis : axis + front;
      job.sizes[k][target] = sizes[k][axis], job.strides[k][target] = step;
      step *= sizes[k][axis];
    }
  }
  for (int i = 0; i < 3; ++i) {
    const int axis = i - front;
    job.window[0][i] = axis < 0 ? 1 : c->stride[axis];
    job.window[1][i] = axis < 0 ? 1 : c->dilate[axis];
    job.window[2][i] = axis < 0 ? 0 : c->pad[axis];
  }
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

static size_t bytes_of(const Job &job, int k) {
  size_t elements = element_size(job.type);
  for (int axis = 0; axis < 5; ++axis) elements *= size_t(job.sizes[k][axis]);
  return elements;
}

struct Algorithm {
  int number;
  bool deterministic;
  double cost;       // for a product
  double workspace;  // in sizes of y
  char kind;         // g: every convolution; p: lying with the channels last too; f: Fourier; w: 3 x 3
};
static const std::vector<Algorithm> ALGORITHMS[3] = {
    {{0, true, 5, 0, 'g'}, {1, true, 3, 0.5, 'p'}, {2, true, 4, 9, 'g'}, {4, true, 2, 50, 'f'}, {6, true, 1, 2, 'w'}},
    {{0, false, 1, 0, 'g'}, {1, true, 3, 0.5, 'p'}, {2, true, 2, 50, 'f'}, {4, true, 2, 2, 'w'}},
    {{0, false, 1, 0, 'g'}, {1, true, 3, 0.5, 'p'}, {3, false, 1, 1, 'g'}, {2, true, 2, 50, 'f'}, {5, true, 2, 2, 'w'}}};
static const int COUNTS[3] = {8, 6, 7};

static bool supports(const Job &job, const Algorithm &one, bool last) {
  if (last || job.type == CUDNN_DATA_BFLOAT16) return one.kind == 'p';
  if (one.kind == 'g' || one.kind == 'p') return true;
  if (job.type == CUDNN_DATA_DOUBLE || job.groups > 1) return false;
  const long *stride = job.window[0], *dilate = job.window[1], *kernel = job.sizes[1] + 2;
  for (int i = 0; i < 3; ++i)
    if (stride[i] != 1 || dilate[i] != 1) return false;
  if (job.sizes[0][2] > 1) return false;
  return one.kind == 'f' ? kernel[1] <= 32 && kernel[2] <= 32 : kernel[1] == 3 && kernel[2] == 3;
}

static size_t workspace_of(const Job &job, const Algorithm &one) {
  return size_t(one.workspace * double(bytes_of(job, 2))) / 16 * 16 + (one.workspace ? 64 : 0);
}

static const Algorithm *algorithm(const Job &job, int number, bool last) {
  for (const Algorithm &one : ALGORITHMS[job.pass])
    if (one.number == number && supports(job, one, last)) return &one;
  return nullptr;
}

template <typename P>
static P performance(int number, int status, double time, size_t memory, bool deterministic, int math) {
  P one;
  memset(&one, 0, sizeof one);
  memcpy(&one.algo, &number, 4);
  memcpy(&one.status, &status, 4);
  one.time = float(time), one.memory = memory;
  const int determinism = deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
  memcpy(&one.determinism, &determinism, 4);
  memcpy(&one.mathType, &math, 4);
  return one;
}

// The fastest first, with each arithmetic, tensor cores before the rest; then what is not supported.
template <typename P>
static cudnnStatus_t answer(const Job &job, bool last, int most, int *count, P *results) {
  NEED(most > 0 && count && results, BAD_PARAM);
  std::vector<P> good, bad;
  for (double wanted = 0; wanted < 10; wanted += 1)
    for (const Algorithm &one : ALGORITHMS[job.pass]) {
      if (one.cost != wanted || !supports(job, one, last)) continue;
      const size_t memory = workspace_of(job, one);
      for (int math : {CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION, CUDNN_TENSOR_OP_MATH, CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH}) {
        if (job.type == CUDNN_DATA_DOUBLE && math != CUDNN_DEFAULT_MATH) continue;
        good.push_back(performance<P>(one.number, 0, one.cost, memory, one.deterministic, math));
      }
    }
  for (int number = 0; number < COUNTS[job.pass]; ++number)
    if (!algorithm(job, number, last)) bad.push_back(performance<P>(number, CUDNN_STATUS_NOT_SUPPORTED, -1, 0, false, 0));
  good.insert(good.end(), bad.begin(), bad.end());
  *count = int(good.size()) < most ? int(good.size()) : most;
  for (int i = 0; i < *count; ++i) results[i] = good[size_t(i)];
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

static bool misaligned(const void *place) { return reinterpret_cast<uintptr_t>(place) % 16; }

static cudnnStatus_t placed(Job &job, cudnnHandle_t handle, const void *x, const void *w, const void *y, void *workspace,
                            size_t size) {
  NEED(handle && handle->magic == HANDLE && handle->device == current_device(), BAD_PARAM);
  NEED(x && w && y, BAD_PARAM_NULL_POINTER);
  NEED(!misaligned(x) && !misaligned(w) && !misaligned(y) && !misaligned(workspace), BAD_PARAM_MISALIGNED_POINTER);
  const void *arrays[3] = {x, w, y};
  for (int k = 0; k < 3; ++k) job.arrays[k] = static_cast<char *>(const_cast<void *>(arrays[k]));
  job.workspace = size ? static_cast<char *>(workspace) : nullptr, job.workspace_bytes = size;
  NEED(!size || workspace, BAD_PARAM_NULL_POINTER);
  const int result = job.pass == FORWARD ? 2 : job.pass == DATA ? 0 : 1;
  for (int k = 0; k < 4; ++k) {
    const char *begin = k < 3 ? job.arrays[k] : job.workspace;
    const size_t bytes = k < 3 ? bytes_of(job, k) : size;
    if (k == result || !begin) continue;
    NEED(begin + bytes <= job.arrays[result] || job.arrays[result] + bytes_of(job, result) <= begin, BAD_PARAM);
  }
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

static size_t bias_bytes(const Job &job) { return size_t(job.sizes[1][0]) * element_size(job.type); }

static int queued(const char *name, cudnnHandle_t handle, const Job &job) {
  const size_t out = bytes_of(job, 2);
  const size_t bytes[6] = {bytes_of(job, 0), bytes_of(job, 1), out, job.workspace_bytes, bias_bytes(job), out};
  return queue_job(name, handle->device, handle->stream, new Job(job), bytes, job.number);
}

#define TRY(call) \
  if (const cudnnStatus_t status = call) return status

template <typename P>
static cudnnStatus_t heuristics(Pass pass, cudnnHandle_t handle, Tensor x, Filter w, Window c, Tensor y, int most, int *count, P *results) {
  NEED(handle && handle->magic == HANDLE, BAD_PARAM);
  Job job;
  TRY(described(pass, x, w, c, y, job));
  return answer(job, w->format == CUDNN_TENSOR_NHWC, most, count, results);
}

static cudnnStatus_t asked(Pass pass, cudnnHandle_t handle, Tensor x, Filter w, Window c, Tensor y, int number, size_t *size) {
  NEED(handle && handle->magic == HANDLE && size, BAD_PARAM);
  Job job;
  TRY(described(pass, x, w, c, y, job));
  const Algorithm *one = algorithm(job, number, w->format == CUDNN_TENSOR_NHWC);
  NEED(one, NOT_SUPPORTED);
  *size = workspace_of(job, *one);
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

static cudnnStatus_t ready(Job &job, Pass pass, cudnnHandle_t handle, const void *alpha, Tensor xd, const void *x,
                           Filter wd, const void *w, Window c, int number, void *workspace, size_t size,
                           const void *beta, Tensor yd, const void *y) {
  TRY(described(pass, xd, wd, c, yd, job));
  const Algorithm *one = algorithm(job, number, wd->format == CUDNN_TENSOR_NHWC);
  NEED(one, NOT_SUPPORTED);
  NEED(size >= workspace_of(job, *one), BAD_PARAM_SIZE_INSUFFICIENT);
  TRY(placed(job, handle, x, w, y, workspace, size));
  NEED(alpha && beta, BAD_PARAM_NULL_POINTER);
  const bool wide = job.type == CUDNN_DATA_DOUBLE;
  job.number = number;
  job.alpha = wide ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha);
  job.beta = wide ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta);
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

static cudnnStatus_t run(const char *name, Pass pass, cudnnHandle_t handle, const void *alpha, Tensor xd, const void *x,
                         Filter wd, const void *w, Window c, int number, void *workspace, size_t size, const void *beta,
                         Tensor yd, const void *y) {
  Job job;
  TRY(ready(job, pass, handle, alpha, xd, x, wd, w, c, number, workspace, size, beta, yd, y));
  return cudnnStatus_t(queued(name, handle, job));
}

static bool apart(const char *one, size_t one_bytes, const char *other, size_t other_bytes) {
  return one + one_bytes <= other || other + other_bytes <= one;
}

// The bias is (1, filters, 1, ...); what is added lies as the result does, in its memory or in none of its.
static cudnnStatus_t with_bias(Job &job, Tensor yd, const void *y, Tensor zd, const void *z, Tensor bd, const void *bias,
                               cudnnActivationDescriptor_t activation, int number) {
  NEED(zd && zd->magic == TENSOR && bd && bd->magic == TENSOR && activation && activation->magic == ACTIVATION, BAD_PARAM);
  NEED(z && bias, BAD_PARAM_NULL_POINTER);
  NEED(!misaligned(z) && !misaligned(bias), BAD_PARAM_MISALIGNED_POINTER);
  NEED(zd->rank == yd->rank && zd->type == yd->type && bd->rank == yd->rank, BAD_PARAM);
  for (int axis = 0; axis < yd->rank; ++axis) {
    NEED(zd->sizes[axis] == yd->sizes[axis] && zd->strides[axis] == yd->strides[axis], BAD_PARAM);
    NEED(bd->sizes[axis] == (axis == 1 ? yd->sizes[1] : 1), BAD_PARAM);
  }
  NEED(bd->type == yd->type && bd->strides[1] == 1, NOT_SUPPORTED);
  NEED(activation->nan == CUDNN_NOT_PROPAGATE_NAN && activation->mode == CUDNN_ACTIVATION_IDENTITY, NOT_SUPPORTED);
  NEED(number == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, NOT_SUPPORTED);
  NEED(job.type != CUDNN_DATA_DOUBLE, NOT_SUPPORTED);
  const char *out = static_cast<const char *>(y);
  job.bias = static_cast<char *>(const_cast<void *>(bias)), job.added = static_cast<char *>(const_cast<void *>(z));
  const size_t bytes = bytes_of(job, 2);
  NEED(apart(job.bias, bias_bytes(job), out, bytes) && (z == y || apart(job.added, bytes, out, bytes)), BAD_PARAM);
  NEED(apart(job.added, bytes, job.arrays[0], bytes_of(job, 0)), BAD_PARAM);
  return cudnnStatus_t(CUDNN_STATUS_SUCCESS);
}

// -- the functions ----------------------------------------------------------------------------------------------------

extern "C" {
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y, const int most, int *count,
    cudnnConvolutionFwdAlgoPerf_t *results) {
  return heuristics(FORWARD, handle, x, w, c, y, most, count, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t x, const int most, int *count,
    cudnnConvolutionBwdDataAlgoPerf_t *results) {
  return heuristics(DATA, handle, x, w, c, y, most, count, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t w, const int most, int *count,
    cudnnConvolutionBwdFilterAlgoPerf_t *results) {
  return heuristics(WEIGHT, handle, x, w, c, y, most, count, results);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t one, size_t *size) {
  return asked(FORWARD, handle, x, w, c, y, one, size);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t x, cudnnConvolutionBwdDataAlgo_t one,
    size_t *size) {
  return asked(DATA, handle, x, w, c, y, one, size);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t w, cudnnConvolutionBwdFilterAlgo_t one,
    size_t *size) {
  return asked(WEIGHT, handle, x, w, c, y, one, size);
}

cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnFilterDescriptor_t wd, const void *w, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionFwdAlgo_t one, void *workspace, size_t size, const void *beta, const cudnnTensorDescriptor_t yd,
    void *y) {
  return run("cudnnConvolutionForward", FORWARD, handle, alpha, xd, x, wd, w, c, one, workspace, size, beta, yd, y);
}
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnFilterDescriptor_t wd, const void *w, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionFwdAlgo_t one, void *workspace, size_t size, const void *alpha2, const cudnnTensorDescriptor_t zd,
    const void *z, const cudnnTensorDescriptor_t bd, const void *bias, const cudnnActivationDescriptor_t activation,
    const cudnnTensorDescriptor_t yd, void *y) {
  Job job;
  TRY(ready(job, FORWARD, handle, alpha1, xd, x, wd, w, c, one, workspace, size, alpha2, yd, y));
  TRY(with_bias(job, yd, y, zd, z, bd, bias, activation, one));
  return cudnnStatus_t(queued("cudnnConvolutionBiasActivationForward", handle, job));
}
cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t wd, const void *w,
    const cudnnTensorDescriptor_t yd, const void *y, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionBwdDataAlgo_t one, void *workspace, size_t size, const void *beta,
    const cudnnTensorDescriptor_t xd, void *x) {
  return run("cudnnConvolutionBackwardData", DATA, handle, alpha, xd, x, wd, w, c, one, workspace, size, beta, yd, y);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnTensorDescriptor_t yd, const void *y, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionBwdFilterAlgo_t one, void *workspace, size_t size, const void *beta,
    const cudnnFilterDescriptor_t wd, void *w) {
  return run("cudnnConvolutionBackwardFilter", WEIGHT, handle, alpha, xd, x, wd, w, c, one, workspace, size, beta, yd, y);
}
}

// The numbers that Python and this file have written down.
static_assert(int(CUDNN_STATUS_NOT_SUPPORTED) == 3000 && int(CUDNN_STATUS_BAD_PARAM) == 2000, "statuses");
static_assert(int(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER) == 2003 && int(CUDNN_STATUS_EXECUTION_FAILED) == 5000, "statuses");
static_assert(int(CUDNN_DATA_FLOAT) == 0 && int(CUDNN_DATA_DOUBLE) == 1, "types");
static_assert(int(CUDNN_DATA_HALF) == 2 && int(CUDNN_DATA_BFLOAT16) == 9, "types");
static_assert(int(CUDNN_DEFAULT_MATH) == 0 && int(CUDNN_TENSOR_OP_MATH) == 1 && int(CUDNN_FMA_MATH) == 3, "arithmetic");
static_assert(int(CUDNN_TENSOR_NCHW) == 0 && int(CUDNN_TENSOR_NHWC) == 1 && int(CUDNN_CROSS_CORRELATION) == 1, "layouts");
static_assert(int(CUDNN_DETERMINISTIC) == 1, "determinism");
static_assert(int(CUDNN_ACTIVATION_IDENTITY) == 5 && int(CUDNN_NOT_PROPAGATE_NAN) == 0, "activations");
static_assert(int(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) == 1, "algorithms");
static_assert(offsetof(cudnnConvolutionFwdAlgoPerf_t, memory) == 16, "results");
static_assert(offsetof(cudnnConvolutionFwdAlgoPerf_t, mathType) == 28 && sizeof(cudnnConvolutionFwdAlgoPerf_t) == 48, "results");
static_assert(sizeof(cudnnConvolutionBwdDataAlgoPerf_t) == 48 && sizeof(cudnnConvolutionBwdFilterAlgoPerf_t) == 48, "results");
