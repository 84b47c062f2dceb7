"""Algorithms for the CPU in C, and NumPy where there is none: each file one, with the call that a step makes."""
