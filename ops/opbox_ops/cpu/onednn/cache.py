"""Kernels that a function which makes them keeps: some times as many as the training of a large network has."""

MAX_CACHED_KERNELS = 2048
