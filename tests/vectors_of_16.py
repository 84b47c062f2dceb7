"""Texts in C as a processor with AVX-512 compiles them, on one without it too."""

from __future__ import annotations

from opbox_ops.cpu.runtime.kernel_text import kernel_text

__all__ = ["with_vectors_of_16"]


def with_vectors_of_16(text: str) -> str:
    """The text with vectors of 16 numbers, which the compiler makes of what the processor has."""
    return text.replace(kernel_text("vectors.h"), _VECTORS).replace("defined(__AVX512F__)", "1")


_VECTORS = r"""
typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef int Bits __attribute__((vector_size(64)));
enum { WIDTH = 16 };
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
static inline Lanes ALL(float x) { return (Lanes){0} + x; }
static inline Lanes LOAD(const float *p) { return *(const Lanes *)p; }
#define STORE(p, v) (*(Lanes *)(p) = (v))
#define PASS STORE
#define KEEP(x)
#define RECTIFY(x) ((Lanes)(~((x) <= 0) & (Bits)(x)))
#define FLUSHED
typedef unsigned long Part; /* in bytes: a loop over the numbers takes the compiler three times as long */
static inline Part first_numbers(long count) { return count < WIDTH ? count * sizeof(float) : sizeof(Lanes); }
static inline Lanes LOAD_PART(const float *p, Part part)
{
    Lanes x = ALL(0);
    __builtin_memcpy(&x, p, part);
    return x;
}
static inline void STORE_PART(float *p, Part part, Lanes x) { __builtin_memcpy(p, &x, part); }
#define UNROLL _Pragma("GCC unroll 16")
#define UNUSED __attribute__((unused))
"""
