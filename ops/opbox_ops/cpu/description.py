"""What computes on this machine's CPU, in one line for people, with what to install where something is missing.

oneDNN 3.2.0 (AVX-512) and kernels in C
kernels in C and NumPy; oneDNN, which is faster, is missing: pip install …
NumPy; libgomp, which oneDNN needs, is missing (on Debian: apt-get install libgomp1); …

As a program it prints the line where something is missing, and nothing elsewhere.
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from typing import NamedTuple

from ..compute import LEVELS, highest_level
from .onednn import library as onednn
from .runtime import c_compiler

__all__ = ["CPUDescription", "cpu_description"]

_COMPILER = "a C compiler (on Debian: apt-get install gcc libc6-dev)"


class CPUDescription(NamedTuple):
    """One line, and whether it asks for something to be installed."""

    line: str
    incomplete: bool


@cache
def cpu_description() -> CPUDescription:
    """Describe what computes in this process; the first call loads oneDNN."""
    if highest_level() == LEVELS[0]:
        return CPUDescription(f"NumPy alone, as OPBOX_COMPUTE_LEVEL={LEVELS[0]} wants it", False)
    dnnl = onednn.library()
    parts = [] if dnnl is None else [f"oneDNN {'.'.join(map(str, dnnl.version))} ({dnnl.instructions})"]
    if c_compiler.has_kernels():
        parts.append("kernels in C" if c_compiler.may_compile() else "kernels in C (formulas by NumPy: no C compiler)")
    if len(parts) < 2:
        parts.append("NumPy")
    missing = [words for words in (_missing_threads(), _missing_onednn(), _missing_kernels()) if words]
    return CPUDescription("; ".join([" and ".join(parts), *missing]), bool(missing))


def _missing_onednn() -> str:
    """Return what keeps oneDNN out, and what to install; empty where that is libgomp alone, or it is not kept out."""
    if not _lacks_onednn() or _onednn_lacks_libgomp():
        return ""
    reason = onednn.failure()
    state = f"cannot be loaded ({reason})" if reason else "is missing"
    install = f"pip install --force-reinstall --no-deps {onednn.PACKAGE}=={onednn.VERSION}"
    return f"oneDNN, which is faster, {state}: {install}"


def _lacks_onednn() -> bool:
    """Return whether oneDNN is not there, on a machine that it is for."""
    return onednn.library() is None and sys.platform == "linux" and platform.machine() == "x86_64"


def _onednn_lacks_libgomp() -> bool:
    """Return whether oneDNN's file is there, and the library that it is linked with is not."""
    return _lacks_onednn() and onednn.file() is not None and c_compiler.shared_threads() is None


def _missing_threads() -> str:
    """Return what has no libgomp, and how to install it; empty where nothing needs it, or it is there."""
    if c_compiler.shared_threads() is not None:
        return ""
    uses = ["oneDNN needs"] if _onednn_lacks_libgomp() else []
    uses += ["kernels in C need for several threads"] if c_compiler.has_kernels() else []
    if not uses:
        return ""
    return f"libgomp, which {' and '.join(uses)}, is missing (on Debian: apt-get install libgomp1)"


def _missing_kernels() -> str:
    """Return what keeps kernels in C out; empty where there are some, or the user wants none."""
    if c_compiler.has_kernels() or c_compiler.mode() == "off":
        return ""
    if c_compiler.cache_folder() is None:
        return "kernels in C, which are faster, have no folder that is this user's alone: name one in OPBOX_CACHE_DIR"
    return f"kernels in C, which are faster, need {_COMPILER}"


if __name__ == "__main__" and cpu_description().incomplete:
    print(f"The CPU computes by {cpu_description().line}.")
