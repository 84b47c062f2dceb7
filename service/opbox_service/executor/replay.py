"""Replaying: from its second run in a mode on, half a plan queues recorded graphs in place of its calls (CUDA graphs).

The first run is eager, so that everything that is made once is made; then the calls are recorded, in
segments as long as can be. Between segments stand calls that are run as ever: code of users, which may do anything, and
what the device cannot record. Arrays and temporaries stay where they are as long as the plan is bound, so that nothing
that is recorded goes out of date; what differs from run to run is the mode, each with graphs of its own,
and the place of random streams, which is written to the device before graphs that draw. Where calls would now run in
another way (a faster algorithm has been found), the next run is eager again, and the one after it records.
`OPBOX_DISABLE=cuda-graphs` records nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from opbox_ops import switches, trust
from opbox_ops.backend import Backend, NodeStreams
from opbox_ops.backend.base import RecordedCalls
from opbox_ops.node import Node

from ..graph.subgraph import subgraphs_of
from ..task import running
from .calls import Call, Calls, at_node

__all__ = ["GRAPHS", "Replay", "records"]

GRAPHS = "cuda-graphs"
"""The switch that turns them off, and what a GPU's self-check calls them."""


class Replay:
    """The calls of half a plan and, once they have run, the graphs that stand for them.

    Args:
        backend: what records.
        eager: the calls.
        streams: what they draw from.
    """

    def __init__(self, backend: Backend, eager: Calls, streams: NodeStreams) -> None:
        self._backend = backend
        self._streams = streams
        self._eager = eager
        self._ran: set[bool] = set()
        self._recorded: dict[bool, Calls] = {}
        self._graphs: dict[bool, list[RecordedCalls]] = {}
        self._drawing: set[bool] = set()
        self._whole: dict[bool, RecordedCalls] = {}

    def run(self, is_train: bool) -> None:
        """Do what the calls do, in this mode."""
        whole = self._whole.get(is_train)
        if whole is not None and not whole.is_stale:  # one launch: what goes on beside many calls is not needed
            try:
                whole()
            except Exception as error:
                raise at_node(error, self._eager.nodes[0]) from error
            return
        calls = self._recorded.get(is_train)
        if calls is not None and any(graph.is_stale for graph in self._graphs[is_train]):
            calls = None
            del self._recorded[is_train], self._graphs[is_train]
            self._whole.pop(is_train, None)
            self._ran.discard(is_train)
            self._drawing.discard(is_train)
        if calls is None and is_train not in self._ran:
            self._eager.run()
            self._ran.add(is_train)
            return
        if calls is None:
            self._draws = False
            recorded = self._graphs[is_train] = []
            calls = self._recorded[is_train] = self._record(recorded)
            if self._draws:
                self._drawing.add(is_train)
            elif len(recorded) == 1 and calls.calls == recorded:
                self._whole[is_train] = recorded[0]
        if is_train in self._drawing:
            self._streams.settle()
        calls.run()

    def _capture(self, calls: Sequence[Call]) -> RecordedCalls | None:
        # While a device records, nobody else goes first, and nothing is stopped half-way.
        with running(None), self._streams.recording(self._backend.empty):
            # A recording that others spoil begins anew, and so do its draws.
            graph = self._backend.capture([self._streams.begin_again, *calls])
        self._draws |= graph is not None and self._streams.records_draws
        return graph

    def _record(self, graphs: list[RecordedCalls]) -> Calls:
        """Graphs, each at the node of its first call, and calls that are run as ever; the graphs alone in `graphs`."""
        calls, nodes = self._eager.calls, self._eager.nodes
        apart = [_is_users(node) for node in nodes]
        if calls and not any(apart):
            whole = self._capture(calls)
            if whole is not None:
                graphs.append(whole)
                return Calls([whole], nodes[:1])
        mixed = Calls()
        segment = Calls()

        def close() -> None:
            graph = self._capture(segment.calls) if segment.calls else None
            if graph is not None:
                graphs.append(graph)
            mixed.calls += segment.calls if graph is None else [graph]
            mixed.nodes += segment.nodes if graph is None else segment.nodes[:1]
            segment.calls.clear()
            segment.nodes.clear()

        for call, node, users in zip(calls, nodes, apart, strict=True):
            if users or self._capture([call]) is None:
                close()
                mixed.calls.append(call)
                mixed.nodes.append(node)
            else:
                segment.calls.append(call)
                segment.nodes.append(node)
        close()
        return mixed


def records(backend: Backend) -> bool:
    """Return whether plans of this device are recorded."""
    return backend.device_type == "gpu" and not switches.is_off(GRAPHS) and trust.is_trusted(GRAPHS, trust.ANY_TYPE)


def _is_users(node: Node) -> bool:
    """Return whether a call runs code of a user's own, in a subgraph too: it may do what no graph can repeat."""
    owner = node.forward or node
    if owner.op is not None and owner.op.get_attr("TUserCode"):
        return True
    inside = (inner for subgraph in subgraphs_of(owner) for inner in subgraph.graph.nodes)
    return any(_is_users(inner) for inner in inside)
