"""The worklist that shape and type inference share: run rules until nothing changes.

A value (a shape or a type) belongs to each entry. Whenever a rule settles more of an entry, the node that makes the
entry and the nodes that read it are due again, lowest first. An entry can change only as often as it has dimensions,
so the work is linear in the size of the graph. Nodes that are alike (operator, parameters, values) run their rule once.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from opbox_ops.node import Entry, Node
from opbox_ops.user_line import user_line
from opbox_protocol.errors import BadRequestError, MXNetError, ShapeError

from ...task import checkpoint
from ..ir import Graph

__all__ = ["Fixpoint", "Rules", "check_names", "failed_rule", "inferred_before", "tell"]

T = TypeVar("T")


def failed_rule(error: Exception, values: str) -> ShapeError:
    """What a shape or type rule raised, where it is no error of ours."""
    return ShapeError(f"the operator's rule failed on {values}: {type(error).__name__}: {error}{user_line(error)}")


def tell(error: MXNetError, node: Node) -> MXNetError:
    """`error` with the name of `node`, and with the argument's name when the rule said its side and position."""
    assert node.op is not None
    if error.node is None and isinstance(error, ShapeError) and error.index is not None:
        names = node.op.output_names(node.params) if error.side == "output" else node.op.input_names(node.params)
        if error.index < len(names):
            error.message = f"{names[error.index]}: {error.message}"
    return error.at(node.name, node.op.name, node.source)


def check_names(graph: Graph, names: Iterable[str]) -> None:
    """BadRequestError when `given` names something that is neither an argument nor an auxiliary state."""
    known = {node.name for node in graph.variables}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = (
                f"did you mean {' or '.join(map(repr, near))}?"
                if near
                else (f"the graph has {', '.join(graph.argument_names[:10]) or 'no arguments'}")
            )
            raise BadRequestError(f"{name!r} is not an argument of the graph: {hint}")


def inferred_before(graph: Graph, what: str, values: Mapping[str, Any]) -> list[Any] | None:
    """The entries' values where all variables have those of the last complete inference: it would end as that did."""
    before = graph.inferred.get(what)
    if before is None or len(values) != len(before[0]):
        return None
    same = all(_equal(values.get(node.name), value) for node, value in zip(graph.variables, before[0], strict=True))
    return before[1] if same else None


def _equal(a: Any, b: Any) -> bool:
    # numpy takes None for float64: np.dtype("float64") == None holds.
    return a is b or (a is not None and b is not None and bool(a == b))


class Learnt(NamedTuple):
    """The values that a rule infers from some others.

    Attributes:
        ins, outs: the positions whose values it changes, with the new ones.
        complete: whether it was given complete values only.
    """

    ins: tuple[tuple[int, Any], ...]
    outs: tuple[tuple[int, Any], ...]
    complete: bool


class Rules(Generic[T]):
    """Runs nodes' rules, once for nodes that are alike; parameters that are equal are one object in a loaded graph.

    Args:
        apply, complete: see Fixpoint.
    """

    def __init__(
        self,
        apply: Callable[[Node, Sequence[T], Sequence[T]], tuple[Sequence[T], Sequence[T]]],
        complete: Callable[[T], bool],
    ) -> None:
        self._apply = apply
        self._complete = complete
        self._learnt: dict[Any, Learnt] = {}

    def run(self, node: Node, ins: tuple[T, ...], outs: tuple[T, ...]) -> Learnt:
        """What the node's rule makes of these values; it raises what the rule raises."""
        key = (node.op, id(node.params), len(node.inputs), ins, outs)
        learnt = self._learnt.get(key)
        if learnt is None:
            after_ins, after_outs = self._apply(node, ins, outs)
            complete = all(map(self._complete, ins)) and all(map(self._complete, outs))
            learnt = self._learnt[key] = Learnt(_changes(ins, after_ins), _changes(outs, after_outs), complete)
        return learnt


def _changes(before: Sequence[T], after: Sequence[T]) -> tuple[tuple[int, T], ...]:
    return tuple([(k, new) for k, (old, new) in enumerate(zip(before, after, strict=True)) if not _equal(new, old)])


