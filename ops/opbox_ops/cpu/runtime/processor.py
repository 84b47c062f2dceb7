"""What this machine's processor can do, by the flags that Linux gives in /proc/cpuinfo.

A kernel in C that needs vectors is compiled only where the processor has them, so that a kernel that does not compile
is always a fault.
"""

from __future__ import annotations

import platform
from functools import cache

__all__ = ["description", "flags", "has_avx512", "has_vectors"]


@cache
def description() -> dict[str, str]:
    """Return what /proc/cpuinfo says of one processor, by its names there; nothing where there is no such file."""
    try:
        with open("/proc/cpuinfo") as lines:
            return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    except OSError:
        return {}


@cache
def flags() -> frozenset[str]:
    """Return Linux's names for the processor's instruction sets: "avx2", "fma", "avx512f" and so on."""
    known = description()
    return frozenset((known.get("flags") or known.get("Features") or "").split())


def has_vectors() -> bool:
    """Return whether there are the vectors that kernels are written for (vectors.h): AVX-512, or AVX2 with FMA."""
    return platform.machine() == "x86_64" and (has_avx512() or flags() >= {"avx2", "fma"})


def has_avx512() -> bool:
    """Return whether there are vectors of 16 numbers."""
    return "avx512f" in flags()
