"""MXNet's symbol JSON, in and out, of every version.

    {"nodes": [{"op": "null", "name": "data", "attrs": {…}, "inputs": [[node, output, version], …]}, …],
     "arg_nodes": […], "node_row_ptr": […], "heads": [[node, output, version], …],
     "attrs": {"mxnet_version": ["int", 10901]}}

In a graph that was written in numpy mode, `attrs` has `"is_np_shape": ["int", 1]` too.

Files of older versions are upgraded as MXNet 1.9.1 does: `attr` and `param` for `attrs`, inputs and heads without a
version, hidden keys without underscores (`lr_mult`, and `weight_lr_mult` for the variable in that place), inputs that
were implied (an 0.8 BatchNorm has no auxiliary inputs), `axis=-1` of argmax.

A node of a control-flow operator has `"subgraphs": [graph, …]`, graphs like the whole but without `attrs`.

Client and server have nodes of their own: `read` makes them through a `Maker`, `write` asks for a `Row` of each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from .control_flow import MAX_LEVELS, SUBGRAPHS
from .errors import GraphError, LimitError, MXNetError, UnsupportedError
from .mxnet import LEGACY_KEYS, NP_SHAPE, STATE_INITIALIZERS, VERSION, is_hidden

__all__ = ["SOURCE", "ParsedCall", "Maker", "Row", "check_size", "content_hash", "read", "write"]

SOURCE = "__source__"
"""The hidden attribute with the user's line; it travels to the engine, and is in no file."""

DUMPED_ITEMS = 512
"""Items of a list that are written at a time."""

N = TypeVar("N")
Subgraph: TypeAlias = Sequence[tuple[N, int]]
"""The heads of a graph inside a node."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """An operator with its parameters read.

    Attributes:
        inputs: names of the inputs in order, auxiliary states included.
        aux: positions of the auxiliary states among them.
        spec: the maker's own reading of the parameters, which `Maker.node` gets back.
    """

    inputs: Sequence[str]
    aux: Collection[int]
    spec: Any


class Maker(Protocol[N]):
    """Makes the nodes of one side."""

    def call(self, kind: str, name: str, attrs: Mapping[str, str], subgraphs: Sequence[Subgraph[N]]) -> ParsedCall:
        """Read a node's parameters, and the heads of its subgraphs; UnknownOperatorError, ParamError as they come."""

    def variable(self, name: str, attrs: dict[str, str], source: str | None) -> N:
        """A variable."""

    def node(
        self, call: ParsedCall, name: str, attrs: dict[str, str], inputs: list[tuple[N, int]], source: str | None
    ) -> N:
        """An operator's node; each input is a node and the number of its output."""

    def outputs(self, node: N) -> int:
        """How many outputs a node has, hidden ones included."""

    def annotate(self, node: N, key: str, value: str) -> bool:
        """Give a variable of this maker an attribute unless it has it; False for a node that is no variable."""


@dataclass(frozen=True, slots=True)
class Row(Generic[N]):
    """A node as `write` needs it; `op` is None for a variable, `outputs` counts hidden ones too.

    `subgraphs` has the nodes of each of its subgraphs, inputs before their users, and the heads.
    """

    op: str | None
    name: str
    attrs: Mapping[str, str]
    inputs: Sequence[tuple[N, int]]
    aux: Collection[int]
    outputs: int
    source: str | None
    subgraphs: Sequence[tuple[Iterable[N], Subgraph[N]]] = ()


# -- writing ----------------------------------------------------------------------------------------------------------


def write(
    nodes: Iterable[N],
    heads: Iterable[tuple[N, int]],
    row: Callable[[N], Row[N]],
    *,
    sources: bool = False,
    np_shape: bool = False,
) -> dict[str, Any]:
    """A graph as MXNet 1.9.1 writes it.

    Args:
        nodes: all of them, inputs before their users.
        heads: the outputs.
        row: describes a node.
        sources: add the user's lines as `SOURCE`, for the engine's messages.
        np_shape: say that it is written in numpy mode; nodes that are marked with `NP_SHAPE` say so too.
    """
    document, marked = _written(nodes, heads, row, sources)
    mode = {"is_np_shape": ["int", 1]} if np_shape or marked else {}
    return {**document, "attrs": {**mode, "mxnet_version": ["int", VERSION]}}


