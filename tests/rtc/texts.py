"""Kernels as people write them, which the emulator runs and NVRTC compiles; and texts that both refuse."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KERNELS", "REFUSED", "Text"]


@dataclass(frozen=True)
class Text:
    """A source with a kernel `k`, and how it is launched."""

    source: str
    signature: str
    block: tuple[int, int, int] = (32, 1, 1)
    grid: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0


def _kernel(signature: str, body: str, before: str = "") -> str:
    return f'{before}\nextern "C" __global__ void k({signature}) {{\n{body}\n}}\n'


XY = "const float *x, float *y"
REDUCE = """
__device__ __forceinline__ float warp_sum(float v) {
  #pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  return v;
}
"""
CAS = """
__device__ double add(double *at, double v) {
  unsigned long long *bits = (unsigned long long *)at, old = *bits, seen;
  do {
    seen = old;
    old = atomicCAS(bits, seen, __double_as_longlong(v + __longlong_as_double(seen)));
  } while (seen != old);
  return __longlong_as_double(old);
}
__device__ float top(float *at, float v) {
  return v >= 0 ? __int_as_float(atomicMax((int *)at, __float_as_int(v)))
                : __uint_as_float(atomicMin((unsigned *)at, __float_as_uint(v)));
}
"""
MASKS = """
__device__ inline float overlap(float const *const a, float const *const b) {
  float width = max(min(a[1], b[1]) - max(a[0], b[0]), 0.f);
  return width / (a[1] - a[0] + b[1] - b[0] - width);
}
"""
TYPES = """
#include <cuda_fp16.h>
#include <stdint.h>
#include <float.h>
#include <math.h>
typedef float real;
using word = unsigned int;
template <typename T> __device__ T first(const T *p) { return *p; }
template <int N> struct Sum {
  float v[N];
  __device__ Sum() { for (int i = 0; i < N; ++i) v[i] = 0; }
  __device__ float &operator[](int i) { return v[i]; }
};
struct Box { float *at; int n; __device__ float last() const { return at[n - 1]; } };
__device__ int twice(int a) { return 2 * a; }
__device__ float twice(float a) { return 3 * a; }
__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
"""

KERNELS = {
    "warp shuffles": Text(
        _kernel(
            f"{XY}, int n",
            """static __shared__ float part[32];
            int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
            float v = 0;
            for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
            v = warp_sum(v);
            if (lane == 0) part[warp] = v;
            __syncthreads();
            v = threadIdx.x < blockDim.x / warpSize ? part[lane] : 0;
            if (warp == 0) v = warp_sum(v);
            if (threadIdx.x == 0) *y = v;""",
            REDUCE,
        ),
        f"{XY}, int n",
        (128, 1, 1),
    ),
    "warp votes": Text(
        _kernel(
            "const float *x, int *y",
            """int lane = threadIdx.x, all;
            y[lane] = __popc(__ballot_sync(0xffffffff, x[lane] > 0));
            __syncwarp();
            y[32 + lane] = __any_sync(~0u, lane == 3) + 2 * __all_sync(~0u, lane < 31);
            y[64 + lane] = __match_any_sync(~0u, lane % 4) + __match_all_sync(~0u, 1, &all);
            y[96 + lane] = __reduce_add_sync(~0u, lane);
            int sum = 1;
            for (int o = 1; o < 32; o <<= 1) { int n = __shfl_up_sync(~0u, sum, o); if (lane >= o) sum += n; }
            y[128 + lane] = sum;
            if (lane % 2) y[160 + lane] = __activemask();
            y[192 + lane] = __shfl_sync(~0u, lane, 2, 8) + __shfl_xor_sync(~0u, lane, 1);""",
        ),
        "const float *x, int *y",
    ),
    "shuffles in a row": Text(
        _kernel(
            "const float *x, float *y, int *z",
            """float best = x[threadIdx.x];
            int place = threadIdx.x;
            for (int o = 16; o > 0; o >>= 1) {
              const float other = __shfl_down_sync(~0u, best, o);
              const int its_place = __shfl_down_sync(~0u, place, o);
              if (other > best) { best = other; place = its_place; }
            }
            if (threadIdx.x == 0) { *y = best; *z = place; }""",
        ),
        "const float *x, float *y, int *z",
    ),
    "votes of a block": Text(
        _kernel(
            "int *y",
            "int odd = threadIdx.x % 2; y[threadIdx.x] = __syncthreads_count(odd) + 100 * __syncthreads_or(odd) "
            "+ 1000 * __syncthreads_and(odd);",
        ),
        "int *y",
        (48, 1, 1),
    ),
    "atomics by comparing": Text(
        _kernel("const float *x, double *y, float *z", "add(y, 1.5); top(z, x[threadIdx.x]);", CAS),
        "const float *x, double *y, float *z",
    ),
    "vectors": Text(
        _kernel(
            XY,
            """float4 v = reinterpret_cast<const float4 *>(x)[threadIdx.x];
            float2 w = make_float2(v.x + v.y, v.z + v.w);
            ((float2 *)y)[threadIdx.x] = w;
            uchar4 bytes = make_uchar4(1, 2, 3, 4);
            if (bytes.w != 4) y[0] = NAN;""",
        ),
        XY,
        (8, 1, 1),
    ),
    "two halves": Text(
        _kernel(
            "const __half *x, __half *y",
            """half2 v = reinterpret_cast<const half2 *>(x)[threadIdx.x];
            v = __hfma2(v, __float2half2_rn(2.0f), __halves2half2(__float2half(1.0f), __float2half(-1.0f)));
            reinterpret_cast<half2 *>(y)[threadIdx.x] = __hmul2(v, v);""",
            "#include <cuda_fp16.h>",
        ),
        "const __half *x, __half *y",
    ),
    "dynamic shared memory in parts": Text(
        _kernel(
            f"{XY}, int n",
            """extern __shared__ __align__(16) unsigned char raw[];
            float *a = (float *)raw;
            int *b = reinterpret_cast<int *>(a + n);
            a[threadIdx.x] = x[threadIdx.x];
            b[threadIdx.x] = n - 1 - threadIdx.x;
            __syncthreads();
            y[threadIdx.x] = a[b[threadIdx.x]];""",
        ),
        f"{XY}, int n",
        shared=256,
    ),
    "declarations": Text(
        _kernel(
            "float *y, int n",
            """real *a = y, *const b = y + 1;
            auto *c = y + 2;
            float *ps[2] = {y + 3, y + 4}, **pp = ps;
            a[0] = first(y + 8); *b = 2; c[0] = weights[2]; *pp[0] = table[1][2]; pp[1][0] = eps;
            Box box = {y, 9};
            Sum<4> sum;
            sum[1] += box.last();
            y[5] = sum[1] + twice(n) + twice(0.5f);
            word bits = 7;
            int64_t wide = 1;
            y[6] = __popc(bits) + fib(10) + (float)(wide << 33 >> 33);
            auto square = [=](float v) { return v * v; };
            y[7] = square(3.f) + (-FLT_MAX < 0) + isinf(INFINITY);""",
            TYPES
            + "__constant__ float weights[3] = {1, 2, 3};\n__device__ const float eps = 0.5f;\n"
            + "__device__ int table[2][3] = {{1, 2, 3}, {4, 5, 6}};",
        ),
        "float *y, int n",
        (1, 1, 1),
    ),
    "functions": Text(
        _kernel(
            "float *y",
            """float s, c; double ds, dc;
            sincosf(0.5f, &s, &c); sincos(0.5, &ds, &dc);
            y[0] = s * s + c * c; y[1] = (float)(ds * ds + dc * dc);
            y[2] = rsqrtf(4.f) + __frsqrt_rn(4.f);
            y[3] = __fmaf_rn(2.f, 3.f, 4.f) + __fadd_rn(1.f, 2.f) + __fdiv_rn(1.f, 2.f);
            y[4] = erff(erfinvf(0.25f)) + normcdff(normcdfinvf(0.75f));
            y[5] = __saturatef(7.f) + fminf(1.f, 2.f) + fmaxf(3.f, -1.f);
            y[6] = __float2int_rn(2.5f) + __float2int_ru(2.1f) + __float2uint_rz(-3.f) + (float)__double2ll_rd(-1.5);
            y[7] = __mul24(-3, 4) + __mulhi(1 << 30, 8) + __clz(1) + __ffs(8) + __popcll(255ull) + __clzll(1ll);
            y[8] = __brev(1u) == 1u << 31; y[9] = __byte_perm(0x03020100, 0x07060504, 0x7531) == 0x07050301;
            y[10] = __dp4a(0x01020304, 0x01010101, 5); y[11] = __funnelshift_l(1u << 31, 1u, 1);
            y[12] = min(3, 4u) + max(1.0f, 2.0);
            y[13] = __ldg(y) + __hiloint2double(__double2hiint(2.5), __double2loint(2.5));
            float part[4]; memset(part, 0, sizeof part); memcpy(part, y, 8); y[14] = part[0] + part[3];
            assert(y[0] > 0); if (y[0] < 0) { printf("%f\\n", y[0]); __trap(); }""",
            "#include <stdio.h>\n#include <assert.h>\n#include <string.h>",
        ),
        "float *y",
        (1, 1, 1),
    ),
    "masks of boxes": Text(
        _kernel(
            "const float *x, int64_t *mask, int n",
            """__shared__ float tile[64 * 2];
            if (threadIdx.x < n) for (int c = 0; c < 2; ++c) tile[threadIdx.x * 2 + c] = x[threadIdx.x * 2 + c];
            __syncthreads();
            if (threadIdx.x >= n) return;
            unsigned long long bits = 0;
            for (int i = threadIdx.x + 1; i < n; ++i)
              if (overlap(tile + threadIdx.x * 2, tile + i * 2) > 0.5f) bits |= 1ULL << i;
            mask[threadIdx.x] = bits;""",
            MASKS,
        ),
        "const float *x, int64_t *mask, int n",
        (64, 1, 1),
    ),
}

REFUSED = {
    "an atomic that devices lack": "int64_t *x|atomicAdd(x, 1);",
    "a minimum of two kinds": "float *x|x[0] = max(0, x[1]);",
    "a shuffle without a mask": "float *x|x[0] = __shfl_down(x[0], 1);",
    "too much shared memory": "float *x|__shared__ float s[20000]; s[threadIdx.x] = 1; x[0] = s[1];",
    "an input written": "const float *x|x[0] = 1;",
    "a coordinate written": "float *x|threadIdx.x = 1;",
    "a function that is not defined": "float *x|extern __device__ float f(float); x[0] = f(1);",
}
"""Signature and body, both refused where the kernel is compiled."""
