"""Machine code of kernels of our own, compiled beforehand for architectures, and read in place of a compilation.

    python -m opbox_ops.cuda.build FOLDER       # compiles all of them, by NVRTC alone
    OPBOX_CUBINS=FOLDER opbox serve             # finds them there

A file's name is the hash of the text and the options that it was made of, and its architecture: code of another version
of the text is never found. Code for compute capability x.y runs on x.z where z is at least y. What is damaged, or too
new for the driver, is passed over: CuPy compiles then.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "OPTIONS", "cubin_name", "prebuilt"]

FOLDER = "OPBOX_CUBINS"
OPTIONS = ("-default-device",)
"""CuPy's own option for the compiler: unmarked functions are the device's."""


def cubin_name(source: str, options: Sequence[str], architecture: str) -> str:
    """The name of the file with a text's code, compiled with OPTIONS and these, for an architecture such as "sm_90"."""
    text = "\n".join((*OPTIONS, *options, source))
    return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.{architecture}.cubin"


def prebuilt(xp: Any, source: str, options: Sequence[str], name: str) -> Callable[..., Any] | None:
    """The kernel `name` of a text for the current device, called with grid, block and arguments, if there is one."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    for architecture in _runs(xp.cuda.Device().compute_capability):
        try:
            code = Path(folder, cubin_name(source, options, architecture)).read_bytes()
        except OSError:  # it is not there, or not ours to read
            continue
        module = xp.cuda.function.Module()
        try:
            module.load(code)
            function: Callable[..., Any] = module.get_function(name)
        except xp.cuda.driver.CUDADriverError:
            continue
        return function
    return None


def _runs(capability: str) -> Iterator[str]:
    """The architectures whose code a device of a compute capability such as "90" runs, the nearest first."""
    major, minor = capability[:-1], int(capability[-1])
    for older in range(minor, -1, -1):
        yield f"sm_{major}{older}"