def _written(
    nodes: Iterable[N], heads: Iterable[tuple[N, int]], row: Callable[[N], Row[N]], sources: bool
) -> tuple[dict[str, Any], bool]:
    """A graph without `attrs`, and whether one of its nodes is marked with `NP_SHAPE`."""
    marked = False
    number: dict[int, int] = {}
    versions: dict[int, int] = {}
    written: list[dict[str, Any]] = []
    arguments: list[int] = []
    pointers = [0]
    for i, node in enumerate(nodes):
        number[id(node)] = i
        this = row(node)
        entry: dict[str, Any] = {"op": this.op or "null", "name": this.name}
        attrs = dict(sorted(this.attrs.items()))
        marked = attrs.pop(NP_SHAPE, None) is not None or marked
        if sources and this.source:
            attrs[SOURCE] = this.source
        if attrs:
            entry["attrs"] = attrs
        inputs = []
        for position, (child, output) in enumerate(this.inputs):
            if position in this.aux:
                versions[id(child)] = versions.get(id(child), 0) + 1
            inputs.append([number[id(child)], output, versions.get(id(child), 0)])
        entry["inputs"] = inputs
        if this.subgraphs:
            inside = [_written(*subgraph, row, sources) for subgraph in this.subgraphs]
            entry["subgraphs"] = [graph for graph, _ in inside]
            marked = marked or any(mark for _, mark in inside)
        written.append(entry)
        if this.op is None:
            arguments.append(i)
        pointers.append(pointers[-1] + this.outputs)
    document = {
        "nodes": written,
        "arg_nodes": arguments,
        "node_row_ptr": pointers,
        "heads": [[number[id(node)], output, 0] for node, output in heads],
    }
    return document, marked


def content_hash(document: str | bytes | Mapping[str, Any]) -> str:
    """sha256, in hexadecimal, of the document's canonical JSON: keys sorted, no spaces, UTF-8."""
    parsed = _parse(document)
    digest = hashlib.sha256()
    for piece in _canonical(parsed) if _is_large(parsed) else [_dump(parsed)]:
        digest.update(piece.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _is_large(document: Any) -> bool:
    """Whether writing it takes so long that other threads should not wait for it."""
    return isinstance(document, Mapping) and any(
        type(value) is list and len(value) > DUMPED_ITEMS for value in document.values()
    )


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _canonical(document: Mapping[str, Any]) -> Iterator[str]:
    """The canonical JSON of an object in pieces, so that no other thread waits for the whole of a large one."""
    if any(type(key) is not str for key in document):
        yield _dump(document)
        return
    separator = "{"
    for key in sorted(document):
        value = document[key]
        yield f"{separator}{_dump(key)}:"
        separator = ","
        if type(value) is list and len(value) > DUMPED_ITEMS:
            for start in range(0, len(value), DUMPED_ITEMS):
                piece = _dump(value[start : start + DUMPED_ITEMS])
                yield f"{',' if start else '['}{piece[1:-1]}"
            yield "]"
        else:
            yield _dump(value)
    yield "}" if document else "{}"


# -- reading ----------------------------------------------------------------------------------------------------------


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
    graph = _mapping(_parse(document), "the graph")
    check_size(graph, max_nodes, max_edges)
    np_shape = keep_mode and _number(graph, "is_np_shape") not in (None, 0)
    return _Reader(maker, _version(graph), {NP_SHAPE: "True"} if np_shape else {}).read(graph)


def check_size(graph: Mapping[str, Any], max_nodes: int | None, max_edges: int | None) -> None:
    """LimitError when the graph has more nodes than it may, or its nodes and heads more inputs together.

    Those of its subgraphs count. It looks at the lengths of lists alone; whatever is no list of the right kind passes,
    for `read` to refuse.
    """
    count = edges = 0
    graphs: list[Any] = [graph]
    while graphs:
        inner = graphs.pop()
        nodes = inner.get("nodes") if isinstance(inner, Mapping) else None
        if not isinstance(nodes, list):
            continue
        count += len(nodes)
        if max_nodes is not None and count > max_nodes:
            raise LimitError(f"the graph has {count} nodes: expected at most {max_nodes}")
        lists = [inner.get("heads")]
        for node in nodes:
            if isinstance(node, Mapping):
                lists.append(node.get("inputs"))
                subgraphs = node.get("subgraphs")
                graphs += subgraphs if isinstance(subgraphs, list) else ()
        edges += sum(len(entries) for entries in lists if isinstance(entries, list))
        if max_edges is not None and edges > max_edges:
            raise LimitError(f"the graph's nodes and heads have {edges} inputs together: expected at most {max_edges}")


def _parse(document: Any) -> Any:
    if not isinstance(document, str | bytes | bytearray):
        return document
    try:
        return json.loads(document)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"the graph is not JSON: {error}") from None


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise GraphError(f"{what}: expected a JSON object, got {_kind(value)}")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise GraphError(f"{what}: expected a JSON array, got {_kind(value)}")
    return list(value)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


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
        raise GraphError(f'attrs.{key}: expected ["int", number], got {entry!r}')
    return int(number)


