"""DeviceScope: the block in which a GPU, and perhaps a stream of it, are those that this thread works on."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["DeviceScope"]


class DeviceScope(AbstractContextManager[None]):
    """A block for one use. Behind it the device and the stream are those from before it.

    A class, as each batch of a session has one: a generator takes three times as long.

    Args:
        runtime: CuPy's `cupy.cuda.runtime`.
        device: the GPU's number.
        stream: a stream of it; None leaves the one from before.
    """

    __slots__ = ("_before", "_device", "_runtime", "_stream")

    def __init__(self, runtime: Any, device: int, stream: Any = None) -> None:
        self._runtime, self._device, self._stream = runtime, device, stream

    def __enter__(self) -> None:
        self._before = self._runtime.getDevice()
        # Though it be the current one: with this call a new thread gets the device's context.
        self._runtime.setDevice(self._device)
        if self._stream is not None:
            try:
                self._stream.__enter__()
            except BaseException:
                self._leave_device()
                raise

    def __exit__(self, *error: object) -> None:
        try:
            if self._stream is not None:
                self._stream.__exit__(None, None, None)
        except self._runtime.CUDARuntimeError:
            pass  # as in `_leave_device`
        finally:
            self._leave_device()

    def _leave_device(self) -> None:
        if self._before != self._device:
            # After a failure of the device this call fails as every other: the error that matters is under way.
            with contextlib.suppress(self._runtime.CUDARuntimeError):
                self._runtime.setDevice(self._before)
