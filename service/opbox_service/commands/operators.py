"""Operators one by one: invoke, invoke_again, update, seed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from opbox_ops import registry
from opbox_ops.compute import highest_level
from opbox_ops.operator import Op
from opbox_ops.update.together import steps_together
from opbox_protocol.errors import BadRequestError

from ..executor import CallForm, form_of
from ..owner_terms import Scope
from ..validation import InPieces, RandomSeed, Strict
from .array_table import ArrayTable
from .command import ID_END, Attrs, Command, Exchange, Id, Ids, IdsOrNone, TypedCommand

__all__ = ["COMMANDS", "InvokeAgain", "forget_replaced", "operator_of", "recurring"]

KNOWN_FORMS = 4096
"""Number of `invoke` forms to cache; the oldest is dropped first."""


class Invoke(Command):
    """Run one operator on arrays. `outputs` are its visible outputs; null drops one."""

    do: Literal["invoke"]
    op: str
    attrs: Attrs = {}
    inputs: Ids = []
    outputs: IdsOrNone = []
    into: bool = Field(default=False, description="The outputs exist and are written in place.")
    is_train: bool = False

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        inputs = table.arrays(self.inputs)
        op = registry.get(self.op)
        if self.into:
            targets = [None if id is None else table.writable(id) for id in self.outputs]
            form = _remembered(op, self.op, self.attrs)
            form.run(inputs, table.backend, table.random, self.is_train, targets)
            return
        table.reserve(*self.outputs)
        form = _remembered(op, self.op, self.attrs)
        _keep(form, form.run(inputs, table.backend, table.random, self.is_train), self.outputs, table)

    def again(self, inputs: Sequence[int], outputs: Sequence[int | None], into: bool) -> Invoke:
        """The same operator with the same attributes on other arrays."""
        return self.model_copy(update={"inputs": inputs, "outputs": outputs, "into": into})


class InvokeAgain(Command):
    """The operator of an earlier `invoke` of the batch, with its attributes, on other arrays."""

    do: Literal["invoke_again"]
    of: int = Field(ge=0, description="The number of that `invoke` in the batch, from 0.")
    inputs: Ids = []
    outputs: IdsOrNone = []
    into: bool = Field(default=False, description="The outputs exist and are written in place.")
    _first: Invoke | Recurring | None = PrivateAttr(default=None)

    def find_first(self, number: int, batch: Sequence[TypedCommand]) -> None:
        """Find the command that it repeats, among those before `number`, which is its own; BadRequestError if none."""
        first = batch[self.of] if self.of < number else None
        if not isinstance(first, Invoke | Recurring):
            raise BadRequestError(
                f"command {number} (invoke_again): of: expected the number of an invoke before it in the batch, got "
                f"{self.of}",
                detail={"command": number},
            )
        self._first = first

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        assert self._first is not None  # or `parse` has refused it
        self._first.again(self.inputs, self.outputs, self.into).run(table, exchange)


def _keep(form: CallForm, arrays: Sequence[Any], ids: Sequence[int | None], table: ArrayTable) -> None:
    """Give the outputs of a call their numbers."""
    if len(arrays) != len(ids):
        raise BadRequestError(f"{form.op.name}: outputs: expected {len(arrays)} ids, got {len(ids)}")
    for id, array in zip(ids, arrays, strict=True):
        if id is not None:
            table.keep(id, array)


class Recurring:
    """An `invoke`, or its repetition, whose form (operator and attributes) has run before: its ids alone are new."""

    __slots__ = ("_form", "_inputs", "_into", "_outputs")
    do = "invoke"
    scope: ClassVar[Scope] = "run"
    changes_arrays: ClassVar[bool] = True
    always_runs: ClassVar[bool] = False
    silences: ClassVar[bool] = False

    def __init__(self, form: CallForm, inputs: Sequence[int], outputs: Sequence[int | None], into: bool) -> None:
        self._form = form
        self._inputs = inputs
        self._outputs = outputs
        self._into = into

    def again(self, inputs: Sequence[int], outputs: Sequence[int | None], into: bool) -> Recurring:
        """See Invoke."""
        return Recurring(self._form, inputs, outputs, into)

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        """See Invoke."""
        form, outputs = self._form, self._outputs
        inputs = table.arrays(self._inputs)
        if self._into:
            targets = [None if id is None else table.writable(id) for id in outputs]
            form.run(inputs, table.backend, table.random, False, targets, silent=table.silent)
            return
        table.reserve(*outputs)
        arrays = form.run(inputs, table.backend, table.random, silent=table.silent)
        if len(arrays) == 1 == len(outputs) and outputs[0] is not None:
            table.keep(outputs[0], arrays[0])
        else:
            _keep(form, arrays, outputs, table)


# No cachetools: as with the forms of `executor.invoke`, each call looks it up.
_known_forms: OrderedDict[tuple[Any, ...], CallForm] = OrderedDict()
_registry_version = registry.version()


def forget_replaced() -> None:
    """Forget the recurring forms when names of operators stand for others now; before commands are read."""
    global _registry_version
    if _registry_version != registry.version():
        _known_forms.clear()
        _registry_version = registry.version()


def recurring(command: Any, earlier: Sequence[Any] = ()) -> Recurring | None:
    """An `invoke` or `invoke_again` as clients write it, of a form that has run before; None for anything else.

    It takes a sixth of the time of validating the command as a model.

    Args:
        command: right or wrong.
        earlier: what the commands before it in the batch are by this function.
    """
    try:
        name, inputs, outputs = command["do"], command["inputs"], command["outputs"]
        if name == "invoke_again":
            of, into = command["of"], False
            if len(command) != 4 or type(of) is not int or of < 0:
                return None
            first = earlier[of]
            form = first._form if type(first) is Recurring else None
        elif name == "invoke" and len(command) == 6:
            attrs, into = command["attrs"], command["into"]
            if type(attrs) is not dict or type(into) is not bool:
                return None
            form = _known_forms.get((command["op"], *attrs.items()))
        else:
            return None
    except (KeyError, TypeError, IndexError):
        return None
    if form is None or type(inputs) is not list or type(outputs) is not list:
        return None
    for id in inputs:
        if type(id) is not int or not 0 <= id < ID_END:
            return None
    for id in outputs:
        if type(id) is not int or not 0 <= id < ID_END:
            return None
    return Recurring(form, inputs, outputs, into)


def _remembered(op: Op, name: str, attrs: dict[str, Any]) -> CallForm:
    """The form of a call, which `recurring` knows from here on: by its attributes as text, which need no parsing."""
    form = form_of(op, attrs)
    if form.recurs and all(type(value) is str for value in attrs.values()):
        forget_replaced()
        _known_forms[name, *attrs.items()] = form
        while len(_known_forms) > KNOWN_FORMS:
            _known_forms.popitem(last=False)
    return form


class UpdateCall(Strict):
    """One call of an update."""

    inputs: list[Id] = Field(min_length=1)
    attrs: Attrs = {}


class OtherAttrs(Strict):
    """Attributes that some calls of an update have beside, or in place of, those of all."""

    calls: Annotated[list[Annotated[int, Field(ge=0)]], InPieces()] = Field(description="Their numbers, from 0.")
    attrs: Attrs


class Update(Command):
    """Run an optimizer's operator over many weights; output 0 replaces input 0 in place.

    The calls are listed one by one in `calls`, or, which is shorter, by the operator's inputs in `inputs`.
    """

    do: Literal["update"]
    op: str
    attrs: Attrs = {}
    calls: Annotated[list[UpdateCall], InPieces()] | None = None
    inputs: Annotated[list[Ids], InPieces()] | None = Field(
        default=None, description="For each input of the operator, its arrays in all calls, in order."
    )
    other_attrs: Annotated[list[OtherAttrs], InPieces()] = Field(
        default=[], description="Beside `inputs`: the calls that have other attributes."
    )

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        op = registry.get(self.op)
        listed = self._listed()
        calls = [(table.writable(ids[0]), table.arrays(ids)) for ids, _ in listed]
        known = {id(attrs): form_of(op, attrs) for attrs in {id(attrs): attrs for _, attrs in listed}.values()}
        forms = [known[id(attrs)] for _, attrs in listed]
        if len(calls) > 1 and highest_level() != "reference":
            steps = [(inputs, form.params) for (_, inputs), form in zip(calls, forms, strict=True)]
            together = _together(op, table.backend, steps)
            if together is not None:
                together()
                return
        for (weight, inputs), form in zip(calls, forms, strict=True):
            form.run(inputs, table.backend, table.random, True, [weight])

    def _listed(self) -> list[tuple[Sequence[int], dict[str, Any]]]:
        """The calls one by one: ids and attributes, which are one object for the calls that share them.

        Raises:
            BadRequestError: neither or both of `calls` and `inputs`, or some of `inputs` that do not fit each other.
        """
        if self.calls is not None and self.inputs is None and not self.other_attrs:
            return [(call.inputs, {**self.attrs, **call.attrs} if call.attrs else self.attrs) for call in self.calls]
        if self.calls is not None or not self.inputs:
            raise BadRequestError(f"update: {self.op}: expected either calls, or inputs with perhaps other_attrs")
        count = len(self.inputs[0])
        if any(len(ids) != count for ids in self.inputs):
            raise BadRequestError(
                f"update: {self.op}: inputs: expected equally many arrays of each, got "
                f"{', '.join(str(len(ids)) for ids in self.inputs[:10])}"
            )
        attrs = [self.attrs] * count
        for other in self.other_attrs:
            merged = {**self.attrs, **other.attrs}
            for number in other.calls:
                if number >= count:
                    raise BadRequestError(
                        f"update: {self.op}: other_attrs: calls: expected numbers below {count}, got {number}"
                    )
                attrs[number] = merged
        return list(zip(zip(*self.inputs, strict=True), attrs, strict=True))


def _together(op: Op, backend: Any, steps: Sequence[tuple[Any, Any]]) -> Callable[[], None] | None:
    """Return one call for the updates of many weights, if the device has one."""
    if backend.device_type != "gpu":
        return steps_together(op, steps)
    many = op.get_attr("FManySteps")
    together: Callable[[], None] | None = None if many is None else many(backend.xp, steps)
    return together


class Seed(Command):
    """Seed the session's random source."""

    do: Literal["seed"]
    seed: RandomSeed

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.random.seed(self.seed)


def operator_of(command: TypedCommand) -> str | None:
    """The operator that a command calls by itself; None for other commands."""
    if isinstance(command, InvokeAgain):
        return None if command._first is None else operator_of(command._first)
    if isinstance(command, Recurring):
        return command._form.op.name
    return command.op if isinstance(command, Invoke | Update) else None


COMMANDS = (Invoke, InvokeAgain, Update, Seed)
