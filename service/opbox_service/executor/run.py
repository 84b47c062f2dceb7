"""Running: a plan bound to arrays. The loop is over prepared calls; nothing is looked up, parsed or allocated in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from opbox_ops.backend import Backend, RandomSource
from opbox_ops.compute import Array, Mode, OpContext, OpReq
from opbox_ops.infer import show_shape
from opbox_ops.node import Node
from opbox_ops.user_line import user_line
from opbox_protocol.errors import BadRequestError, ConflictError, MXNetError, ShapeError

from ..task import current
from ..turns import NO_TURN
from .allocation import allocate
from .plan import UNWANTED, Plan, Step, Value

__all__ = ["BoundPlan", "Memory"]

Call: TypeAlias = Callable[[], Any]
"""A compute with everything that it needs."""


@dataclass(frozen=True, slots=True)
class Memory:
    """An executor's memory, in bytes.

    Attributes:
        arena_bytes: what its intermediate values, head gradients and temporaries take together.
        naive_bytes: the intermediate values and head gradients if each had memory of its own (no temporaries).
        live_bytes: the most that is alive at once: the least that any arena could take.
        temp_bytes: the temporaries of the step that needs most; within arena_bytes.
        output_bytes: the executor's outputs, outside the arena.
        steps: calls in forward and backward together.
    """

    arena_bytes: int
    naive_bytes: int
    live_bytes: int
    temp_bytes: int
    output_bytes: int
    steps: int


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a plan, to be bound in memory of somebody else's: the body of a loop.

    Attributes:
        backward: which half.
        arena: `plan.arena_bytes` bytes.
        outputs: arrays of the executor's outputs, those that this half uses.
        mode: the mode, shared with the steps around it.
        states: the operators' states by node and step; the other half has the same.
    """

    backward: bool
    arena: Array
    outputs: Mapping[tuple[str, str | int], Array]
    mode: Mode
    states: Callable[[], dict[tuple[Node, int], Any]]


