"""Compiles kernels in C, keeps and loads them, and says what the processor has."""
