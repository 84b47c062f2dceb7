"""What each command does: one function a command, in a table that further commands join.

A handler gets the session, the typed command and the batch (its tensors, its results). It checks all ids before it
changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from opbox_ops import registry
from opbox_ops.compute import Array
from opbox_ops.infer import show_shape
from opbox_protocol.datatypes import datatype_of
from opbox_protocol.errors import BadRequestError, ConflictError, NotFoundError, ShapeError

from ..executor import bind, invoke
from . import commands as c
from .memory import Held

if TYPE_CHECKING:
    from .batch import Batch
    from .session import Session

__all__ = ["HANDLERS", "Bound", "Kept", "free_id", "handles"]

Handler: TypeAlias = "Callable[[Session, Any, Batch], None]"
HANDLERS: dict[type[c.Command], Handler] = {}
"""What runs each kind of command."""


class Kept:
    """An array of a session and the memory that it keeps."""

    __slots__ = ("array", "held")
    kind = "an array"

    def __init__(self, array: Array, held: Held) -> None:
        self.array = array
        self.held = held

    def drop(self) -> None:
        self.held.drop()


class Bound:
    """An executor of a session, and the memory that it keeps: its own, and that of the arrays it is bound to."""

    __slots__ = ("executor", "helds")
    kind = "an executor"

    def __init__(self, executor: Any, helds: Sequence[Held]) -> None:
        self.executor = executor
        self.helds = helds

    def drop(self) -> None:
        for held in self.helds:
            held.drop()


def handles(kind: type[c.Command]) -> Callable[[Handler], Handler]:
    """Decorator: the handler of a command."""

    def attach(handler: Handler) -> Handler:
        HANDLERS[kind] = handler
        return handler

    return attach


def _executor(session: Session, id: int) -> Any:
    found = session.objects.get(id)
    if not isinstance(found, Bound):
        kind = "nothing" if found is None else found.kind
        raise NotFoundError(f"executor {id}: expected one bound in this session, got {kind}")
    return found.executor


def free_id(session: Session, id: int | None) -> None:
    """ConflictError when the id is in use."""
    if id is not None and id in session.objects:
        raise ConflictError(f"id {id} is taken: free it first, or choose another")


def _free_ids(session: Session, ids: Sequence[int | None]) -> None:
    given = [id for id in ids if id is not None]
    if len(set(given)) != len(given):
        raise ConflictError(f"ids {given}: expected each once")
    for id in given:
        free_id(session, id)


def _keep(session: Session, id: int, array: Array, held: Held | None = None) -> None:
    session.objects[id] = Kept(array, Held(session.budget, int(array.nbytes)) if held is None else held)


def _same_shape(what: str, expected: Any, got: Any) -> None:
    if tuple(expected) != tuple(got):
        raise ShapeError(f"{what}: expected {show_shape(tuple(expected))}, got {show_shape(tuple(got))}")


@handles(c.Put)
def put(session: Session, command: c.Put, batch: Batch) -> None:
    free_id(session, command.id)
    session.room_for(1)
    _keep(session, command.id, batch.device_copy(command.tensor, session.backend))


@handles(c.Write)
def write(session: Session, command: c.Write, batch: Batch) -> None:
    target = session.array(command.id)
    host = batch.tensor(command.tensor)
    _same_shape(f"array {command.id}", target.shape, host.shape)
    session.backend.write(target, host)


@handles(c.Invoke)
def invoke_(session: Session, command: c.Invoke, batch: Batch) -> None:
    inputs = [session.array(id) for id in command.inputs]
    op = registry.get(command.op)
    if command.into:
        given = [None if id is None else session.array(id) for id in command.outputs]
        invoke(
            op,
            command.attrs,
            inputs,
            backend=session.backend,
            random=session.random,
            is_train=command.is_train,
            outputs=given,
        )
        return
    _free_ids(session, command.outputs)
    session.room_for(len(command.outputs))
    made = invoke(op, command.attrs, inputs, backend=session.backend, random=session.random, is_train=command.is_train)
    if len(made) != len(command.outputs):
        raise BadRequestError(f"{op.name}: outputs: expected {len(made)} ids, got {len(command.outputs)}")
    for id, array in zip(command.outputs, made, strict=True):
        if id is not None:
            _keep(session, id, array)


@handles(c.Update)
def update(session: Session, command: c.Update, batch: Batch) -> None:
    op = registry.get(command.op)
    calls = [([session.array(id) for id in call.inputs], {**command.attrs, **call.attrs}) for call in command.calls]
    for inputs, attrs in calls:
        invoke(op, attrs, inputs, backend=session.backend, random=session.random, is_train=True, outputs=[inputs[0]])


@handles(c.Bind)
def bind_(session: Session, command: c.Bind, batch: Batch) -> None:
    _free_ids(session, [command.id, *command.outputs])
    session.room_for(1 + len(command.outputs))
    _, graph = session.graphs.resolve(command.graph)
    kept = {id: session.kept(id) for group in (command.args, command.grads, command.aux) for id in group.values()}
    wanted = len(graph.heads)
    if command.outputs and len(command.outputs) != wanted:
        raise BadRequestError(f"outputs: expected an id for each of {wanted} outputs, got {len(command.outputs)}")
    executor = bind(
        graph,
        args={name: kept[id].array for name, id in command.args.items()},
        grads={name: kept[id].array for name, id in command.grads.items()},
        grad_req=dict(command.grad_req) or None,
        aux={name: kept[id].array for name, id in command.aux.items()},
        backend=session.backend,
        random=session.random,
        max_bytes=session.budget.limit - session.budget.used,
    )
    # An output that is an argument's array, or a second head on the same entry, has its memory counted already.
    by_array = {id(each.array): each.held for each in kept.values()}
    helds = [Held(session.budget, executor.memory.arena_bytes), *(each.held.share() for each in kept.values())]
    for array in executor.outputs:
        if id(array) not in by_array:
            by_array[id(array)] = Held(session.budget, int(array.nbytes))
            helds.append(by_array[id(array)])
    session.objects[command.id] = Bound(executor, helds)
    for number, array in zip(command.outputs, executor.outputs, strict=False):
        if number is not None:
            _keep(session, number, array, by_array[id(array)].share())


@handles(c.Forward)
def forward(session: Session, command: c.Forward, batch: Batch) -> None:
    _executor(session, command.executor).forward(is_train=command.is_train)


@handles(c.Backward)
def backward(session: Session, command: c.Backward, batch: Batch) -> None:
    executor = _executor(session, command.executor)
    executor.backward([None if id is None else session.array(id) for id in command.head_grads])


@handles(c.Copy)
def copy(session: Session, command: c.Copy, batch: Batch) -> None:
    source = session.array(command.source)
    if command.to in session.objects:
        target = session.array(command.to)
        _same_shape(f"array {command.to}", target.shape, source.shape)
        target[...] = source
        return
    session.room_for(1)
    made = session.backend.empty(tuple(source.shape), source.dtype)
    made[...] = source
    _keep(session, command.to, made)


@handles(c.View)
def view(session: Session, command: c.View, batch: Batch) -> None:
    free_id(session, command.id)
    session.room_for(1)
    kept = session.kept(command.of)
    given = [command.begin is not None or command.end is not None, command.at is not None, command.shape is not None]
    if sum(given) != 1:
        raise BadRequestError(f"view {command.id}: expected either begin and end, or at, or shape")
    if command.shape is not None:
        array = _reshaped(command, kept.array)
    else:
        array = _rows(command, kept.array)
    _keep(session, command.id, array, kept.held.share())


def _reshaped(command: c.View, array: Array) -> Array:
    assert command.shape is not None
    if not array.flags.c_contiguous:
        raise BadRequestError(f"view {command.id}: array {command.of} is not contiguous: copy it before reshaping")
    try:
        return array.reshape(command.shape)
    except (ValueError, OverflowError):
        raise ShapeError(
            f"view {command.id}: expected a shape of {array.size} elements, as {show_shape(array.shape)} has, "
            f"got {tuple(command.shape)}"
        ) from None


def _rows(command: c.View, array: Array) -> Array:
    rows = array.shape[0] if array.ndim else 0
    if command.at is not None:
        if not 0 <= command.at < rows:
            raise ShapeError(f"view {command.id}: at: expected a row from 0 to {rows - 1}, got {command.at}")
        # An Ellipsis keeps a row of a vector an array (of rank 0) that shares its memory.
        return array[command.at, ...]
    begin = command.begin or 0
    end = rows if command.end is None else command.end
    if not 0 <= begin <= end <= rows:
        raise ShapeError(f"view {command.id}: expected 0 <= begin <= end <= {rows}, got {begin} and {end}")
    return array[begin:end]


@handles(c.Fetch)
def fetch(session: Session, command: c.Fetch, batch: Batch) -> None:
    array = session.array(command.id)
    if command.name in batch.outputs:
        raise BadRequestError(f"fetch as {command.name!r}: expected each name once")
    host = session.backend.get(array)
    # On the CPU that may be the array's own memory, which the batch's later commands could change.
    batch.outputs[command.name] = host if batch.nothing_changes or session.on_device else host.copy()


@handles(c.Describe)
def describe(session: Session, command: c.Describe, batch: Batch) -> None:
    array = session.array(command.id)
    batch.tell(shape=list(array.shape), datatype=datatype_of(array.dtype), device=session.device)


@handles(c.DescribeExecutor)
def describe_executor(session: Session, command: c.DescribeExecutor, batch: Batch) -> None:
    memory = _executor(session, command.id).memory
    batch.tell(**{key: getattr(memory, key) for key in memory.__dataclass_fields__})


@handles(c.Free)
def free(session: Session, command: c.Free, batch: Batch) -> None:
    for id in command.ids:
        found = session.objects.pop(id, None)
        if found is not None:
            found.drop()


@handles(c.Seed)
def seed(session: Session, command: c.Seed, batch: Batch) -> None:
    session.random.seed(command.seed)