class BoundPlan:
    """A plan bound to arrays.

    Args:
        plan, args, grads, aux, backend, random: see `bind`.
        half: bind one half alone; by default both, in memory of the executor's own.

    Attributes:
        outputs: an array for each head, the same ones after every run. A head that is a variable is its array; a head
            that is there twice is one array.
        memory: see `Memory`.
        plan: what it runs.
    """

    def __init__(
        self,
        plan: Plan,
        args: Mapping[str, Array],
        grads: Mapping[str, Array],
        aux: Mapping[str, Array],
        backend: Backend,
        random: RandomSource,
        half: Half | None = None,
    ) -> None:
        assert plan.memory is not None
        self.plan = plan
        self._backend = backend
        self._random = random
        self._half = half
        self._mode = Mode() if half is None else half.mode
        self._external: dict[tuple[str, str | int], Array] = {
            **{("arg", name): array for name, array in args.items()},
            **{("grad", name): array for name, array in grads.items()},
            **{("aux", name): array for name, array in aux.items()},
        }
        placed = plan.memory
        self._views: dict[Any, Array] = {}
        self._temps: dict[Any, tuple[Array, ...]] = {}
        self._prepared: dict[Any, Any] = {}
        self._states: dict[Node, Any] = {}
        self._stateful: list[tuple[Node, OpContext, Step]] = []
        self._forward, self._backward = _Calls(), _Calls()
        steps = range(len(plan.steps))
        if half is None:
            self._arena = allocate(backend, (plan.arena_bytes,), np.uint8)
            for value in plan.values:
                if value.array is not None and value.array[0] == "out":
                    self._external[value.array] = allocate(backend, value.shape, value.dtype)
            self._arrays = [self._array(i, value) for i, value in enumerate(plan.values)]
        else:
            self._arena = half.arena
            self._external.update(half.outputs)
            steps = steps[plan.forward_steps :] if half.backward else steps[: plan.forward_steps]
            used = plan.used(steps)
            self._arrays = [self._array(i, value) if i in used else None for i, value in enumerate(plan.values)]
        for t in steps:
            step = plan.steps[t]
            if t not in placed.elided:
                (self._forward if t < plan.forward_steps else self._backward).add(self._call(t, step), step.node)
        self.outputs: list[Array] = [self._arrays[value] for value in plan.outputs]
        self._zeros = [self._external["grad", name] for name in plan.zero_grads if ("grad", name) in self._external]
        self._fresh = False
        self._started: tuple[bool, Any] | None = None
        self.memory = Memory(
            int(self._arena.nbytes),
            placed.naive_bytes,
            placed.live_bytes,
            placed.temp_bytes,
            plan.output_bytes,
            len(self._forward.calls) + len(self._backward.calls),
        )

    def forward(self, is_train: bool = False, monitor: Callable[[str, Array], None] | None = None) -> None:
        """Compute the outputs, in the arrays of `outputs`.

        Args:
            is_train: the mode: dropout drops, batch normalisation uses and notes the batch.
            monitor: called after each operator with each output's name and array. The array is valid during the call
                only: later steps reuse its memory.

        Raises:
            MXNetError: an operator failed; it tells the node, the operator and the user's line.
        """
        self._mode.is_train = is_train
        self._fresh = False
        assert self.plan.memory is not None
        self._started = (is_train, self._random.state()) if self.plan.memory.overwritten else None
        if monitor is None:
            self._forward.run()
        else:
            self._watch(monitor)
        self._fresh = True

    def _watch(self, monitor: Callable[[str, Array], None]) -> None:
        calls = dict(zip(self._forward.nodes, self._forward.calls, strict=True))
        for step in self.plan.steps[: self.plan.forward_steps]:
            # A view has no call: its values are there as soon as its input's are.
            if step.node in calls:
                _Calls([calls[step.node]], [step.node]).run()
            for name, value in zip(step.node.output_names(), step.writes, strict=True):
                monitor(name, self._arrays[value])

    def backward(self, head_grads: Sequence[Array | None] = ()) -> None:
        """Compute the gradients, into the arrays given for them; again and again after one forward.

        Where the memory of what forward left is used for gradients, forward is run once more before the second time,
        unless it draws random numbers: the arguments must be as they were.

        Args:
            head_grads: the gradient of each output, shaped like it; None, or none at all, for outputs whose operator
                needs none (losses).

        Raises:
            ConflictError: forward has not run.
            UnsupportedError: forward would have to run once more, and it draws random numbers.
            BadRequestError: a head gradient is missing, or there are more than outputs.
            ShapeError: a head gradient has not the shape of its output.
        """
        if not self._fresh:
            self._repeat()
        self._take_in(head_grads)
        self._mode.is_train = True
        assert self.plan.memory is not None
        self._fresh = not self.plan.memory.overwritten
        for array in self._zeros:
            array[...] = 0
        self._backward.run()

    def _repeat(self) -> None:
        """Run forward again as it ran last."""
        if self._started is None:
            raise ConflictError("backward needs the values of a forward run: call forward(is_train=True) before it")
        self._mode.is_train, start = self._started
        now = self._random.state()
        self._random.restore(start)
        self._forward.run()
        self._random.restore(now)

    def run_half(self, number: int) -> None:
        """Run the half that was bound, as the step `number` of a loop: operators' states are that step's."""
        assert self._half is not None
        if self._stateful:
            states = self._half.states()
            for node, context, step in self._stateful:
                key = (node.forward or node, number)
                if key not in states:
                    states[key] = self._new_state(step, context)
                context.state = states[key]
        if self._half.backward:
            for array in self._zeros:
                array[...] = 0
            self._backward.run()
        else:
            self._forward.run()

    def arrays_of(self, values: Sequence[int]) -> list[Array]:
        """The arrays of values; None for those that the half that was bound does not use."""
        return [None if value == UNWANTED else self._arrays[value] for value in values]

    def _take_in(self, head_grads: Sequence[Array | None]) -> None:
        names = self.plan.graph.output_names
        if len(head_grads) > len(names):
            raise BadRequestError(
                f"head gradients: expected at most {len(names)}, one for each output, got {len(head_grads)}"
            )
        checked = []
        for i, value in enumerate(self.plan.head_grads):
            grad = head_grads[i] if i < len(head_grads) else None
            if grad is not None and tuple(grad.shape) != tuple(self.outputs[i].shape):
                raise ShapeError(
                    f"head gradient of {names[i]!r}: expected {show_shape(tuple(self.outputs[i].shape))}, "
                    f"got {show_shape(tuple(grad.shape))}"
                )
            if value < 0:
                continue
            if grad is None:
                raise BadRequestError(
                    f"head gradient of {names[i]!r} is missing: give one, or end the graph in a loss (MakeLoss)"
                )
            checked.append((self._arrays[value], grad))
        for array, grad in checked:
            array[...] = grad

    # -- binding ------------------------------------------------------------------------------------------------

    def _array(self, number: int, value: Value) -> Array:
        placed = self.plan.memory
        assert placed is not None
        if value.array is not None:
            return self._external[value.array]
        owner, home = placed.owner[number], placed.home[number]
        if owner is not None:
            external = self.plan.values[owner].array
            assert external is not None
            array = self._external[external]
            if array.dtype != value.dtype:
                # NumPy views nothing as elements of another size: an empty array is one of its own.
                array = array.view(value.dtype) if array.size else self._backend.empty(value.shape, value.dtype)
            return array.reshape(value.shape)
        return None if home is None else self._view(home, value.shape, value.dtype)

    def _view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The array at this place of the arena: one for all values that are there one after the other."""
        key = (offset, shape, dtype)
        array = self._views.get(key)
        if array is None:
            array = self._views[key] = self._backend.view(self._arena, offset, shape, dtype)
        return array

    def _temp(self, step: Step, offsets: tuple[int, ...]) -> tuple[Array, ...]:
        key = (id(step.temps), offsets)
        temp = self._temps.get(key)
        if temp is None:
            places = zip(offsets, step.temps, strict=True)
            temp = self._temps[key] = tuple([self._view(offset, temp.shape, temp.dtype) for offset, temp in places])
        return temp

    def _call(self, t: int, step: Step) -> Call:
        placed, backend = self.plan.memory, self._backend
        assert placed is not None
        context = OpContext(
            backend.xp,
            backend.special,
            self._random,
            backend,
            self._mode,
            self._temp(step, placed.temps[t]) if step.temps else (),
        )
        if step.saved != UNWANTED:
            context.saved = self._arrays[step.saved]
        context.state = self._state(step, context)
        shared = placed.inplace[t]
        context.call, context.prepared = step.call, self._prepared
        context.req = tuple([OpReq.INPLACE if k in shared else req for k, req in enumerate(step.req)])
        inputs = [self._arrays[value] for value in step.reads]
        outputs = [None if value == UNWANTED else self._arrays[value] for value in step.writes]
        try:
            return step.compute.bound(step.node.params, context, inputs, outputs)
        except Exception as error:
            raise at_node(error, step.node) from error

    def _state(self, step: Step, context: OpContext) -> Any:
        """What FCreateOpState `(params, ctx, in_shapes, in_types)` makes, once; backward sees its forward node's."""
        node = step.node
        owner = node.forward or node
        if owner.op is None or owner.op.get_attr("FCreateOpState") is None:
            return None
        if self._half is not None:
            self._stateful.append((node, context, step))
            return None
        if node.forward is not None:
            return self._states.get(owner)
        state = self._states[node] = self._new_state(step, context)
        return state

    def _new_state(self, step: Step, context: OpContext) -> Any:
        node = step.node
        assert node.op is not None
        values = [self.plan.values[value] for value in step.reads]
        try:
            return node.op.get_attr("FCreateOpState")(
                node.params, context, [v.shape for v in values], [v.dtype for v in values]
            )
        except Exception as error:
            raise at_node(error, node) from error


class _Calls:
    """Prepared calls and, for errors, the node of each."""

    __slots__ = ("calls", "nodes")

    def __init__(self, calls: list[Call] | None = None, nodes: list[Node] | None = None) -> None:
        self.calls: list[Call] = calls or []
        self.nodes: list[Node] = nodes or []

    def add(self, call: Call, node: Node) -> None:
        self.calls.append(call)
        self.nodes.append(node)

    def run(self) -> None:
        call: Any = None
        task = current()
        # NaN and infinity are values like others here: no warnings.
        with np.errstate(all="ignore"):
            try:
                if task is None:
                    for call in self.calls:
                        call()
                    return
                turn = task.turn or NO_TURN
                for call in self.calls:
                    call()
                    if turn.wanted or task.stopped is not None:
                        task.check()
            except Exception as error:
                raise at_node(error, self.nodes[self.calls.index(call)]) from error


def at_node(error: Exception, node: Node) -> MXNetError:
    """`error`, raised inside an operator, with the name of its node."""
    if not isinstance(error, MXNetError):
        error = MXNetError(f"the operator failed: {type(error).__name__}: {error}{user_line(error)}")
    return error.at(node.name, node.op.name if node.op is not None else None, node.source)
