"""Operators one by one: invoke, update, seed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from opbox_ops import registry
from opbox_protocol.errors import BadRequestError

from ..executor import invoke
from ..validation import RandomSeed, Strict
from .array_table import ArrayTable
from .command import Attrs, Command, Exchange, Id

__all__ = ["COMMANDS"]


class Invoke(Command):
    """One operator on arrays. `outputs` are its visible outputs; null drops one."""

    do: Literal["invoke"]
    op: str
    attrs: Attrs = {}
    inputs: list[Id] = []
    outputs: list[Id | None] = []
    into: bool = Field(default=False, description="The outputs exist and are written in place.")
    is_train: bool = False

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        inputs = [table.array(id) for id in self.inputs]
        op = registry.get(self.op)
        backend, random, is_train = table.backend, table.random, self.is_train
        if self.into:
            targets = [None if id is None else table.writable(id) for id in self.outputs]
            invoke(op, self.attrs, inputs, backend=backend, random=random, is_train=is_train, outputs=targets)
            return
        table.reserve(*self.outputs)
        outputs = invoke(op, self.attrs, inputs, backend=backend, random=random, is_train=is_train)
        if len(outputs) != len(self.outputs):
            raise BadRequestError(f"{op.name}: outputs: expected {len(outputs)} ids, got {len(self.outputs)}")
        for id, array in zip(self.outputs, outputs, strict=True):
            if id is not None:
                table.keep(id, array)


class UpdateCall(Strict):
    """One call of an update."""

    inputs: list[Id] = Field(min_length=1)
    attrs: Attrs = {}


class Update(Command):
    """An optimizer's operator over many weights: output 0 goes into input 0 in place."""

    do: Literal["update"]
    op: str
    attrs: Attrs = {}
    calls: list[UpdateCall]

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        op = registry.get(self.op)
        calls = [
            (table.writable(call.inputs[0]), [table.array(id) for id in call.inputs], {**self.attrs, **call.attrs})
            for call in self.calls
        ]
        backend, random = table.backend, table.random
        for weight, inputs, attrs in calls:
            invoke(op, attrs, inputs, backend=backend, random=random, is_train=True, outputs=[weight])


class Seed(Command):
    """Seed the session's random source."""

    do: Literal["seed"]
    seed: RandomSeed

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.random.seed(self.seed)


COMMANDS = (Invoke, Update, Seed)
