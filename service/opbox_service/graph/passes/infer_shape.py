"""Shape inference: FInferShape in both directions, to a fixed point.

    shapes = infer_shape(graph, {"data": (32, 784)})
    shapes.arg_shapes, shapes.out_shapes, shapes.aux_shapes        # in the order of the graph's name lists

Shapes come from the caller and from `__shape__` attributes (MXNet's, where 0 is unknown); where the two contradict each
other, a caller's shape that is fully known counts, and the attribute otherwise. What stays unknown is an
UnderdeterminedError unless `partial`; it names what is unknown, where inference got stuck, and what to give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial as with_arguments
from typing import Any

from opbox_ops.in_part import infer_in_part
from opbox_ops.infer import Shape, ShapeList, known, show_shape, unify
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import GraphError, MXNetError, ShapeError, UnderdeterminedError
from opbox_protocol.mxnet import NP_SHAPE
from opbox_protocol.shapes import from_mxnet, shape_from_text

from ..ir import Graph
from .fixpoint import Fixpoint, by_side, check_names, inferred_before

__all__ = ["Shapes", "apply_shape_rule", "infer_shape"]

TRIED_NODES = 100_000
"""Maximum number of nodes to visit, over all trials, to find the arguments that an error asks for."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Inferred shapes: -1 marks an unknown dimension, None an unknown rank.

    Attributes:
        arg_shapes, out_shapes, aux_shapes: in the order of the graph's argument, output and auxiliary names.
        entries: a shape for each entry of the graph, by `graph.entry_id`.
    """

    graph: Graph
    arg_shapes: list[Shape]
    out_shapes: list[Shape]
    aux_shapes: list[Shape]
    entries: list[Shape]

    @property
    def complete(self) -> bool:
        """True if every entry's shape is known."""
        return all(map(known, self.entries))

    def of(self, entry: Entry) -> Shape:
        """The shape of one entry."""
        return self.entries[self.graph.entry_id(entry)]


def infer_shape(
    graph: Graph,
    shapes: Mapping[str, Shape],
    *,
    partial: bool = False,
    as_mxnet: bool = False,
    trace: list[dict[str, Any]] | None = None,
    outs: Sequence[Shape] = (),
) -> Shapes:
    """The shapes of all entries of `graph`.

    Args:
        graph: the graph.
        shapes: by argument or auxiliary name; -1 for an unknown dimension, None for an unknown rank.
        partial: whether unknown shapes are left unknown instead of being an error.
        as_mxnet: infer no more than MXNet 1.9.1's rules do while shapes are unknown.
        trace: a list that takes one record for each rule that learnt something: node, op, source, learnt, known; and
            one for each node where something stayed unknown: node, op, source, unknown.
        outs: what is known of the heads' shapes.

    Raises:
        BadRequestError: `shapes` names no argument of the graph.
        ShapeError: shapes contradict each other, with the node, the argument and the user's line.
        UnderdeterminedError: not `partial`, and something stays unknown.

    Example:
        >>> infer_shape(graph, {"data": (2, 3)}).arg_shapes
        [(2, 3), (10, 3), (10,)]
    """
    check_names(graph, shapes)
    before = inferred_before(graph, "shapes", shapes, outs) if trace is None else None
    if before is not None:
        return Shapes(graph, *by_side(graph, before), before)
    values: list[Shape] = [None] * graph.num_entries
    for node in graph.variables:
        values[graph.entry_id(Entry(node))] = _starting(node, shapes.get(node.name))
    for k, (head, shape) in enumerate(zip(graph.heads, outs, strict=False)):
        at = graph.entry_id(head)
        values[at] = _merge(head.node, "output", k, values[at], shape)
    work: Fixpoint[Shape] = Fixpoint(
        graph,
        _apply_as_mxnet if as_mxnet else apply_shape_rule,
        _merge,
        values,
        known,
        trace,
        lambda shape: None if shape is None else list(shape),
    )
    work.run()
    inferred = Shapes(graph, *by_side(graph, values), values)
    if inferred.complete:
        graph.inferred["shapes"] = [values[graph.entry_id(Entry(node))] for node in graph.variables], values
    else:
        if trace is not None:
            _record_unknown(work, trace)
        if not partial:
            raise _underdetermined(work, inferred)
    return inferred


def apply_shape_rule(node: Node, ins: Sequence[Shape], outs: Sequence[Shape]) -> tuple[ShapeList, ShapeList]:
    """Apply the node's FInferShape to these shapes; a backward node without one takes those of `node.like`."""
    assert node.op is not None
    inside, outside = ShapeList(ins, "input"), ShapeList(outs, "output")
    rule = node.op.shape_rule
    if rule is not None:
        rule(node.params, inside, outside)
    elif node.forward is not None:
        for k, shape in enumerate(ins[len(node.inputs) :]):
            outside.merge(k, shape)
    return inside, outside


def _apply_as_mxnet(node: Node, ins: Sequence[Shape], outs: Sequence[Shape]) -> tuple[Sequence[Shape], Sequence[Shape]]:
    assert node.op is not None
    return infer_in_part(node.op.name, with_arguments(apply_shape_rule, node), ins, outs)


