"""A graph from symbol JSON of any version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic

from ..control_flow import MAX_LEVELS, SUBGRAPHS
from ..errors import GraphError, LimitError, MXNetError, UnsupportedError
from ..excerpt import excerpt
from ..mxnet import LEGACY_KEYS, NP_SHAPE, STATE_INITIALIZERS, is_hidden
from .content import check_size, parse
from .nodes import SOURCE, Maker, N, Subgraph
from .older_versions import hand_down, split_attributes

__all__ = ["read"]

ATTRIBUTES = ("param", "attr", "attrs")
"""Keys that versions of MXNet have written attributes under: the operator's, the user's, and both."""


def read(
    document: str | bytes | Mapping[str, Any],
    maker: Maker[N],
    *,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    keep_mode: bool = False,
) -> list[tuple[N, int]]:
    """The heads of a graph: each a node, and the number of its output.

    Args:
        document: JSON text, or what it parses to.
        maker: makes the nodes.
        max_nodes, max_edges: as `check_size`; for untrusted input.
        keep_mode: mark the nodes of a graph that was written in numpy mode with `NP_SHAPE`.

    Raises:
        GraphError: the text is no JSON, or the JSON no graph: wrong types, a cycle, a dangling index.
        LimitError: as `check_size`, or subgraphs in too many subgraphs.
        UnknownOperatorError, ParamError: with the node's name and the user's line.
        UnsupportedError: an operator that has no subgraphs comes with some.
    """
    graph = _mapping(parse(document), "the graph")
    check_size(graph, max_nodes, max_edges)
    np_shape = keep_mode and _number(graph, "is_np_shape") not in (None, 0)
    return _NodeReader(maker, _version(graph), {NP_SHAPE: "True"} if np_shape else {}).read(graph)


def _mapping(value: Any, *what: object) -> Mapping[str, Any]:
    """`value`, which `what` says the place of."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise GraphError(f"{'.'.join(map(str, what))}: expected a JSON object, got {_kind(value)}")
    return value


