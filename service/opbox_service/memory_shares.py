"""Shares of the machine's memory: arrays of sessions, bodies and answers in transfer, processes with code.

The first two add up to no more than there is. Processes with code have what sessions elsewhere leave of the first.
"""

from __future__ import annotations

import glob

from opbox_ops.backend.host_memory import machine_memory

from .logs import Logger
from .settings import Settings

__all__ = [
    "CONTEXT_BYTES",
    "HOST",
    "buffer_bytes",
    "code_bytes",
    "device_bytes",
    "gpu_bytes",
    "has_gpu",
    "within_machine",
]

HOST = "cpu"
"""The device in whose memory JSON and answers are counted."""
CODE_DIVISOR = 16
"""Processes with code get at least the sessions' memory divided by this."""
GPU_DIVISOR = 16
"""A GPU's memory divided by this is kept for contexts and kernels, at least."""
CONTEXT_BYTES = 640 << 20
"""Device memory of a process beside its arrays: CUDA's context, and kernels of libraries. An H100 takes 607 MiB."""
USUAL_OWNERS = 4
"""Number of workers that a GPU has room for where each owner has one."""

_log = Logger("opbox.memory")


def device_bytes(settings: Settings) -> int:
    """Return the bytes that all sessions together may use on each device."""
    return settings.max_device_bytes or machine_memory() * 3 // 4


def gpu_bytes(settings: Settings, memory: int) -> int:
    """Return the bytes that sessions may use of a GPU of `memory` bytes: the rest is for contexts and kernels.

    A sixteenth has room for eight processes on an 80 GB card, and for one on a slice of 10 GB. So it is never less than
    the server's own processes need, as far as a quarter of the memory goes.
    """
    needed = min(_processes_on_gpu(settings) * CONTEXT_BYTES, memory // 4)
    return min(settings.max_device_bytes or memory - max(memory // GPU_DIVISOR, needed), memory)


def _processes_on_gpu(settings: Settings) -> int:
    """The number of processes that a GPU has room for in any case: the workers, and a session's with code."""
    if settings.isolation == "none":
        return 1
    workers = USUAL_OWNERS if settings.workers == "auto" else settings.workers
    return workers + (settings.code_sessions > 0)


def buffer_bytes(settings: Settings) -> int:
    """Return the bytes that bodies and answers may use at a time, beside those of arrays."""
    return min(settings.max_buffer_bytes, machine_memory() // 4)


def code_bytes(settings: Settings, beside: int) -> int:
    """Return the bytes that processes with code may use, where other sessions use `beside` bytes."""
    whole = machine_memory() * 3 // 4
    return settings.max_code_bytes or max(whole - beside, whole // CODE_DIVISOR)


def within_machine(settings: Settings) -> Settings:
    """The settings, with no more for arrays and for code than the machine has; the log says where they ask for more.

    What arrays may have on a GPU is the GPU's: where a device may be one, `max_device_bytes` stays.
    """
    most = machine_memory() - buffer_bytes(settings)
    names = ["max_code_bytes"]
    if not has_gpu(settings):
        names.append("max_device_bytes")
    larger = [name for name in names if getattr(settings, name) > most]
    for name in larger:
        _log.warning(
            f"OPBOX_{name.upper()}: expected at most {most} bytes, which this machine's memory leaves beside transfer "
            f"buffers (OPBOX_MAX_BUFFER_BYTES), got {getattr(settings, name)}: {most} are used"
        )
    return settings.model_copy(update=dict.fromkeys(larger, most))


def has_gpu(settings: Settings) -> bool:
    """Return whether a device of these settings may be a GPU that is there."""
    named = settings.devices or (settings.device, "gpu")
    return any(name.startswith("gpu") for name in named) and bool(glob.glob("/dev/nvidia[0-9]*"))
