"""Devices: where arrays live and graphs run. Each is a session on the engine.

with mx.gpu(0):
    x = mx.nd.zeros((2, 3))
"""

from __future__ import annotations

import operator
import threading
from typing import Any, ClassVar

from opbox_protocol.errors import MXNetError

from . import connection
from .base import value_text
from .class_property import ClassProperty, WithClassProperties
from .device_sessions import session_for
from .session import Session

__all__ = ["Context", "cpu", "cpu_pinned", "current_context", "gpu", "gpu_memory_info", "num_gpus"]

_scope = threading.local()


class Context(metaclass=WithClassProperties):
    """A device: "cpu" or "gpu", and its number on the server.

    Args:
        device_type: "cpu", "gpu", "cpu_pinned" or "cpu_shared" (these two are the CPU), or another context.
        device_id: the number. CPU contexts of all numbers compute on the engine's CPU; their arrays keep the number.

    Raises:
        ValueError: another device type.
        TypeError: a device id that is no integer.
    """

    device_typeid: int
    device_id: int
    default_ctx: ClassVar[Context]
    """The context of this thread outside any `with`; setting it replaces it."""
    devtype2str: ClassVar[dict[int, str]] = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared"}
    devstr2type: ClassVar[dict[str, int]] = {"cpu": 1, "gpu": 2, "cpu_pinned": 3, "cpu_shared": 5}

    def __init__(self, device_type: str | Context, device_id: int = 0) -> None:
        kind, number = (
            (device_type.device_type, device_type.device_id)
            if isinstance(device_type, Context)
            else (device_type, device_id)
        )
        if kind not in self.devstr2type:
            raise ValueError(f"device type: expected one of {', '.join(self.devstr2type)}, got {kind!r}")
        if not hasattr(number, "__index__"):
            raise TypeError(f"device_id: expected a number, got {value_text(number)}")
        self.device_typeid = self.devstr2type[kind]
        self.device_id = operator.index(number)
        self._before: list[Context] = []

    @property
    def device_type(self) -> str:
        """The kind of device: "cpu", "gpu", …"""
        return self.devtype2str[self.device_typeid]

    @property
    def device(self) -> str:
        """The engine's name of the device: "cpu" or "gpu:0"."""
        return f"gpu:{self.device_id}" if self.device_type == "gpu" else "cpu"

    @property
    def session(self) -> Session:
        """The session on this device; the first access opens it."""
        session = session_for(self.device)
        return session if self.device_id == 0 else session.of_context(self.device_id)

    @property
    def location(self) -> tuple[str, int]:
        """Kind and number as arrays have them: all kinds of CPU are "cpu"."""
        return ("gpu" if self.device_type == "gpu" else "cpu"), self.device_id

    def __hash__(self) -> int:
        return hash((self.device_typeid, self.device_id))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Context)
            and self.device_typeid == other.device_typeid
            and self.device_id == other.device_id
        )

    def __str__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    __repr__ = __str__

    def __copy__(self) -> Context:
        return Context(self)

    def __deepcopy__(self, memo: Any) -> Context:
        return Context(self)

    def __enter__(self) -> Context:
        self._before.append(current_context())
        _scope.value = self
        return self

    def __exit__(self, *_: object) -> None:
        _scope.value = self._before.pop()

    def empty_cache(self) -> None:
        """Do nothing: the engine frees memory by itself."""


def cpu(device_id: int = 0) -> Context:
    """A context on the CPU of the engine."""
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """The CPU; transfers are staged by the engine."""
    return Context("cpu_pinned", device_id)


def gpu(device_id: int = 0) -> Context:
    """GPU number `device_id` of the engine."""
    return Context("gpu", device_id)


def num_gpus() -> int:
    """Return the number of GPUs that the engine's settings name, or its sessions use."""
    return len({row["device"] for row in connection.device_rows() if row["device"].startswith("gpu")})


def gpu_memory_info(device_id: int = 0) -> tuple[int, int]:
    """Return the free and the whole memory of a GPU of the engine's, in bytes.

    Raises:
        MXNetError: the engine has no such GPU.

    Example:
        >>> free, total = mx.context.gpu_memory_info(0)
    """
    name = f"gpu:{device_id}"
    for row in connection.device_rows():
        if row["device"] == name:
            total: int = row["memory_bytes"]
            return total - row["memory_used_bytes"], total
    raise MXNetError(f"gpu_memory_info: expected a GPU of the engine's ({num_gpus()} there), got {name}")


def context_or_current(ctx: Any, subject: str = "ctx") -> Context:
    """Return `ctx`, or the current context for None.

    Raises:
        TypeError: it is something else, such as the name of a device.
    """
    if isinstance(ctx, Context):
        return ctx
    if ctx is not None:
        raise TypeError(f"{subject}: expected a Context such as mx.cpu() or mx.gpu(0), got {value_text(ctx)}")
    return current_context()


def current_context() -> Context:
    """The context of this thread's innermost `with`; the CPU outside of any."""
    context: Context | None = getattr(_scope, "value", None)
    return context if context is not None else cpu()


def _set_current(ctx: Any) -> None:
    """Make `ctx` the one of this thread, outside any `with` (MXNet's old manner).

    Raises:
        TypeError: it is none.
    """
    if not isinstance(ctx, Context):
        raise TypeError(f"Context.default_ctx: expected a Context, got {value_text(ctx)}")
    _scope.value = ctx


Context.default_ctx = ClassProperty(current_context, _set_current, "The context of this thread.")  # type: ignore[assignment]
