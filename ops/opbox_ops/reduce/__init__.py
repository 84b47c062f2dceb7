"""Operators that reduce axes to one value: sums, extremes, norms, positions of extremes."""
