"""Tells the device errors that end a process from those after which it goes on.

After some errors of CUDA (an access outside memory, a trap in a kernel) every further call of the process fails with
the same one: its arrays are lost, and the process must end.
"""

from __future__ import annotations

from opbox_protocol.errors import MXNetError, WorkerDiedError

__all__ = ["device_error", "lost"]

_LOST = {
    214: "an error of its memory that cannot be corrected",
    700: "a kernel accessed memory that is not its own",
    701: "a kernel was launched with more than the device has",
    702: "a kernel ran for too long",
    710: "an assertion in a kernel failed",
    714: "a stack of a kernel is damaged",
    715: "a kernel's instruction is illegal",
    716: "a kernel accessed memory at an address that is not a multiple of what it reads",
    717: "a kernel accessed memory of a kind that its instruction cannot",
    718: "a kernel jumped to no instruction of its own",
    719: "a kernel failed",
}
"""The statuses of CUDA after which the process cannot go on (CUDA Runtime API, error handling)."""

_lost: list[str] = []


def device_error(error: BaseException) -> MXNetError | None:
    """An error of CUDA's as one of ours; None for any other."""
    status = getattr(error, "status", None)
    if not isinstance(status, int) or not any(base.__module__.startswith("cupy") for base in type(error).__mro__):
        return None
    if status not in _LOST:
        return MXNetError(f"the GPU refused a call: CUDA error {status} ({error})")
    message = f"the GPU failed, CUDA error {status}: {_LOST[status]}"
    _lost.append(message)
    return WorkerDiedError(f"{message}; its process ends, and the sessions in it: make a new session")


def lost() -> str | None:
    """Why this process can use its device no longer; None while it can."""
    return _lost[0] if _lost else None
