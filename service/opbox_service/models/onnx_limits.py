"""OnnxLimits: the limits of the process that converts an ONNX file; they are those of a session's code."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OnnxLimits"]


@dataclass(frozen=True, slots=True)
class OnnxLimits:
    """Limits of a conversion.

    Attributes:
        first_user: of the user ids that it may become one of; 0: it stays the server's.
        memory, open_files, file_bytes: of the process, and of each file.
        tasks: threads and processes.
        seccomp: whether system calls are refused to it.
        kernels, maker: a folder of compiled kernels that it may load, and their owner.
    """

    first_user: int
    memory: int
    open_files: int
    file_bytes: int
    tasks: int
    seccomp: bool
    kernels: str | None
    maker: int
