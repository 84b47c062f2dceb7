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

from ...task import NODES, checkpoint
from ..ir import Graph

__all__ = ["Fixpoint", "by_side", "Rules", "check_names", "failed_rule", "inferred_before", "tell"]

T = TypeVar("T")


def failed_rule(error: Exception, values: str) -> ShapeError:
    """Return a ShapeError for an unexpected exception of a shape or type rule."""
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


def by_side(graph: Graph, values: list[T]) -> tuple[list[T], list[T], list[T]]:
    """Return the values, by `graph.entry_id`, of the arguments, of the heads and of the auxiliary states."""
    return (
        [values[graph.entry_id(Entry(node))] for node in graph.arguments],
        [values[graph.entry_id(head)] for head in graph.heads],
        [values[graph.entry_id(Entry(node))] for node in graph.auxiliary_states],
    )


def inferred_before(graph: Graph, what: str, values: Mapping[str, Any], outs: Sequence[Any] = ()) -> list[Any] | None:
    """Return the entries' values of the last complete inference, if this one would end as that did.

    Args:
        graph, what: the graph, and "shapes" or "types".
        values: by the name of a variable.
        outs: what is known of the heads.
    """
    before = graph.inferred.get(what)
    if before is None or len(values) != len(before[0]):
        return None
    same = all(_equal(values.get(node.name), value) for node, value in zip(graph.variables, before[0], strict=True))
    heads = zip(graph.heads, outs, strict=False)
    fits = all(out is None or _equal(out, before[1][graph.entry_id(head)]) for head, out in heads)
    return before[1] if same and fits else None


def _equal(a: Any, b: Any) -> bool:
    # numpy takes None for float64: np.dtype("float64") == None holds.
    return a is b or (a is not None and b is not None and bool(a == b))


class Learnt(NamedTuple):
    """The values that a rule infers from some others.

    Attributes:
        ins, outs: the positions whose values it changes, with the new ones.
        settles: whether it has nothing to add afterwards, and nothing to object.
    """

    ins: tuple[tuple[int, Any], ...]
    outs: tuple[tuple[int, Any], ...]
    settles: bool


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
        """Run the node's rule on these values and return its result; raises what the rule raises."""
        key = (node.op, id(node.params), len(node.inputs), ins, outs)
        learnt = self._learnt.get(key)
        if learnt is None:
            after_ins, after_outs = self._apply(node, ins, outs)
            changes = _changes(ins, after_ins), _changes(outs, after_outs)
            learnt = self._learnt[key] = Learnt(*changes, self._settles(node, changes, after_ins, after_outs))
        return learnt

    def _settles(self, node: Node, changes: Sequence[Any], ins: Sequence[T], outs: Sequence[T]) -> bool:
        """True if the rule is done with the node: it has run on complete values, or would change nothing in these."""
        if not (all(map(self._complete, ins)) and all(map(self._complete, outs))):
            return False
        if not any(changes):
            return True
        try:
            after_ins, after_outs = self._apply(node, tuple(ins), tuple(outs))
        except Exception:
            return False  # it is raised when the node's turn comes again
        return not (_changes(ins, after_ins) or _changes(outs, after_outs))


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

    def run(self) -> None:
        """Apply the rules of all nodes until nothing changes: in their order, and again those before a change."""
        first = self.graph.first_touching
        for i, node in enumerate(self.graph.nodes):
            if node.op is None:
                continue
            if not i % NODES:
                checkpoint(NODES)
            changed = self._visit(i)
            if not changed:
                continue
            if any(first[entry] < i for entry in changed):
                self._again({other for entry in changed for other in self.graph.touching[entry] if other <= i}, i)
            elif i not in self._settled:
                self._again([i], i)

    def _again(self, due: Iterable[int], last: int) -> None:
        """Apply the rules of those in `due` that have not settled, and of those that changes make due, up to `last`."""
        heap = [i for i in due if i not in self._settled]
        heapq.heapify(heap)
        waiting = set(heap)
        touching = self.graph.touching
        while heap:
            checkpoint()
            i = heapq.heappop(heap)
            waiting.discard(i)
            for changed in self._visit(i):
                for other in touching[changed]:
                    if other <= last and other not in waiting and other not in self._settled:
                        waiting.add(other)
                        heapq.heappush(heap, other)

    def settle(self, entry: Entry, value: T) -> None:
        """Settle `entry` and whatever follows from it."""
        at = self.graph.entry_id(entry)
        self.values[at] = value
        self._again(self.graph.touching[at], len(self.graph.nodes))

    def _visit(self, i: int) -> list[int]:
        node, ins, values = self.graph.nodes[i], self.graph.reads[i], self.values
        start, end = self.graph.row_ptr[i], self.graph.row_ptr[i + 1]
        before_in = (values[ins[0]],) if len(ins) == 1 else tuple([values[e] for e in ins])
        before_out = tuple(values[start:end])
        try:
            learnt = self._rules.run(node, before_in, before_out)
            changed = self._keep(node, "input", ins, learnt.ins) if learnt.ins else []
            if learnt.outs:
                changed += self._keep(node, "output", range(start, end), learnt.outs)
            # An entry that is read twice and changed twice may have become something else.
            if learnt.settles and len(changed) == len(learnt.ins) + len(learnt.outs):
                self._settled.add(i)
        except MXNetError as error:
            raise tell(error, node) from None
        except Exception as error:
            shown = ", ".join(str(self._show(value)) for value in (*before_in, *before_out))
            raise tell(failed_rule(error, shown), node) from error
        if changed and self._trace is not None:
            self._record(node, i, set(changed))
        return changed

    def _keep(self, node: Node, side: str, entries: Sequence[int], news: Sequence[tuple[int, T]]) -> list[int]:
        changed = []
        for k, value in news:
            entry = entries[k]
            before = self.values[entry]
            if before is None and value is not None:
                self.values[entry] = value
                changed.append(entry)
                continue
            merged = self._merge(node, side, k, before, value)
            if not _equal(merged, before):
                self.values[entry] = merged
                changed.append(entry)
        return changed

    def named(self, node: Node, i: int) -> Mapping[str, int]:
        """The node's argument and output names, and their entry numbers."""
        assert node.op is not None
        names = dict(zip(node.op.input_names(node.params), self.graph.reads[i], strict=False))
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
