"""Preparing a call of one operator: everything about it that does not depend on the arrays' values and places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opbox_ops.backend import Backend, RandomSource
from opbox_ops.backend.numpy import ALIGNED_FROM
from opbox_ops.compute import Array, ArraySpec, CallSpec, Kernel, OpContext, OpReq, Reusable
from opbox_ops.infer import known, show_shape
from opbox_ops.node import Entry, Node
from opbox_ops.operator import Op
from opbox_protocol.errors import BadRequestError, MXNetError, ShapeError, UnderdeterminedError

from ..graph.passes.fixpoint import failed_rule, tell
from ..graph.passes.infer_shape import apply_shape_rule
from ..graph.passes.infer_type import apply_type_rule
from .allocation import allocate, bytes_of

__all__ = ["PreparedCall", "prepare", "sentence_of"]

KEPT_BYTES = 1 << 16
"""Outputs and temporaries of a call up to which its kernel's own preparation, and its temporaries, are kept for the
next one (on the CPU, where a call is over when it returns). For larger arrays they cost nothing beside the call."""

Shared = tuple[tuple[int, int], ...]
"""Outputs that are an input's memory: pairs of output and input."""


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """An operator's call for arrays of some shapes and types.

    Attributes:
        node: the operator as a node, for errors.
        kernel: what runs it.
        spec: shapes and types.
        outputs: the shape and type of each output.
        visible: how many outputs the caller sees.
        nbytes: of the outputs and the temporaries.
        keeps: whether what is made for one call is kept for the next.
        tiny: whether its outputs are so small that any place in the CPU's memory will do.
        inplace: the inputs whose memory an output may be, by output.
        ready: calls that take their arrays, none of which is running, by the memory that arrays share; an empty list
            where it has run once, or the kernel has none such.
        spare: temporaries that no call uses.
        contexts: for kernels of which no call can be made ready, contexts that no call uses, by the memory that arrays
            share.
    """

    node: Node
    kernel: Kernel
    spec: CallSpec
    outputs: tuple[tuple[tuple[int, ...], Any], ...]
    visible: int
    nbytes: int
    keeps: bool
    tiny: bool
    inplace: Mapping[int, tuple[int, ...]]
    ready: dict[Shared, list[Reusable]] = field(default_factory=dict)
    spare: list[tuple[Array, ...]] = field(default_factory=list)
    contexts: dict[Shared, list[OpContext]] = field(default_factory=dict)

    def again(
        self,
        inputs: Sequence[Array],
        targets: Sequence[Array],
        shared: Shared,
        random: RandomSource,
        backend: Backend,
        is_train: bool,
    ) -> bool:
        """Run it in a context that an earlier call has left; False when there is none."""
        contexts, run = self.contexts.get(shared), self.kernel.run
        if not contexts or run is None:
            return False
        try:
            context = contexts.pop()
        except IndexError:
            return False  # another thread has taken it
        context.random, context.backend, context.mode.is_train = random, backend, is_train
        run(self.node.params, context, inputs, targets)
        self._leave(context, contexts)
        return True

    @staticmethod
    def _leave(context: OpContext, contexts: list[OpContext]) -> None:
        """Keep a context for the next call, without what is the session's."""
        context.random = context.backend = None
        contexts.append(context)

    def first(self, inputs: Sequence[Array], targets: Sequence[Array], shared: Shared, context: OpContext) -> None:
        """Run it on arrays for which no call is ready; the second time, make one ready if the kernel can."""
        if self.kernel.temps:
            context.temp = self._temporaries(context.backend)
        context.call = self.spec
        req = [OpReq.WRITE] * len(targets)
        for k, _ in shared:
            req[k] = OpReq.INPLACE
        context.req = tuple(req)
        params, kernel = self.node.params, self.kernel
        create_state = self.node.op.get_attr("FCreateOpState") if self.node.op is not None else None
        if create_state is not None:
            context.state = create_state(params, context, [x.shape for x in inputs], [x.dtype for x in inputs])
        asked = shared in self.ready
        if not asked:
            self.ready[shared] = []
        elif self.keeps and kernel.rebind is not None:
            run = kernel.rebind(params, context, inputs, targets)
            if run is not None:
                run(inputs, targets)
                self.ready[shared].append(run)
                return
        kernel(params, context, inputs, targets)
        if self.keeps and create_state is None and kernel.run is not None and (asked or kernel.rebind is None):
            self._leave(context, self.contexts.setdefault(shared, []))
        elif self.keeps and kernel.temps:
            self.spare.append(context.temp)

    def with_params(self, params: Any) -> PreparedCall:
        """Return this prepared call with other numeric parameters (`TNumbers`)."""
        node = Node(self.node.op, self.node.name, {}, params, self.node.inputs)
        same = (self.kernel, self.spec, self.outputs, self.visible, self.nbytes, self.keeps)
        return PreparedCall(node, *same, self.tiny, self.inplace, {}, self.spare)

    def _temporaries(self, backend: Backend) -> tuple[Array, ...]:
        if self.spare:
            try:
                return self.spare.pop()
            except IndexError:
                pass  # another thread has taken it
        return tuple([allocate(backend, temp.planned, temp.dtype, overwritten=True) for temp in self.kernel.temps])

    def into(
        self, inputs: Sequence[Array], outputs: Sequence[Array | None], backend: Backend
    ) -> tuple[list[Array], Shared, Sequence[tuple[int, Array]]]:
        """The arrays to compute into: the given ones, or fresh ones where they overlap an input that is still read.

        Returns:
            The arrays, those of them that are an input's memory, and the outputs to copy elsewhere afterwards.
        """
        targets: list[Array] = []
        shared: list[tuple[int, int]] = []
        copies: list[tuple[int, Array]] = []
        for k, (shape, dtype) in enumerate(self.outputs):
            target = outputs[k] if k < len(outputs) else None
            if target is None:
                targets.append(allocate(backend, shape, dtype, overwritten=True))
                continue
            own = target.base is None  # two arrays that have memory of their own share none
            touching = [
                i
                for i, array in enumerate(inputs)
                if array is target or (not (own and array.base is None) and backend.xp.may_share_memory(array, target))
            ]
            direct = target.flags.c_contiguous and target.dtype == dtype
            if direct and not touching:
                targets.append(target)
            elif (
                direct
                and len(touching) == 1
                and inputs[touching[0]] is target
                and touching[0] in self.inplace.get(k, ())
            ):
                targets.append(target)
                shared.append((k, touching[0]))
            else:
                targets.append(allocate(backend, shape, dtype, overwritten=True))
                copies.append((k, target))
        return targets, tuple(shared), copies


