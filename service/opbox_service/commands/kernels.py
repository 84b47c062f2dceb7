"""Kernels of CUDA source: compile, launch. They are freed like arrays."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from opbox_ops.compute import Array
from opbox_ops.rtc import read_kernel
from opbox_protocol.errors import BadRequestError

from ..owner_terms import Scope
from ..validation import Expected, Strict
from .array_table import WRITES_TO_INPUT, ArrayTable, KernelEntry
from .command import Command, Exchange, Id, IdsByName

__all__ = ["COMMANDS"]

Size = Annotated[int, Field(ge=1, lt=1 << 31)]


class Compile(Command):
    """A kernel of CUDA source: `source` and `signature`, or the `body` of one over `inputs` and `outputs` (MXNet 0.9).

    The latter is compiled for the shapes and types of the arrays that it names, and again for those of a launch.
    """

    scope: ClassVar[Scope] = "upload-cuda"

    do: Literal["compile"]
    id: Id
    kernel: str = Field(max_length=512, description="Its name; axpy<float> for an instance of a template.")
    source: str | None = None
    signature: str = Field(default="", description="As in 'const float *x, float *y, int n'.")
    options: list[str] = Field(default=[], max_length=64, description="For the compiler: -DNAME=VALUE and the like.")
    exports: list[str] = Field(default=[], max_length=64, description="Instances of templates that the source has.")
    body: str | None = None
    inputs: IdsByName = {}
    outputs: IdsByName = {}

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.reserve(self.id)
        table.add(self.id, KernelEntry(read_kernel(table.backend.device_type, dict(self), table.array)))


class ArrayArgument(Strict):
    """A kernel's pointer."""

    array: Id


class NumberArgument(Strict):
    """A kernel's scalar."""

    value: bool | int | float


class Launch(Command):
    """Run a kernel over `grid` blocks of `block` threads."""

    do: Literal["launch"]
    kernel: Id
    args: list[Annotated[ArrayArgument | NumberArgument, Expected('{"array": id} or {"value": number}')]] = []
    grid: list[Size] = Field(min_length=3, max_length=3)
    block: list[Size] = Field(min_length=3, max_length=3)
    shared: int = Field(default=0, ge=0, lt=1 << 30, description="Bytes of dynamic shared memory.")

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        form = table.kernel(self.kernel)
        entries = [
            table.entry(argument.array) if isinstance(argument, ArrayArgument) else None for argument in self.args
        ]
        values: list[Array | float] = [
            argument.value if isinstance(argument, NumberArgument) else table.array(argument.array)
            for argument in self.args
        ]
        kernel = form.for_values(values)
        for parameter, entry in zip(kernel.arguments, entries, strict=False):
            if entry is not None and entry.read_only and not parameter.is_const:
                raise BadRequestError(WRITES_TO_INPUT)
        kernel.launch(values, self.grid, self.block, self.shared)


COMMANDS = (Compile, Launch)
