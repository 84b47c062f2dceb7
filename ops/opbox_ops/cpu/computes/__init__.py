"""Operators' computes of level "library" for the CPU, and the kernels that they choose among: ours and oneDNN's.

NumPy's computes stay the reference, and run whatever these refuse: float64, arrays without elements. Types of 16 bits
that the processor has no products of are computed in float32 (`half_precision`).
"""
