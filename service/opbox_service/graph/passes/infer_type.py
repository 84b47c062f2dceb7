"""Type inference: FInferType in both directions, to a fixed point.

    types = infer_type(graph, {"data": np.float16})
    types.arg_types, types.out_types, types.aux_types

Types come from the caller and, for variables that the caller does not mention, from `__dtype__` attributes (MXNet's
numbers). A variable whose type nothing determines is float32, as MXNet's executors have it; with `partial` it stays
unknown, as in MXNet's `infer_type`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opbox_ops.infer import DType, TypeList
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import DTypeError, GraphError, UnderdeterminedError
from opbox_protocol.mxnet import TYPES, numpy_dtype

from ..ir import Graph
from .fixpoint import Fixpoint, by_side, check_names, inferred_before

__all__ = ["Types", "apply_type_rule", "infer_type"]


@dataclass(frozen=True, slots=True)
class Types:
    """Inferred element types; None is unknown.

    Attributes:
        arg_types, out_types, aux_types: in the order of the graph's argument, output and auxiliary names.
        entries: a type for each entry of the graph, by `graph.entry_id`.
    """

    graph: Graph
    arg_types: list[DType]
    out_types: list[DType]
    aux_types: list[DType]
    entries: list[DType]

    @property
    def complete(self) -> bool:
        """True if every entry's type is known."""
        return all(dtype is not None for dtype in self.entries)

    def of(self, entry: Entry) -> DType:
        """The type of one entry."""
        return self.entries[self.graph.entry_id(entry)]


def infer_type(graph: Graph, types: Mapping[str, Any], *, partial: bool = False, outs: Sequence[DType] = ()) -> Types:
    """The element types of all entries of `graph`.

    Args:
        graph: the graph.
        types: by argument or auxiliary name: a numpy dtype, or what makes one ("float16", np.float16).
        partial: whether unknown types are left unknown; otherwise unknown variables become float32, one after the
            other in the order of the arguments.
        outs: what is known of the heads' types.

    Raises:
        BadRequestError: `types` names no argument of the graph.
        DTypeError: types contradict each other, with the node, the argument and the user's line.
        UnderdeterminedError: not `partial`, and an inner entry stays unknown.
    """
    check_names(graph, types)
    before = inferred_before(graph, "types", types, outs)
    if before is not None:
        return Types(graph, *by_side(graph, before), before)
    values: list[DType] = [None] * graph.num_entries
    for node in graph.variables:
        values[graph.entry_id(Entry(node))] = _starting(node, types.get(node.name))
    for k, (head, dtype) in enumerate(zip(graph.heads, outs, strict=False)):
        at = graph.entry_id(head)
        values[at] = _merge(head.node, "output", k, values[at], dtype)
    work: Fixpoint[DType] = Fixpoint(graph, apply_type_rule, _merge, values, lambda dtype: dtype is not None)
    work.run()
    if not partial:
        for node in [*graph.arguments, *graph.auxiliary_states]:
            if values[graph.entry_id(Entry(node))] is None:
                work.settle(Entry(node), np.dtype(np.float32))
    inferred = Types(graph, *by_side(graph, values), values)
    if inferred.complete:
        graph.inferred["types"] = [values[graph.entry_id(Entry(node))] for node in graph.variables], values
    elif not partial:
        stuck = next(n for n in graph.nodes if any(inferred.of(entry) is None for entry in n.entries()))
        assert stuck.op is not None
        raise UnderdeterminedError("the type of its output is not determined by its inputs").at(
            stuck.name, stuck.op.name, stuck.source
        )
    return inferred


def apply_type_rule(node: Node, ins: Sequence[DType], outs: Sequence[DType]) -> tuple[TypeList, TypeList]:
    """Apply the node's FInferType to these types, by default one for all; a backward node takes `node.like`'s."""
    assert node.op is not None
    inside, outside = TypeList(ins, "input"), TypeList(outs, "output")
    if node.like:
        for k, dtype in enumerate(ins[len(node.inputs) :]):
            outside.merge(k, dtype)
    else:
        node.op.type_rule(node.params, inside, outside)
    return inside, outside


def _merge(node: Node, side: str, index: int, old: DType, new: DType) -> DType:
    if old is None or new is None or old == new:
        return new if old is None else old
    raise DTypeError(f"expected type {new}, got {old}", side=side, index=index)


def _starting(node: Node, dtype_text: Any) -> DType:
    dtype: DType = None
    if dtype_text is not None:
        try:
            dtype = numpy_dtype(dtype_text)
        except TypeError:
            raise DTypeError(f"{node.name}: expected a numpy type name, got {dtype_text!r}", node=node.name) from None
    text = node.attrs.get("__dtype__")
    if text is None or text in ("-1", "None"):
        return dtype
    try:
        declared = TYPES[int(text)] if text.isdecimal() else numpy_dtype(text)
    except (IndexError, TypeError):
        raise GraphError(f"{node.name}: expected one of MXNet's type numbers as __dtype__, got {text!r}") from None
    return declared if dtype is None else dtype