def prepare(
    op: Op,
    params: Any,
    inputs: Sequence[Array],
    device: str,
    outputs: Sequence[Array | None] | None,
    level: str | None,
    counted: Sequence[tuple[int, ...]] | None = None,
) -> PreparedCall:
    """Infer shapes and types, and choose the kernel.

    Args:
        op, params: the operator and its parsed parameters.
        inputs, outputs: the arrays; outputs that are to be made are None.
        device: "cpu" or "gpu".
        level: the highest level of computes to choose.
        counted: the outputs' shapes, where they depend on the inputs' values.

    Raises:
        BadRequestError, ShapeError, DTypeError, UnderdeterminedError, UnsupportedError: what does not fit.
    """
    names = op.input_names(params)
    if len(inputs) != len(names):
        raise BadRequestError(f"{op.name}: expected {len(names)} inputs ({', '.join(names)}), got {len(inputs)}")
    variables = tuple(Entry(Node(None, name)) for name in names)
    node = Node(op, op.name, {}, params, variables)
    count, visible = op.num_outputs(params), op.num_visible_outputs(params)
    targets = list(outputs or [])
    if len(targets) > count:
        raise BadRequestError(f"{op.name}: expected at most {count} outputs, got {len(targets)}")
    targets += [None] * (count - len(targets))
    out_shapes = [None if o is None else tuple(o.shape) for o in targets] if counted is None else list(counted)
    try:
        # A list of the given outputs' shapes lets a rule check them, and complete what the inputs leave open.
        shapes = apply_shape_rule(node, [array.shape for array in inputs], out_shapes)
        types = apply_type_rule(
            node, [array.dtype for array in inputs], [None if o is None else o.dtype for o in targets]
        )
    except MXNetError as error:
        raise sentence_of(tell(error, node), op) from None
    except Exception as error:
        input_shapes = ", ".join(show_shape(tuple(array.shape)) for array in inputs)
        raise sentence_of(tell(failed_rule(error, input_shapes), node), op) from error
    for side, side_name in zip(shapes, ("input", "output"), strict=True):
        if not all(map(known, side)):
            shapes_so_far = ", ".join(map(show_shape, side))
            raise UnderdeterminedError(f"{op.name}: the shapes of its {side_name}s stay unknown: {shapes_so_far}")
    settled = tuple(shape for shape in shapes[1] if shape is not None)
    dtypes = tuple(dtype for dtype in types[1] if dtype is not None)
    if len(dtypes) != count:
        raise UnderdeterminedError(f"{op.name}: the types of its outputs stay unknown")
    for k, target in enumerate(targets):
        if target is not None and tuple(target.shape) != settled[k]:
            raise ShapeError(
                f"{op.name}: output {k}: expected {show_shape(settled[k])}, got {show_shape(target.shape)}"
            )
    spec = CallSpec(
        device,
        tuple([ArraySpec(tuple(array.shape), array.dtype) for array in inputs]),
        tuple(map(ArraySpec, settled, dtypes)),
    )
    try:
        kernel = op.choose(params, spec, level)
    except MXNetError as error:
        raise sentence_of(error.at(op.name, op.name), op) from None
    temp_bytes = sum(bytes_of(temp.planned, temp.dtype) for temp in kernel.temps)
    option = op.get_attr("FInplaceOption", ())
    inplace: dict[int, tuple[int, ...]] = {}
    for i, o in option(params) if callable(option) else option:
        inplace[o] = (*inplace.get(o, ()), i)
    nbytes = sum(map(bytes_of, settled, dtypes)) + temp_bytes
    return PreparedCall(
        node,
        kernel,
        spec,
        tuple(zip(settled, dtypes, strict=True)),
        visible,
        nbytes,
        device == "cpu" and nbytes <= KEPT_BYTES,
        device == "cpu" and nbytes < ALIGNED_FROM,
        inplace,
    )


def sentence_of(error: MXNetError, op: Op | None) -> MXNetError:
    """Without a graph, the node's name is the operator's: say it once."""
    name = op.name if op is not None else ""
    for doubled in (f"{name} ({name}): ", f"{name}: {name}: "):
        if error.message.startswith(doubled):
            error.reword(f"{name}: {error.message[len(doubled) :]}")
    return error