class _Reader(Generic[N]):
    """The nodes of a file so far."""

    def __init__(self, maker: Maker[N], version: int, marks: Mapping[str, str], level: int = 0) -> None:
        self.nodes: list[N] = []
        self._names: list[str] = []
        self._maker = maker
        self._version = version
        self._marks = marks
        self._level = level

    def read(self, graph: Mapping[str, Any]) -> list[tuple[N, int]]:
        """The heads of a graph whose nodes come now."""
        listed = _list(graph.get("nodes"), "nodes")
        for i, entry in enumerate(listed):
            self.add(_mapping(entry, f"nodes[{i}]"))
        count = len(self.nodes)
        heads = _list(graph.get("heads"), "heads")
        if not heads:
            raise GraphError("heads: expected at least one, got none")
        for i, number in enumerate(_list(graph.get("arg_nodes", []), "arg_nodes")):
            if not _is_int(number) or not 0 <= number < count:
                raise GraphError(f"arg_nodes[{i}]: expected a node number below {count}, got {number!r}")
        return [self.entry(head, f"heads[{i}]") for i, head in enumerate(heads)]

    def entry(self, value: Any, what: str) -> tuple[N, int]:
        """`[node, output, version]`, or what older versions wrote."""
        parts = [value] if _is_int(value) else value
        if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= 3 or not all(map(_is_int, parts)):
            raise GraphError(f"{what}: expected [node, output, version], got {str(value)[:80]!r}")
        number, output = parts[0], parts[1] if len(parts) > 1 else 0
        if not 0 <= number < len(self.nodes):
            raise GraphError(f"{what}: expected a node number below {len(self.nodes)}, got {number}")
        node = self.nodes[number]
        count = self._maker.outputs(node)
        if not 0 <= output < count:
            raise GraphError(f"{what}: expected an output of {self._names[number]!r} below {count}, got {output}")
        return node, output

    def add(self, entry: Mapping[str, Any]) -> None:
        """Read the next node."""
        name, kind, number = entry.get("name"), entry.get("op"), len(self.nodes)
        if not isinstance(name, str) or not isinstance(kind, str):
            raise GraphError(f"nodes[{number}]: expected op and name as strings, got {kind!r} and {name!r}")
        attrs = {**_attributes(entry, name), **self._marks}
        source = attrs.pop(SOURCE, None)
        subgraphs = self._subgraphs(entry, name, kind, source)
        listed = _list(entry.get("inputs", []), f"{name}.inputs")
        for value in listed:
            first = value[0] if isinstance(value, list | tuple) and value else value
            if _is_int(first) and first >= number:
                raise GraphError(
                    f"{name}: input {first} is not before node {number} in the list: the graph has a cycle or is out "
                    "of order"
                )
        inputs = [self.entry(value, f"{name}.inputs[{k}]") for k, value in enumerate(listed)]
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

    def _subgraphs(
        self, entry: Mapping[str, Any], name: str, kind: str, source: str | None
    ) -> list[list[tuple[N, int]]]:
        """The heads of the graphs inside a node."""
        listed = _list(entry.get("subgraphs") or [], f"{name}.subgraphs")
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
            heads.append(_Reader(self._maker, self._version, self._marks, self._level + 1).read(graph))
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
        own, handed = _split(attrs)
        if self._version < 905 and kind in ("argmax", "argmin") and own.get("axis") == "-1":
            del own["axis"]
        call = self._maker.call(kind, name, own, subgraphs)
        names = call.inputs
        if self._version < 900:
            implied = (f"{name}_{argument}" if name else argument for argument in names[len(inputs) :])
            inputs += [(self._maker.variable(argument, {}, None), 0) for argument in implied]
        if len(inputs) < len(names):
            missing = ", ".join(names[len(inputs) :])
            raise GraphError(f"expected {len(names)} inputs, got {len(inputs)}: {missing} missing")
        if len(inputs) > len(names):
            raise GraphError(f"expected {len(names)} inputs ({', '.join(names) or 'none'}), got {len(inputs)}")
        if self._version < 904:
            for k in call.aux:
                if names[k] in STATE_INITIALIZERS:
                    self._maker.annotate(inputs[k][0], "__init__", STATE_INITIALIZERS[names[k]])
        left = {key: value for key, value in handed.items() if not self._hand_down(key, value, names, inputs)}
        if left:  # then they are the operator's, or nobody's
            own |= left
            call = self._maker.call(kind, name, own, subgraphs)
        return self._maker.node(call, name, own, inputs, source)

    def _hand_down(self, key: str, value: str, names: Sequence[str], inputs: list[tuple[N, int]]) -> bool:
        """Give `weight_lr_mult` on an operator to its variable `weight`, as `__lr_mult__`."""
        for hidden in LEGACY_KEYS:
            argument = key.removesuffix(f"_{hidden}")
            if argument != key and argument in names:
                return self._maker.annotate(inputs[names.index(argument)][0], f"__{hidden}__", value)
        return False


def _attributes(entry: Mapping[str, Any], name: str) -> dict[str, str]:
    """`attrs`, or what older versions called `attr` (the user's) and `param` (the operator's)."""
    merged: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        for attr, value in _mapping(entry.get(key) or {}, f"{name}.{key}").items():
            if not isinstance(value, str):
                raise GraphError(f"{name}: attribute {attr!r}: expected a string, got {_kind(value)}")
            merged[attr] = value
    return merged


def _split(attrs: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """An operator's own attributes, and those that old files gave it for its variables."""
    own: dict[str, str] = {}
    handed: dict[str, str] = {}
    for key, value in attrs.items():
        if not key.endswith(LEGACY_KEYS) or is_hidden(key):
            own[key] = value
        elif key in LEGACY_KEYS:
            own.setdefault(f"__{key}__", value)
        else:
            handed[key] = value
    return own, handed
