"""The CUDA kernel texts of the repository, compiled for each architecture without a GPU: make nvrtc, make kernels."""
