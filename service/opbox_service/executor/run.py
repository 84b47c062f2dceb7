"""Running: a plan bound to arrays. The loop is over prepared calls; nothing is looked up, parsed or allocated in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from opbox_ops.backend import Backend, NodeStream, NodeStreams, RandomSource
from opbox_ops.compute import Array, Mode, OpContext, OpReq
from opbox_ops.infer import show_shape
from opbox_ops.node import Node
from opbox_protocol.errors import BadRequestError, ConflictError, ShapeError

from ..task import NODES, checkpoint
from .allocation import allocate
from .calls import Call, Calls, at_node
from .gradient_ends import Follower, ends_of
from .inference import Inference
from .monitored import backward_nodes, run_monitored
from .placed_arrays import PlacedArrays, written_apart
from .plan import UNWANTED, Plan, Step
from .profile import Profile
from .replay import Replay, records
from .watched import Watched

__all__ = ["BoundPlan", "Memory", "RunProgress"]


@dataclass(frozen=True, slots=True)
class Memory:
    """An executor's memory, in bytes.

    Attributes:
        arena_bytes: what its intermediate values, head gradients and temporaries take together.
        naive_bytes: the intermediate values and head gradients if each had memory of its own (no temporaries).
        live_bytes: the most that is alive at once: the least that any arena could take.
        temp_bytes: the temporaries of the step that needs most; within arena_bytes.
        output_bytes: the executor's outputs, outside the arena.
        packed_bytes: copies of weights that stay from run to run, outside the arena.
        steps: calls in forward and backward together.
    """

    arena_bytes: int
    naive_bytes: int
    live_bytes: int
    temp_bytes: int
    output_bytes: int
    packed_bytes: int
    steps: int


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The state that an executor's runs leave beside its arrays.

    Attributes:
        layout: names the plan's memory.
        values: all of its arena, on its device; None where backward reads none of it.
        flags: whether backward may follow, whether the last forward was an inference, and whether it was in training.
        forwards, backwards: how often each was called.
        streams: its place in its random numbers; None while it has drawn none.
    """

    layout: str
    values: Array | None
    flags: tuple[bool, bool, bool]
    forwards: int
    backwards: int
    streams: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a plan, to be bound in memory of another plan: the body of a loop.

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
        plan, args, grads, aux, backend, random: see `bind`; for a half, the random stream of the node that runs it.
        half: bind one half alone; by default both, in memory of the executor's own.
        inference: makes the plan that runs inference in place of this one, where one does.

    Attributes:
        outputs: an array for each head, the same ones after every run. A head that is a variable is its array; a head
            that is there twice is one array.
        memory: see `Memory`.
        plan: what it runs.
        packed: arrays that it has copies of which stay from run to run: arguments that it does not write.
        writable: all other arrays that it was bound to.
        forwards, backwards: how often each was called.
    """

    def __init__(
        self,
        plan: Plan,
        args: Mapping[str, Array],
        grads: Mapping[str, Array],
        aux: Mapping[str, Array],
        backend: Backend,
        random: RandomSource | NodeStream,
        half: Half | None = None,
        inference: Inference | None = None,
    ) -> None:
        assert plan.memory is not None
        self.plan = plan
        self._backend = backend
        # Steps that draw are numbered among themselves: what a pass adds between them changes no stream.
        drawing = [
            t for t, step in enumerate(plan.steps) if step.node.op is not None and step.node.op.get_attr("TRandom")
        ]
        self._numbers = {t: number for number, t in enumerate(drawing)}
        self.streams = NodeStreams(random) if isinstance(random, RandomSource) else random.inside()
        self._half = half
        self._mode = Mode() if half is None else half.mode
        self._external: dict[tuple[str, str | int], Array] = {
            **{("arg", name): array for name, array in args.items()},
            **{("grad", name): array for name, array in grads.items()},
            **{("aux", name): array for name, array in aux.items()},
        }
        self._prepared: dict[Any, Any] = {}
        self._contexts: dict[Any, OpContext] = {}
        self._states: dict[Node, Any] = {}
        self._stateful: list[tuple[Node, OpContext, Step]] = []
        self._forward, self._backward = Calls(), Calls()
        steps = range(len(plan.steps))
        if half is None:
            self._arena = allocate(backend, (plan.arena_bytes,), np.uint8)
            for value in plan.values:
                if value.array is not None and value.array[0] == "out":
                    self._external[value.array] = allocate(backend, value.shape, value.dtype)
            self._placed = PlacedArrays(plan, backend, self._external, self._arena)
        else:
            self._arena = half.arena
            self._external.update(half.outputs)
            steps = steps[plan.forward_steps :] if half.backward else steps[: plan.forward_steps]
            self._placed = PlacedArrays(plan, backend, self._external, self._arena, plan.used(steps))
        self._arrays = self._placed.arrays
        self._apart = written_apart(self._external)
        packs = {("arg", name) for name in plan.packed_arguments}
        self.packed: list[Array] = [array for key, array in self._external.items() if key in packs]
        self.writable: list[Array] = [array for key, array in self._external.items() if key not in packs]
        if self.packed and Watched(self.packed).overlaps(self.writable):
            self.writable, self.packed = [*self.writable, *self.packed], []
        for t in steps:
            if not t % NODES:
                checkpoint(NODES)
            if t not in plan.memory.elided:
                step = plan.steps[t]
                calls = self._forward if t < plan.forward_steps else self._backward
                calls.calls.append(self._call(t, step))
                calls.nodes.append(step.node)
        self.outputs: list[Array] = [self._arrays[value] for value in plan.outputs]
        self._zeros = [self._external["grad", name] for name in plan.zero_grads if ("grad", name) in self._external]
        self._replays = self._recorders() if half is None and records(backend) else None
        self._ready = False
        """True if forward has left what backward reads."""
        self._inference = inference
        self._inferring: BoundPlan | None = None
        self._left_out = False
        """True if the last forward was an inference by the plan for it, which leaves nothing for backward."""
        self._seen: int | None = None
        """The parameters' version of the last inference."""
        self._gradient_ends: dict[int, int] | None = None
        self.forwards = self.backwards = 0
        self.memory = Memory(
            int(self._arena.nbytes),
            plan.memory.naive_bytes,
            plan.memory.live_bytes,
            plan.memory.temp_bytes,
            plan.output_bytes,
            plan.packed_bytes,
            len(self._forward.calls) + len(self._backward.calls),
        )

    def nbytes_with(self, *arrays: Mapping[str, Array]) -> int:
        """Bytes of the plan and of what it allocates, with those of the arrays that it alone is bound to."""
        memory = self.memory
        own = memory.arena_bytes + memory.output_bytes + memory.packed_bytes + self.plan.object_bytes
        return own + sum(int(array.nbytes) for group in arrays for array in group.values())

    def forward(
        self,
        is_train: bool = False,
        monitor: Callable[[str, Array], None] | None = None,
        parameters: int | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Compute the outputs, in the arrays of `outputs`.

        Args:
            is_train: the mode: dropout drops, batch normalisation uses and notes the batch.
            monitor: called after each operator with each output's name and array. The array is valid during the call
                only: later steps reuse its memory.
            parameters: a number; the same one as in an earlier run says that nobody has written to the arrays of
                `packed` since. None: somebody may have.
            profile: notes the time of each step, which a run with a monitor has none of. A device that replays
                recorded graphs runs the steps one by one for it.

        Raises:
            MXNetError: an operator failed; it tells the node, the operator and the user's line.
        """
        self._mode.is_train = is_train
        self._mode.parameters = self._unwritten(is_train, parameters)
        self.forwards += 1
        self._ready = self._left_out = False
        self.streams.begin()
        if monitor is not None:
            run_monitored(self.plan, self._forward, self._placed, self._monitored_context, monitor)
        elif self._replays is not None and profile is None:
            self._replays[0].run(is_train)
        elif not is_train and (inferring := self._for_inference()) is not None:
            inferring._forward.run(profile)
            self._left_out = True
        else:
            self._forward.run(profile)
        self._ready = True

    def backward(
        self,
        head_grads: Sequence[Array | None] = (),
        profile: Profile | None = None,
        monitor: Callable[[str, Array], None] | None = None,
        follower: Follower | None = None,
        is_train: bool = True,
    ) -> None:
        """Compute the gradients, into the arrays given for them; again and again after one forward.

        The plan keeps what backward reads: only arguments, outputs and auxiliary states that the caller has overwritten
        since forward, and that a gradient is computed from, are read as they are now.

        Args:
            head_grads: the gradient of each output, shaped like it; None, or none at all, for outputs whose operator
                needs none (losses).
            profile: as of `forward`.
            monitor: called after each backward operator with each output's name, as of `backward_outputs`, and array,
                which is valid during the call only.
            follower: is told how many calls have ended; without monitor and profile, where `gradient_ends` has some.
            is_train: the mode: batch normalisation's gradient goes through the batch's statistics, or takes them as
                constants.

        Raises:
            ConflictError: forward has not run, and a gradient is computed from its values.
            BadRequestError: a head gradient is missing, or there are more than outputs.
            ShapeError: a head gradient that is read has not the shape of its output.
        """
        self.backwards += 1
        if not self._ready and self._reads_forward:
            raise ConflictError("backward needs the values of a forward run: call forward(is_train=True) before it")
        if self._left_out:
            self._mode.parameters = None
            self._forward.run()
            self._left_out, self._inference, self._inferring = False, None, None
        self._take_in(head_grads)
        self._mode.is_train = is_train
        if self._replays is not None and self._backward.calls and profile is None and monitor is None:
            self._replays[1].run(is_train)
            return
        for array in self._zeros:
            array[...] = 0
        if monitor is not None:
            run_monitored(self.plan, self._backward, self._placed, self._monitored_context, monitor, backward=True)
        elif follower is not None:
            self._backward.run_followed(follower)
        else:
            self._backward.run(profile)

    @property
    def ready(self) -> bool:
        """Whether backward may run."""
        return self._ready or not self._reads_forward

    @cached_property
    def _reads_forward(self) -> bool:
        """Whether backward reads what forward computes; the gradient of `repeat`, for one, reads its head's alone."""
        steps, first = self.plan.steps, self.plan.forward_steps
        written = {value for step in steps[:first] for value in (*step.writes, step.saved)} - {UNWANTED}
        read = {value for step in steps[first:] for value in (*step.reads, step.saved)}
        return bool(self._stateful) or not written.isdisjoint(read)

    @property
    def gradient_ends(self) -> dict[int, int]:
        """By the id of a gradient's array, after how many calls of backward it is final; see `ends_of`.

        Empty on a device that replays recorded calls.
        """
        if self._gradient_ends is None:
            gradients = {str(name): array for (kind, name), array in self._external.items() if kind == "grad"}
            ends: dict[str, int] = {}
            if self._replays is None:
                others = [array for (kind, _), array in self._external.items() if kind != "grad"]
                ends = ends_of(gradients, others, self._backward_writes, self.plan.zero_grads)
            self._gradient_ends = {id(gradients[name]): end for name, end in ends.items()}
        return self._gradient_ends

    @property
    def _backward_writes(self) -> list[list[Array]]:
        """The arrays that each call of backward writes."""
        plan = self.plan
        assert plan.memory is not None
        steps = [step for t, step in enumerate(plan.steps) if t >= plan.forward_steps and t not in plan.memory.elided]
        return [[array for array in self._placed.of(step.writes) if array is not None] for step in steps]

    @property
    def backward_outputs(self) -> list[str]:
        """The names of what `backward` shows a monitor, in its order; a name may be there several times."""
        names = {} if self.plan.trace is None else self.plan.trace.names
        return [name for node in backward_nodes(self.plan) for name in names[node]]

    @property
    def backward_shown(self) -> list[dict[str, Any]]:
        """MXNet's backward nodes as a monitor of all arrays is shown them; see `BackwardTrace`.

        Each has `inputs`, as [name, kind, value], and `outputs`, how many of `backward_outputs` it has in their order;
        or `head`, the number of the head gradient that it copies; or `forward`, names of outputs that MXNet computes
        again; or `zeros`, the argument whose gradient is zero, and
        `name`. The value of kind "backward" is a number in `backward_outputs`.
        """
        trace, position = self.plan.trace, 0
        if trace is None:
            return []
        ran = set(backward_nodes(self.plan))
        forward = {m.node for step in self.plan.steps[: self.plan.forward_steps] for m in step.members or (step,)}
        positions: dict[Node, int] = {}
        rows: list[dict[str, Any]] = []
        for row in trace.shown:
            inputs = []
            for label, kind, value, node, index in row.inputs:
                if node is None or (kind == "forward" and node in forward):
                    inputs.append([label, kind, value])
                elif node in positions and index < len(trace.names[node]):
                    inputs.append([label, kind, positions[node] + index])
            first = position
            for node in row.nodes:
                if node in ran:
                    positions[node] = position
                    position += len(trace.names[node])
            if row.forward is not None:
                if row.forward in forward:
                    rows.append({"inputs": inputs, "forward": row.forward.output_names()})
            elif row.head is not None:
                rows.append({"inputs": inputs, "head": row.head})
            elif row.zeros is not None:
                rows.append({"zeros": row.zeros[0], "name": row.zeros[1]})
            elif position > first:
                rows.append({"inputs": inputs, "outputs": position - first})
        return rows

    def progress(self) -> RunProgress:
        """Return the state of the last run, for `resume` by an executor of the same graph in another process."""
        values = self._arena if self._ready and not self._left_out and self._backward.calls else None
        flags = (self._ready, self._left_out, self._mode.is_train)
        return RunProgress(self._layout(), values, flags, self.forwards, self.backwards, self.streams.snapshot())

    def resume(self, progress: RunProgress) -> None:
        """Continue from `progress`; if the memory layout differs, backward needs a forward run first."""
        self.forwards, self.backwards = progress.forwards, progress.backwards
        if progress.streams is not None:
            self.streams.resume(progress.streams)
        ready, self._left_out, self._mode.is_train = progress.flags
        if progress.values is not None:
            ready = progress.layout == self._layout()
            if ready:
                self._arena[...] = progress.values
        self._ready = ready

    def _layout(self) -> str:
        """Names the steps and where their values lie; the same name means that values may be copied over."""
        memory = self.plan.memory
        assert memory is not None
        steps = [(step.node.name, step.reads, step.writes, step.kernel.level) for step in self.plan.steps]
        described = (self.plan.arena_bytes, steps, memory.home, sorted(memory.elided))
        return hashlib.sha256(repr(described).encode()).hexdigest()

    def run_half(self, number: int) -> None:
        """Run the half that was bound, as the step `number` of a loop: operators' states are that step's."""
        assert self._half is not None
        self.streams.advance()
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

    @property
    def arrays(self) -> dict[tuple[str, str], Array]:
        """The arrays that it was bound to, by kind ("arg", "grad", "aux") and name."""
        return {(kind, str(name)): array for (kind, name), array in self._external.items() if kind != "out"}

    def arrays_of(self, values: Sequence[int]) -> list[Array]:
        """The arrays of values; None for those that the half that was bound does not use."""
        return self._placed.of(values)

    def _take_in(self, head_grads: Sequence[Array | None]) -> None:
        names = self.plan.graph.output_names
        if len(head_grads) > len(names):
            raise BadRequestError(
                f"head gradients: expected at most {len(names)}, one for each output, got {len(head_grads)}"
            )
        checked = []
        for i, value in enumerate(self.plan.head_grads):
            if value < 0:
                continue  # A loss: its head gradient is not read, whatever it is.
            grad = head_grads[i] if i < len(head_grads) else None
            if grad is not None and tuple(grad.shape) != tuple(self.outputs[i].shape):
                raise ShapeError(
                    f"head gradient of {names[i]!r}: expected {show_shape(tuple(self.outputs[i].shape))}, "
                    f"got {show_shape(tuple(grad.shape))}"
                )
            if grad is None:
                raise BadRequestError(
                    f"head gradient of {names[i]!r} is missing: give one, or end the graph in a loss (MakeLoss)"
                )
            checked.append((self._arrays[value], grad))
        if checked:
            with np.errstate(all="ignore"):  # as in the steps
                for array, grad in checked:
                    array[...] = grad

    def _for_inference(self) -> BoundPlan | None:
        """The plan for inference, bound in this one's arena and to its arrays; None where this one is to run."""
        if self._inference is None or self._inferring is not None:
            return self._inferring
        plan = self._inference.plan()
        if plan is not None:
            external, arena = self._external, self._arena[: plan.arena_bytes]
            args, aux = (
                {str(at[1]): array for at, array in external.items() if at[0] == kind} for kind in ("arg", "aux")
            )
            outs = {at: array for at, array in external.items() if at[0] == "out"}
            half = Half(False, arena, outs, self._mode, dict)
            bound = BoundPlan(plan, args, {}, aux, self._backend, self.streams.stream(0), half)
            if all(mine is own for mine, own in zip(bound.outputs, self.outputs, strict=True)):
                self._inferring = bound
        if self._inferring is None:
            self._inference = None
        return self._inferring

    def _recorders(self) -> tuple[Replay, Replay]:
        """Return the replays of forward and backward, for a device that records calls; they fill zero gradients."""
        zeros: list[Call] = [partial(array.fill, 0) for array in self._zeros]
        nodes = self._backward.nodes
        backward = Calls([*zeros, *self._backward.calls], [*nodes[:1] * len(zeros), *nodes])
        return Replay(self._backend, self._forward, self.streams), Replay(self._backend, backward, self.streams)

    def _unwritten(self, is_train: bool, parameters: int | None) -> int | None:
        """Return the parameters' version for packed weights in this run; None: no weights stay packed.

        With a backward, an update is likely to follow each run: copies of the executor's own are made at the second
        inference with the same weights, and take no memory before.
        """
        if not self.packed:
            return None
        if not self.plan.trains:
            return parameters
        if is_train:
            return None
        before, self._seen = self._seen, parameters
        return parameters if parameters == before else None

    # -- binding ------------------------------------------------------------------------------------------------

    def _call(self, t: int, step: Step) -> Call:
        if not (step.packed and self.plan.trains):
            return self._bound(t, step, packed=bool(step.packed))
        mode, anew, once = self._mode, self._bound(t, step, packed=False), self._bound(t, step, packed=True)

        def call() -> None:
            (anew if mode.parameters is None else once)()

        return call

    def _bound(self, t: int, step: Step, *, packed: bool) -> Call:
        """A step's kernel with its arrays; `packed`: copies of weights are the step's own."""
        placed = self.plan.memory
        assert placed is not None
        arrays = self._arrays
        temp = self._placed.temps(step, placed.temps[t], packed=packed) if step.temps else ()
        context = self._context(t, step, temp, placed.inplace[t], packed=packed)
        inputs = [arrays[value] for value in step.reads]
        outputs = [None if value == UNWANTED else arrays[value] for value in step.writes]
        if step.takes_physical:
            inputs, outputs = self._placed.physical(step.reads), self._placed.physical(step.writes)
        try:
            if context.alike is not None and self._apart:
                return context.alike(inputs, outputs)
            return step.kernel.bind(step.node.params, context, inputs, outputs)
        except Exception as error:
            raise at_node(error, step.node) from error

    def _monitored_context(self, temps: tuple[Array, ...]) -> OpContext:
        backend = self._backend
        return OpContext(backend.xp, backend.special, self.streams.stream(0), backend, self._mode, temps)

    def _context(
        self, t: int, step: Step, temp: tuple[Array, ...], shared: Mapping[int, int], *, packed: bool
    ) -> OpContext:
        """Return the context of equal steps, or one of their own for steps with state, draws or saved values."""
        key = (id(step.call), id(temp), tuple(shared.items()), step.req, packed)
        context = self._contexts.get(key)
        if context is not None:
            return context
        backend = self._backend
        context = OpContext(
            backend.xp,
            backend.special,
            self.streams.stream(self._numbers.get(t, len(self._numbers) + t)),
            backend,
            self._mode,
            temp,
        )
        context.call, context.prepared, context.packs = step.call, self._prepared, packed
        context.req = tuple([OpReq.INPLACE if k in shared else req for k, req in enumerate(step.req)])
        owner = step.node.forward or step.node
        stateful = owner.op is not None and owner.op.get_attr("FCreateOpState") is not None
        if step.saved != UNWANTED:
            context.saved = self._arrays[step.saved]
        elif not stateful and not (owner.op is not None and owner.op.get_attr("TRandom")):
            self._contexts[key] = context
        if stateful:
            context.state = self._state(step, context)
        return context

    def _state(self, step: Step, context: OpContext) -> Any:
        """Return FCreateOpState `(params, ctx, in_shapes, in_types)`'s state, made once; backward gets forward's."""
        node = step.node
        if self._half is not None:
            self._stateful.append((node, context, step))
            return None
        if node.forward is not None:
            return self._states.get(node.forward)
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
