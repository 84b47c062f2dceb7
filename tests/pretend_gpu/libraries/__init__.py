"""CUDA's libraries by NumPy, with the argument checks of CuPy's modules that they stand for."""
