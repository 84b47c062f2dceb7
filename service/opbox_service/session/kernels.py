"""Kernels of CUDA source in a session: compiled, launched on its arrays, freed like arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opbox_ops.compute import Array
from opbox_ops.rtc import KernelForm, read_kernel
from opbox_protocol.errors import NotFoundError

from . import commands as c
from .handlers import free_id, handles

if TYPE_CHECKING:
    from .batch import Batch
    from .session import Session

__all__ = ["Kernel"]


class Kernel:
    """A kernel of a session."""

    __slots__ = ("form",)
    kind = "a kernel"

    def __init__(self, form: KernelForm) -> None:
        self.form = form

    def drop(self) -> None:
        """Nothing to give back: compiled code is kept by content, for whoever sends the same again."""


@handles(c.Compile)
def compile_(session: Session, command: c.Compile, batch: Batch) -> None:
    free_id(session, command.id)
    session.room_for(1)
    session.objects[command.id] = Kernel(read_kernel(session.backend.device_type, dict(command), session.array))


@handles(c.Launch)
def launch(session: Session, command: c.Launch, batch: Batch) -> None:
    kernel = session.objects.get(command.kernel)
    if not isinstance(kernel, Kernel):
        kind = "nothing" if kernel is None else kernel.kind
        raise NotFoundError(f"kernel {command.kernel}: expected one compiled in this session, got {kind}")
    values: list[Array | float] = [
        session.array(each.array) if isinstance(each, c.ArrayArgument) else each.value for each in command.args
    ]
    kernel.form.for_values(values).launch(values, command.grid, command.block, command.shared)
