"""Computes of level "library" for the CPU: oneDNN, where the package `onednn-cpu-gomp` (extra `onednn`) is installed.

`library` is the binding; `primitive` makes oneDNN's primitives from shapes and binds them to arrays; the other files
attach computes to operators. NumPy's computes stay the reference, and run whatever oneDNN refuses: float64, types that
the processor has no instructions for, arrays without elements.
"""
