"""Monitored runs: which of a graph's arrays a callback is shown, under which names and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from .ndarray import NDArray

if TYPE_CHECKING:
    from .session import Session
    from .symbol import Symbol
    from .symbol.node import Entry, Node

__all__ = ["Callback", "MonitorCallback"]

Callback: TypeAlias = Callable[[str, NDArray], Any]


class MonitorCallback:
    """The callback of an executor, and what it is shown; for the arguments see `Executor.set_monitor_callback`."""

    def __init__(self, callback: Callback, monitor_all: bool, wanted: Callable[[str], bool] | None) -> None:
        self._callback = callback
        self._monitor_all = monitor_all
        self._wanted = wanted
        self._shown: list[tuple[str, Entry]] = []
        self._backward_names: dict[int, list[str]] = {}

    def begin(self, session: Session, symbol: Symbol) -> dict[str, NDArray]:
        """Begin a forward of `symbol`, as the engine runs it.

        Returns:
            new arrays for copies of the outputs that the callback is to be shown, by the outputs' names.
        """
        self._shown = [
            (name, entry) for name, entry in self._entries(symbol) if self._wanted is None or self._wanted(name)
        ]
        outputs = dict.fromkeys(node.output_name(index) for _, (node, index) in self._shown if node.op is not None)
        return {name: NDArray(session, session.new_id()) for name in outputs}

    def show(self, arrays: Mapping[str, NDArray]) -> None:
        """End a forward: call the callback.

        Args:
            arrays: variables, and the outputs that the engine has copied, by name.
        """
        for name, (node, index) in self._shown:
            self._callback(name, arrays[node.output_name(index)])

    def begin_backward(self, session: Session, executor: int) -> list[tuple[str, NDArray | None]]:
        """Begin a backward.

        Returns:
            the names of the backward operators' outputs, in their order, with new arrays for copies of those that the
            callback is to be shown.
        """
        if executor not in self._backward_names:
            description = session.describe(executor, "describe_executor")
            self._backward_names[executor] = description.get("backward_outputs", [])
        return [
            (name, NDArray(session, session.new_id()) if self._wanted is None or self._wanted(name) else None)
            for name in self._backward_names[executor]
        ]

    def show_backward(self, outputs: Iterable[tuple[str, NDArray | None]]) -> None:
        """End a backward: call the callback."""
        for name, array in outputs:
            if array is not None:
                self._callback(name, array)

    def _entries(self, symbol: Symbol) -> Iterator[tuple[str, Entry]]:
        """Names, and what they are of, in the order of MXNet's executor."""
        for node in symbol._nodes():
            if node.op is None:
                continue
            if self._monitor_all:
                yield from _inputs(node)
            for index in range(node.num_outputs()):
                yield node.output_name(index), (node, index)


def _inputs(node: Node) -> Iterator[tuple[str, Entry]]:
    assert node.op is not None
    for name, entry in zip(node.op.input_names(node.attrs), node.inputs, strict=True):
        if entry[0].op is None:
            yield entry[0].name, entry
        yield f"{node.name}_{name}", entry