class Fixpoint(Generic[T]):
    """Values by entry number, and the loop that completes them.

    Args:
        graph: whose entries get values.
        apply: `(node, ins, outs)` runs the node's rule and returns its inputs' and outputs' values. After the values
            of a backward node's own inputs come those of `node.like`.
        merge: the value that agrees with both; raises ValueError when they contradict each other.
        values: starting values, by entry number.
        complete: whether a value leaves nothing to learn.
        trace: when given, one record is appended for each rule that learnt something.
    """

    def __init__(
        self,
        graph: Graph,
        apply: Callable[[Node, Sequence[T], Sequence[T]], tuple[Sequence[T], Sequence[T]]],
        merge: Callable[[Node, str, int, T, T], T],
        values: list[T],
        complete: Callable[[T], bool],
        trace: list[dict[str, Any]] | None = None,
        show: Callable[[T], Any] = str,
    ) -> None:
        self.graph = graph
        self.values = values
        self._merge = merge
        self._settled: set[int] = set()
        self._rules = Rules(apply, complete)
        self._trace = trace
        self._show = show
        self._ins, self._touching = graph.touched

    def run(self, due: Iterable[int] | None = None) -> None:
        """Apply rules until nothing changes, from all operator nodes or from those in `due`."""
        nodes = self.graph.nodes
        heap = [i for i in (range(len(nodes)) if due is None else due) if nodes[i].op is not None]
        heapq.heapify(heap)
        waiting = set(heap)
        while heap:
            checkpoint()
            i = heapq.heappop(heap)
            waiting.discard(i)
            for changed in self._visit(i):
                for other in self._touching[changed]:
                    if other not in waiting and other not in self._settled:
                        waiting.add(other)
                        heapq.heappush(heap, other)

    def settle(self, entry: Entry, value: T) -> None:
        """Settle `entry` and whatever follows from it."""
        at = self.graph.entry_id(entry)
        self.values[at] = value
        self.run(self._touching[at])

    def _visit(self, i: int) -> list[int]:
        node, ins = self.graph.nodes[i], self._ins[i]
        outs = range(self.graph.row_ptr[i], self.graph.row_ptr[i + 1])
        before_in = tuple([self.values[e] for e in ins])
        before_out = tuple([self.values[e] for e in outs])
        try:
            learnt = self._rules.run(node, before_in, before_out)
            # Once a rule has run on complete values, it can neither learn nor object again.
            if learnt.complete:
                self._settled.add(i)
            if not learnt.ins and not learnt.outs:
                return []
            changed = self._keep(node, "input", ins, learnt.ins)
            changed += self._keep(node, "output", outs, learnt.outs)
        except MXNetError as error:
            raise tell(error, node) from None
        except Exception as error:
            values = ", ".join(str(self._show(value)) for value in (*before_in, *before_out))
            raise tell(failed_rule(error, values), node) from error
        if changed and self._trace is not None:
            self._record(node, i, set(changed))
        return changed

    def _keep(self, node: Node, side: str, entries: Sequence[int], news: Sequence[tuple[int, T]]) -> list[int]:
        changed = []
        for k, value in news:
            entry = entries[k]
            merged = self._merge(node, side, k, self.values[entry], value)
            if not _equal(merged, self.values[entry]):
                self.values[entry] = merged
                changed.append(entry)
        return changed

    def named(self, node: Node, i: int) -> Mapping[str, int]:
        """The node's argument and output names, and their entry numbers."""
        assert node.op is not None
        names = dict(zip(node.op.input_names(node.params), self._ins[i], strict=False))
        outs = zip(
            node.op.output_names(node.params), range(self.graph.row_ptr[i], self.graph.row_ptr[i + 1]), strict=True
        )
        names.update(outs)
        return names

    def _record(self, node: Node, i: int, changed: set[int]) -> None:
        assert self._trace is not None
        assert node.op is not None
        names = self.named(node, i)
        self._trace.append(
            {
                "node": node.name,
                "op": node.op.name,
                "source": node.source,
                "learnt": {n: self._show(self.values[e]) for n, e in names.items() if e in changed},
                "known": {n: self._show(self.values[e]) for n, e in names.items() if e not in changed},
            }
        )
