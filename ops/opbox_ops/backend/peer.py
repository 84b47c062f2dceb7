"""Copies between arrays of two GPUs, each on the stream of its session: neither waits on the host."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["copy_between"]


def copy_between(source: Any, target: Any, far: Any, near: Any) -> None:
    """Queue a copy of an array to one of the same shape on another GPU; it is cast if need be.

    The target's stream waits for what computes the source; the source's stream waits for the copy, before it changes
    the source or uses its memory again. Where the driver gives the two GPUs no access to each other, it copies by way
    of the host.

    Args:
        source: on the device of `far`, of any strides.
        target: on the device of `near`.
        far, near: `for_session`'s backends, perhaps metered.

    Raises:
        QuotaError: no room for a contiguous copy, which is made where types or strides differ.
    """
    cuda = near.xp.cuda
    with far.scope():
        if source.dtype != target.dtype or not source.flags.c_contiguous:
            cast = far.empty(tuple(source.shape), target.dtype)
            cast[...] = source
            source = cast
        computed = _event_behind(cuda, far.stream)
    with near.scope():
        landing = target if target.flags.c_contiguous else near.empty(tuple(target.shape), target.dtype)
        near.stream.wait_event(computed)
        if source.nbytes:
            _enable_access(cuda.runtime, near.device.id, far.device.id)
            places = landing.data.ptr, near.device.id, source.data.ptr, far.device.id
            cuda.runtime.memcpyPeerAsync(*places, source.nbytes, near.stream.ptr)
        copied = _event_behind(cuda, near.stream)
        if landing is not target:
            target[...] = landing
    with far.scope():
        far.stream.wait_event(copied)


def _event_behind(cuda: Any, stream: Any) -> Any:
    """An event that comes when a stream of the current GPU has done what is queued on it."""
    event = cuda.Event(disable_timing=True)
    event.record(stream)
    return event


@cache
def _enable_access(runtime: Any, near: int, far: int) -> None:
    """Have the current GPU, `near`, read the memory of `far`, where the driver allows that."""
    if near != far and runtime.deviceCanAccessPeer(near, far):
        try:
            runtime.deviceEnablePeerAccess(far)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY_ENABLED:
                raise


_ALREADY_ENABLED = 704
"""CUDA's number of the error that CuPy has enabled the access before."""
