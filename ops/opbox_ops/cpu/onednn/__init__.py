"""Computes of level "library" for the CPU: oneDNN, where the package `onednn-cpu-gomp` (extra `onednn`) is installed.

`library` is the binding; `primitive` makes oneDNN's primitives from shapes and binds them to arrays; the other files
attach computes to operators. NumPy's computes stay the reference, and run whatever oneDNN refuses: float64, arrays
without elements. Types of 16 bits that the processor has no products of are computed in float32 (`half_precision`).
"""
