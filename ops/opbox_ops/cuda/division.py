"""Division by numbers that a launch knows: a multiplication and a shift, where a device takes some twenty instructions.

Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994).
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["DIVISION", "declared", "divisors"]

DIVISION = """// n / d, for n from 0 to 2^31 - 1; the kernel has d_factor and d_shift.
#define OPBOX_QUOTIENT(n, d) quotient(n, d##_factor, d##_shift)
__device__ int quotient(int n, int factor, int shift) {
  return int((__umulhi(unsigned(n), unsigned(factor)) + unsigned(n)) >> shift);
}
"""


def declared(*names: str) -> str:
    """The parameters of a kernel that divides by these."""
    return ", ".join(f"int {name}_factor, int {name}_shift" for name in names)


def divisors(*numbers: int) -> tuple[Any, ...]:
    """The arguments for them, for positive numbers below 2^31.

    Example:
        >>> divisors(1)
        (np.int32(1), np.int32(0))
    """
    arguments = []
    for number in numbers:
        shift = (number - 1).bit_length()
        factor = (1 << 32) * ((1 << shift) - number) // number + 1
        arguments += [np.uint32(factor).astype(np.int32), np.int32(shift)]
    return tuple(arguments)