def _merge(node: Node, side: str, index: int, old: Shape, new: Shape) -> Shape:
    if old is None or new is None or old == new:
        return old if new is None or old is not None else tuple(new)
    try:
        return unify(old, new)
    except ValueError:
        raise ShapeError(f"expected {show_shape(new)}, got {show_shape(old)}", side=side, index=index) from None


def _starting(node: Node, shape: Shape) -> Shape:
    if shape is not None:
        shape = tuple(shape)
        if not all(isinstance(d, int) and d >= -1 for d in shape):
            raise ShapeError(
                f"{node.name}: expected dimensions of -1 (unknown), 0 or more, got {shape}", node=node.name
            )
    if known(shape):
        return shape  # as in MXNet, the shape that a variable was made with gives way to the one that it gets
    declared = _declared(node)
    try:
        return unify(shape, declared)
    except ValueError:
        return declared  # and what is not fully known gives way to that


def _declared(node: Node) -> Shape:
    text = node.attrs.get("__shape__")
    if text is None or text == "None":
        return None
    try:
        shape = shape_from_text(text)
        return shape if NP_SHAPE in node.attrs else from_mxnet(shape)
    except ValueError:
        raise GraphError(f"{node.name}: expected __shape__ as a tuple of integers, got {text!r}") from None


def _record_unknown(work: Fixpoint[Shape], trace: list[dict[str, Any]]) -> None:
    for i, node in enumerate(work.graph.nodes):
        if node.op is None:
            continue
        unknown = {
            name: None if work.values[e] is None else list(work.values[e] or ())
            for name, e in work.named(node, i).items()
            if not known(work.values[e])
        }
        if unknown:
            trace.append({"node": node.name, "op": node.op.name, "source": node.source, "unknown": unknown})


def _underdetermined(work: Fixpoint[Shape], shapes: Shapes) -> UnderdeterminedError:
    graph, values = work.graph, work.values
    unknown = [n for n in graph.variables if not known(values[graph.entry_id(Entry(n))])]
    stuck = next(
        (n for i, n in enumerate(graph.nodes) if n.op and not all(known(values[e]) for e in work.named(n, i).values())),
        None,
    )
    if stuck is not None and stuck.op is not None and stuck.op.get_attr("FOutputShapes") is not None:
        return UnderdeterminedError(
            f"{stuck.name} ({stuck.op.name}): the shape of its output depends on the values of its inputs, which a "
            "graph does not know: expected a call on arrays (mx.nd)"
        )
    place = ""
    if stuck is not None and stuck.op is not None:
        place = f" (first at {stuck.name}, {', '.join(filter(None, (stuck.op.name, stuck.source)))})"
    if not unknown:
        names = [name for name, shape in zip(graph.output_names, shapes.out_shapes, strict=True) if not known(shape)]
        message = (
            f"shapes stay unknown{place}: {', '.join(names[:8]) or 'an inner output'}, although all arguments are known"
        )
        return UnderdeterminedError(message)
    listed = ", ".join(
        f"{n.name} {show_shape(shape)}" if (shape := values[graph.entry_id(Entry(n))]) is not None else n.name
        for n in unknown[:8]
    )
    more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
    fix = " and ".join(_would_fix(graph, values, unknown))
    return UnderdeterminedError(
        f"shapes stay unknown{place}: {listed}{more}; give the shape of {fix}",
        detail={"unknown": [n.name for n in unknown]},
    )


def _would_fix(graph: Graph, values: list[Shape], unknown: list[Node]) -> list[str]:
    """The fewest arguments found, greedily, whose shapes would settle the others: each is tried with a few ranks."""
    left, state = list(unknown), list(values)
    trials = TRIED_NODES // len(graph.nodes)
    chosen: list[str] = []
    while left and len(chosen) < 3:
        best: tuple[int, Node, list[Shape]] | None = None
        for node in left[: max(1, min(8, 20_000 // (1 + len(graph.nodes))))]:
            for trial in _trials(state[graph.entry_id(Entry(node))]):
                trials -= 1
                if trials < 0:
                    break
                after = _suppose(graph, state, node, trial)
                if after is not None:
                    gain = sum(map(known, after))
                    if best is None or gain > best[0]:
                        best = (gain, node, after)
        if best is None:
            return [*chosen, *(n.name for n in left[:3])]
        chosen.append(best[1].name)
        state = best[2]
        left = [n for n in left if not known(state[graph.entry_id(Entry(n))])]
    return chosen


def _trials(shape: Shape) -> list[tuple[int, ...]]:
    if shape is not None:
        return [tuple(64 if d < 0 else d for d in shape)]
    return [(64,) * rank for rank in (4, 2, 3, 5, 1)]


def _suppose(graph: Graph, values: list[Shape], node: Node, shape: tuple[int, ...]) -> list[Shape] | None:
    after = list(values)
    try:
        Fixpoint(graph, apply_shape_rule, _merge, after, known).settle(Entry(node), shape)
    except (MXNetError, ArithmeticError):
        return None
    return after
