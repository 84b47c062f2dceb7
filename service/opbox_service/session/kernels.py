"""Kernels of CUDA source in a session: compiled, launched on its arrays, freed like arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opbox_ops.compute import Array
from opbox_ops.errors import BadRequestError, NotFoundError
from opbox_ops.rtc import Kernel as Compiled
from opbox_ops.rtc import compile_kernel, decorate, parse_signature

from . import commands as c
from .handlers import free_id, handles

if TYPE_CHECKING:
    from .batch import Batch
    from .session import Session

__all__ = ["BodyKernel", "Kernel", "SourceKernel"]

MAX_SOURCE = 1 << 20
"""Characters of a kernel's source."""


class Kernel:
    """A kernel of a session."""

    kind = "a kernel"

    def for_values(self, values: Sequence[Any]) -> Compiled:
        """What is launched on these arrays and numbers."""
        raise NotImplementedError

    def drop(self) -> None:
        """Nothing to give back: compiled code is kept by content, for whoever sends the same again."""


class SourceKernel(Kernel):
    """MXNet 1's form: one kernel of a source, with a signature."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled

    def for_values(self, values: Sequence[Any]) -> Compiled:
        return self._compiled


class BodyKernel(Kernel):
    """MXNet 0.9's form: a body that sees its arrays' dimensions as constants, so each set of shapes is code of its own.

    Args:
        device_type: "cpu" or "gpu".
        name: of the kernel.
        inputs, outputs: names of the arrays.
        body: what stands between the braces.
        options: for the compiler.
    """

    def __init__(
        self,
        device_type: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        body: str,
        options: Sequence[str],
    ) -> None:
        self._device_type = device_type
        self._name = name
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._body = body
        self._options = tuple(options)
        self._last: tuple[Any, Compiled] | None = None

    def for_values(self, values: Sequence[Any]) -> Compiled:
        names = (*self._inputs, *self._outputs)
        if len(values) != len(names):
            raise BadRequestError(
                f"kernel {self._name!r}: expected {len(names)} arrays ({', '.join(names)}), got {len(values)}"
            )
        for name, value in zip(names, values, strict=True):
            if not hasattr(value, "shape"):
                raise BadRequestError(f"kernel {self._name!r}: argument {name!r}: expected an array, got {value!r}")
        form = tuple((tuple(value.shape), value.dtype) for value in values)
        if self._last is None or self._last[0] != form:
            described = [(name, *each) for name, each in zip(names, form, strict=True)]
            cut = len(self._inputs)
            source, arguments = decorate(self._name, described[:cut], described[cut:], self._body)
            compiled = compile_kernel(self._device_type, source, self._name, arguments, self._options)
            self._last = (form, compiled)
        return self._last[1]


@handles(c.Compile)
def compile_(session: Session, command: c.Compile, batch: Batch) -> None:
    free_id(session, command.id)
    session.room_for(1)
    subject = f"kernel {command.kernel!r}"
    if (command.source is None) == (command.body is None):
        raise BadRequestError(f"{subject}: expected either a source, or a body with inputs and outputs")
    text = command.source if command.source is not None else command.body
    assert text is not None
    if len(text) > MAX_SOURCE:
        raise BadRequestError(f"{subject}: expected a source of at most {MAX_SOURCE} characters, got {len(text)}")
    device_type = session.backend.device_type
    if command.source is not None:
        arguments = parse_signature(command.kernel, command.signature)
        made: Kernel = SourceKernel(
            compile_kernel(device_type, text, command.kernel, arguments, command.options, command.exports)
        )
    else:
        made = BodyKernel(device_type, command.kernel, [*command.inputs], [*command.outputs], text, command.options)
        made.for_values([session.array(id) for group in (command.inputs, command.outputs) for id in group.values()])
    session.objects[command.id] = made


@handles(c.Launch)
def launch(session: Session, command: c.Launch, batch: Batch) -> None:
    kernel = session.objects.get(command.kernel)
    if not isinstance(kernel, Kernel):
        kind = "nothing" if kernel is None else kernel.kind
        raise NotFoundError(f"kernel {command.kernel}: expected one compiled in this session, got {kind}")
    values: list[Array | float] = [
        session.array(each.array) if isinstance(each, c.ArrayArgument) else each.value for each in command.args
    ]
    kernel.for_values(values).launch(values, command.grid, command.block, command.shared)
