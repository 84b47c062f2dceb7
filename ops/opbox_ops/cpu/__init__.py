"""What computes on a CPU: kernels in C, and what compiles and calls them."""