def _list(value: Any, *what: object) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise GraphError(f"{'.'.join(map(str, what))}: expected a JSON array, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {excerpt(value, 40)}"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _version(graph: Mapping[str, Any]) -> int:
    number = _number(graph, "mxnet_version")
    return 800 if number is None else number


def _number(graph: Mapping[str, Any], key: str) -> int | None:
    """A number among the graph's own attributes; None where there is none."""
    entry = _mapping(graph.get("attrs", {}), "attrs").get(key)
    if entry is None:
        return None
    number = entry[1] if isinstance(entry, list | tuple) and len(entry) == 2 else entry
    if not _is_int(number):
        raise GraphError(f'attrs.{key}: expected ["int", number], got {excerpt(entry)}')
    return int(number)


class _NodeReader(Generic[N]):
    """Reads the nodes of a file one after the other."""

    def __init__(self, maker: Maker[N], version: int, marks: Mapping[str, str], level: int = 0) -> None:
        self.nodes: list[N] = []
        self._names: list[str] = []
        self._outputs: list[int] = []
        self._maker = maker
        self._version = version
        self._marks = marks
        self._level = level

    def read(self, graph: Mapping[str, Any]) -> list[tuple[N, int]]:
        """The heads of a graph whose nodes come now."""
        for i, entry in enumerate(_list(graph.get("nodes"), "nodes")):
            self.add(entry if type(entry) is dict else _mapping(entry, f"nodes[{i}]"))
        count = len(self.nodes)
        heads = _list(graph.get("heads"), "heads")
        if not heads:
            raise GraphError("heads: expected at least one, got none")
        for i, number in enumerate(_list(graph.get("arg_nodes", []), "arg_nodes")):
            if not _is_int(number) or not 0 <= number < count:
                raise GraphError(f"arg_nodes[{i}]: expected a node number below {count}, got {excerpt(number)}")
        return [self.entry(head, f"heads[{i}]") for i, head in enumerate(heads)]

    def entry(self, value: Any, what: str) -> tuple[N, int]:
        """`[node, output, version]`, or what older versions wrote; `what` says the place of it."""
        parts = [value] if _is_int(value) else value
        if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= 3 or not all(map(_is_int, parts)):
            raise GraphError(f"{what}: expected [node, output, version], got {excerpt(value)}")
        number, output = parts[0], parts[1] if len(parts) > 1 else 0
        if not 0 <= number < len(self.nodes):
            raise GraphError(f"{what}: expected a node number below {len(self.nodes)}, got {number}")
        count = self._outputs[number]
        if not 0 <= output < count:
            raise GraphError(f"{what}: expected an output of {self._names[number]!r} below {count}, got {output}")
        return self.nodes[number], output

    def _inputs(self, listed: Sequence[Any], name: str) -> list[tuple[N, int]]:
        """The inputs of the next node. What is as MXNet writes it today is taken at once; there are many."""
        nodes, outputs = self.nodes, self._outputs
        count = len(nodes)
        inputs = []
        for value in listed:
            if type(value) is list and len(value) == 3:
                number, output, version = value
                if (
                    type(number) is int
                    and type(output) is int
                    and type(version) is int
                    and 0 <= number < count
                    and 0 <= output < outputs[number]
                ):
                    inputs.append((nodes[number], output))
                    continue
            return self._checked_inputs(listed, name)
        return inputs

    def _checked_inputs(self, listed: Sequence[Any], name: str) -> list[tuple[N, int]]:
        """Read inputs as older versions wrote them; raise GraphError for others."""
        number = len(self.nodes)
        for value in listed:
            first = value[0] if isinstance(value, list | tuple) and value else value
            if _is_int(first) and first >= number:
                raise GraphError(
                    f"{name}: input {first} is not before node {number} in the list: the graph has a cycle or is out "
                    "of order"
                )
        return [self.entry(value, f"{name}.inputs[{k}]") for k, value in enumerate(listed)]

    def add(self, entry: Mapping[str, Any]) -> None:
        """Read the next node."""
        name, kind = entry.get("name"), entry.get("op")
        if not isinstance(name, str) or not isinstance(kind, str):
            got = f"{excerpt(kind)} and {excerpt(name)}"
            raise GraphError(f"nodes[{len(self.nodes)}]: expected op and name as strings, got {got}")
        attrs = self._attributes(entry, name)
        source = attrs.pop(SOURCE, None)
        inside = entry.get("subgraphs")
        subgraphs = self._subgraphs(inside, name, kind, source) if inside or kind in SUBGRAPHS else []
        inputs = self._inputs(_list(entry.get("inputs", ()), name, "inputs"), name)
        if kind == "null":
            if inputs:
                raise GraphError(f"{name}: expected a variable to have no inputs, got {len(inputs)}")
            attrs = {f"__{key}__" if key in LEGACY_KEYS else key: value for key, value in attrs.items()}
            node = self._maker.variable(name, attrs, source)
        else:
            try:
                node = self._call(kind, name, attrs, inputs, source, subgraphs)
            except MXNetError as error:
                raise error.at(name, kind, source) from None
        self.nodes.append(node)
        self._names.append(name)
        self._outputs.append(self._maker.outputs(node))

    def _attributes(self, entry: Mapping[str, Any], name: str) -> dict[str, str]:
        """`attrs`, or what older versions called `attr` (the user's) and `param` (the operator's); and the marks."""
        merged: dict[str, str] = {}
        for key in ATTRIBUTES:
            attrs = entry.get(key)
            if attrs:
                for attr, value in _mapping(attrs, name, key).items():
                    if not isinstance(value, str):
                        raise GraphError(f"{name}: attribute {attr!r}: expected a string, got {_kind(value)}")
                    merged[attr] = value
        merged.update(self._marks)
        return merged

    def _subgraphs(self, inside: Any, name: str, kind: str, source: str | None) -> list[list[tuple[N, int]]]:
        """The heads of the graphs inside a node."""
        listed = _list(inside or [], name, "subgraphs")
        expected = SUBGRAPHS.get(kind, ())
        if listed and not expected:
            message = f"expected no subgraphs, got {len(listed)}: only {', '.join(SUBGRAPHS)} have some"
            raise UnsupportedError(message).at(name, kind, source)
        if len(listed) != len(expected):
            raise GraphError(f"expected {len(expected)} subgraphs ({', '.join(expected)}), got {len(listed)}").at(
                name, kind, source
            )
        if listed and self._level == MAX_LEVELS:
            raise LimitError(f"expected subgraphs in at most {MAX_LEVELS} subgraphs, got one more").at(
                name, kind, source
            )
        heads = []
        for what, value in zip(expected, listed, strict=True):
            graph = _mapping(value, f"{name}.subgraphs ({what})")
            heads.append(_NodeReader(self._maker, self._version, self._marks, self._level + 1).read(graph))
        return heads

    def _call(
        self,
        kind: str,
        name: str,
        attrs: dict[str, str],
        inputs: list[tuple[N, int]],
        source: str | None,
        subgraphs: Sequence[Subgraph[N]],
    ) -> N:
        own, handed = split_attributes(attrs)
        if self._version < 905 and kind in ("argmax", "argmin") and own.get("axis") == "-1":
            del own["axis"]
        call = self._maker.call(kind, name, own, subgraphs)
        names = call.inputs
        if self._version < 900:
            implied = (f"{name}_{argument}" if name else argument for argument in names[len(inputs) :])
            hidden = {key: value for key, value in own.items() if is_hidden(key)}  # such as __ctx_group__
            inputs += [(self._maker.variable(argument, dict(hidden), None), 0) for argument in implied]
        if len(inputs) < len(names):
            missing = ", ".join(names[len(inputs) :])
            raise GraphError(f"expected {len(names)} inputs, got {len(inputs)}: {missing} missing")
        if len(inputs) > len(names):
            raise GraphError(f"expected {len(names)} inputs ({', '.join(names) or 'none'}), got {len(inputs)}")
        if self._version < 904:
            for k in call.aux:
                if names[k] in STATE_INITIALIZERS:
                    self._maker.annotate(inputs[k][0], "__init__", STATE_INITIALIZERS[names[k]])
        left = hand_down(self._maker, handed, names, inputs) if handed else {}
        if left:  # then they are the operator's, or nobody's
            own |= left
            call = self._maker.call(kind, name, own, subgraphs)
        return self._maker.node(call, name, own, inputs, source)
