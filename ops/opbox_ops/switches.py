"""What can be switched off, for comparing or to keep clear of a fault: OPBOX_DISABLE=winograd,fusion

Results stay right without any of these; `docs/cpu.md` and `docs/gpu.md` say what changes.
"""

from __future__ import annotations

import os
from functools import lru_cache

from opbox_protocol.errors import BadRequestError

__all__ = ["SWITCHES", "VARIABLE", "check", "is_off"]

VARIABLE = "OPBOX_DISABLE"
SWITCHES = (
    "c-kernels",
    "convolution-products",
    "cublaslt",
    "cuda-graphs",
    "cudnn",
    "fusion",
    "matrix-unit",
    "packed-weights",
    "winograd",
)


def is_off(name: str) -> bool:
    """Return whether OPBOX_DISABLE names one of `SWITCHES`.

    Raises:
        BadRequestError: the variable names something that is none of them.

    Example:
        >>> os.environ["OPBOX_DISABLE"] = "winograd, fusion"
        >>> is_off("fusion"), is_off("cudnn")
        (True, False)
    """
    value = os.environ.get(VARIABLE)
    return bool(value) and name in _names(value)


def check() -> None:
    """Refuse a name in OPBOX_DISABLE that is none of `SWITCHES`: what somebody meant to switch off would run.

    Raises:
        BadRequestError: there is such a name.
    """
    _names(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=8)
def _names(value: str) -> frozenset[str]:
    names = frozenset(filter(None, map(str.strip, value.split(","))))
    if unknown := sorted(names - set(SWITCHES)):
        raise BadRequestError(f"{VARIABLE}: expected names of {', '.join(SWITCHES)}, got {unknown[0]!r}")
    return names
