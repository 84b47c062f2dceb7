"""Monitored runs: which of a graph's arrays a callback is shown, under which names and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from .ndarray import NDArray, zeros

if TYPE_CHECKING:
    from .session import Session
    from .symbol import Symbol
    from .symbol.node import Entry, Node

__all__ = ["Callback", "MonitorCallback"]

Callback: TypeAlias = Callable[[str, NDArray], Any]
Description: TypeAlias = Mapping[str, Any]
"""The engine's answer to `describe_executor`: `backward_outputs` by name, and `backward`, the nodes of backward."""


class MonitorCallback:
    """The callback of an executor, and what it is shown; for the arguments see `Executor.set_monitor_callback`."""

    def __init__(self, callback: Callback, monitor_all: bool, wanted: Callable[[str], bool] | None) -> None:
        self._callback = callback
        self._monitor_all = monitor_all
        self._wanted = wanted
        self._shown: list[tuple[str, Entry]] = []
        self._forward: dict[str, NDArray] = {}

    def begin(self, session: Session, symbol: Symbol, description: Description) -> dict[str, NDArray]:
        """Begin a forward of `symbol`, as the engine runs it.

        Returns:
            new arrays for copies of the outputs that the callback is to be shown, now or as inputs of backward, by the
            outputs' names.
        """
        self._shown = [(name, entry) for name, entry in self._entries(symbol) if self._wants(name)]
        outputs = dict.fromkeys(node.output_name(index) for _, (node, index) in self._shown if node.op is not None)
        outputs.update(dict.fromkeys(name for kind, name in self._read_by_backward(description) if kind == "forward"))
        copies = {name: NDArray(session, session.new_id()) for name in outputs}
        self._forward = copies
        return copies

    def show(self, arrays: Mapping[str, NDArray]) -> None:
        """End a forward: call the callback.

        Args:
            arrays: variables, and the outputs that the engine has copied, by name.
        """
        for name, (node, index) in self._shown:
            self._callback(name, arrays[node.output_name(index)])

    def begin_backward(self, session: Session, description: Description) -> list[NDArray | None]:
        """Begin a backward.

        Returns:
            for each of the engine's `backward_outputs` a new array for a copy that the callback is to be shown; None
            where it is not.
        """
        read = {number for kind, number in self._read_by_backward(description) if kind == "backward"}
        return [
            NDArray(session, session.new_id()) if number in read or self._wants(name) else None
            for number, name in enumerate(description["backward_outputs"])
        ]

    def show_backward(
        self,
        description: Description,
        copies: Sequence[NDArray | None],
        heads: Sequence[NDArray | None],
        variables: Mapping[str, NDArray],
    ) -> None:
        """End a backward: call the callback.

        Args:
            description: of the executor.
            copies: what `begin_backward` has returned.
            heads: the head gradients.
            variables: arguments and auxiliary states by name.
        """
        names, position = description["backward_outputs"], 0
        for row in description["backward"]:
            if self._monitor_all:
                for name, kind, value in _with_variables(row.get("inputs", ())):
                    self._show_one(name, self._value(kind, value, copies, heads, variables))
            if "zeros" in row:
                self._show_one(row["name"], _zeros(variables, row))
            elif "head" in row:
                self._show_one(f"_head_grad_{row['head']}_id_output", heads[row["head"]])
            for number in range(position, position + row.get("outputs", 0)):
                self._show_one(names[number], copies[number])
            position += row.get("outputs", 0)
            for name in row.get("forward", ()):
                self._show_one(name, self._forward.get(name))

    def _wants(self, name: str) -> bool:
        return self._wanted is None or self._wanted(name)

    def _show_one(self, name: str, array: NDArray | None) -> None:
        if array is not None and self._wants(name):
            self._callback(name, array)

    def _value(
        self,
        kind: str,
        value: Any,
        copies: Sequence[NDArray | None],
        heads: Sequence[NDArray | None],
        variables: Mapping[str, NDArray],
    ) -> NDArray | None:
        """What an input of a backward node is; None for a value of a forward that was not monitored."""
        if kind == "forward":
            return self._forward.get(str(value))
        if kind == "argument":
            return variables[str(value)]
        return (copies if kind == "backward" else heads)[int(value)]

    def _read_by_backward(self, description: Description) -> Iterator[tuple[str, Any]]:
        """Kind and value of the inputs of backward nodes that the callback is to be shown."""
        if self._monitor_all:
            for row in description["backward"]:
                yield from ((kind, value) for name, kind, value in row.get("inputs", ()) if self._wants(name))
        for row in description["backward"]:
            yield from (("forward", name) for name in row.get("forward", ()) if self._wants(name))

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


def _with_variables(inputs: Iterable[tuple[str, str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """The inputs of a backward node, each variable under its own name first, as MXNet shows them."""
    for name, kind, value in inputs:
        if kind == "argument":
            yield value, kind, value
        elif kind == "variable":
            yield f"_head_grad_{value}", kind, value
        yield name, kind, value


def _zeros(variables: Mapping[str, NDArray], row: Mapping[str, Any]) -> NDArray:
    """The gradient of an argument of which nothing but zeros is known."""
    argument = variables[row["zeros"]]
    return zeros(argument.shape, argument.context, argument.dtype)
