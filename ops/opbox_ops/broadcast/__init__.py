"""Operators that stretch axes of length 1 to another array's length, and the sums that are their gradients."""
