"""Tells the device errors that end a process from those after which it goes on.

After some errors of CUDA (an access outside memory, a trap in a kernel) every further call of the process fails with
the same one: its arrays are lost, and the process must end. After others (a launch that needs more registers than
there are) the call has done nothing, and the process goes on. A library of CUDA's that is not installed shows when the
first operator needs it.
"""

from __future__ import annotations

import re

from opbox_protocol.errors import MXNetError, UnsupportedError, WorkerDiedError

from ..cuda.shared_libraries import LibraryNotFoundError

__all__ = ["REMEDY", "device_error", "first_line", "lost", "missing_library"]

REMEDY = "pip install 'opbox-service[cuda13]'"
_NOT_LOADED = re.compile(r"lib(cu|nv)\w*\.so[.\d]*: cannot open")
"""What the system says of a library that CuPy is linked to."""
_NO_HEADERS = "Failed to find CUDA headers"
"""What CuPy says then."""

_LOST = {
    214: "an error of its memory that cannot be corrected",
    220: "an error of a connection between GPUs (NVLink) that cannot be corrected",
    226: "an error of its hardware, or of an access to another GPU's memory",
    700: "a kernel accessed memory that is not its own",
    702: "a kernel ran for too long",
    710: "an assertion in a kernel failed",
    714: "a stack of a kernel is damaged",
    715: "a kernel's instruction is illegal",
    716: "a kernel accessed memory at an address that is not a multiple of what it reads",
    717: "a kernel accessed memory of a kind that its instruction cannot",
    718: "a kernel jumped to no instruction of its own",
    719: "a kernel failed",
    721: "a kernel left tensor memory that it had taken",
    810: "the MPS server ended its work for this process",
    911: "a device beside the GPU failed, whose data it waited for",
}
"""The statuses after which a process cannot go on, as `driver_types.h` says of cudaError_t, and `cuda.h` of CUresult.

The numbers are the same in both. They are the errors whose text says that "the process must be terminated and
relaunched", and the errors of memory and connections that cannot be corrected (214, 220).
"""
_REFUSED = {
    701: "a kernel needs more registers than the GPU has for a block of so many threads: use fewer threads",
}
"""Statuses of calls that did nothing, where CUDA's own word for them says too little."""

_lost: list[str] = []


def device_error(error: BaseException) -> MXNetError | None:
    """An error of CUDA's, or the want of its libraries, as one of ours; None for any other."""
    if (sentence := missing_library(error)) is not None:
        return UnsupportedError(sentence)
    status = getattr(error, "status", None)
    if not isinstance(status, int) or not any(base.__module__.startswith("cupy") for base in type(error).__mro__):
        return None
    if status not in _LOST:
        return MXNetError(f"the GPU refused a call: CUDA error {status} ({_REFUSED.get(status) or first_line(error)})")
    message = f"the GPU failed, CUDA error {status}: {_LOST[status]}"
    _lost.append(message)
    return WorkerDiedError(f"{message}; its process ends, and the sessions in it: make a new session")


def lost() -> str | None:
    """Why this process can use its device no longer; None while it can."""
    return _lost[0] if _lost else None


def missing_library(error: BaseException) -> str | None:
    """Which library of CUDA's is not installed, and what to do; None where the error is another."""
    # CuPy raises an error of several lines from the system's.
    while isinstance(error, ImportError) and error.__cause__ is not None:
        error = error.__cause__
    # cuda-pathfinder's error, which CuPy lets through, and its subclasses.
    absent = isinstance(error, LibraryNotFoundError) or any(
        base.__name__ == "DynamicLibNotFoundError" for base in type(error).__mro__
    )
    if isinstance(error, RuntimeError) and str(error).startswith(_NO_HEADERS):
        return f"CUDA's headers are missing, which CuPy's kernels are compiled with: install all of them ({REMEDY})"
    if not absent and not (isinstance(error, ImportError) and _NOT_LOADED.match(str(error))):
        return None
    return f"a library of CUDA is missing ({first_line(error)}): install all of them ({REMEDY})"


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something; its class's name where none does."""
    return next((line for line in str(error).splitlines() if line.strip("= ")), type(error).__name__)
