"""MXNet's symbol JSON, in and out.

    {"nodes": [{"op": "null", "name": "data", "attrs": {…}, "inputs": [[node, output, version], …]}, …],
     "arg_nodes": […], "node_row_ptr": […], "heads": [[node, output, version], …],
     "attrs": {"mxnet_version": ["int", 10901]}}

Files of older versions are upgraded as MXNet's `legacy_json_util.cc` does: `attr` and `param` for `attrs`, inputs and
heads without a version, hidden keys without underscores (`lr_mult`, and `weight_lr_mult` for the variable in that
place), inputs that were implied (an 0.8 BatchNorm has no auxiliary inputs), `axis=-1` of argmax.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from opbox_ops import registry
from opbox_ops.node import Entry, Node
from opbox_ops.params import is_hidden
from opbox_protocol.errors import GraphError, LimitError, MXNetError, UnsupportedError

from .ir import Graph

__all__ = ["content_hash", "dump", "load"]

MXNET_VERSION = 10901
"""What we write: the version whose operators these are."""

_HIDDEN = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")
"""Keys that old files wrote without underscores."""

_INIT = {"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'}
"""Initializers of auxiliary states, which files before 0.9.4 did not hold."""


def load(document: str | bytes | Mapping[str, Any], *, max_nodes: int | None = None) -> Graph:
    """Read a graph.

    Args:
        document: JSON text, or what it parses to.
        max_nodes: the greatest number of nodes, for untrusted input.

    Raises:
        GraphError: the text is no JSON, or the JSON no graph: wrong types, a cycle, a dangling index, equal names.
        LimitError: more than `max_nodes` nodes.
        UnknownOperatorError, ParamError: with the node's name and the user's line.
        UnsupportedError: the file has control-flow subgraphs.
    """
    read = _mapping(_parse(document), "the graph")
    nodes = _list(read.get("nodes"), "nodes")
    if max_nodes is not None and len(nodes) > max_nodes:
        raise LimitError(f"the graph has {len(nodes)} nodes: expected at most {max_nodes}")
    version = _version(read)
    made: list[Node] = []
    for i, each in enumerate(nodes):
        made.append(_node(_mapping(each, f"nodes[{i}]"), i, made, version))
    heads = _list(read.get("heads"), "heads")
    if not heads:
        raise GraphError("heads: expected at least one, got none")
    for i, each in enumerate(_list(read.get("arg_nodes", []), "arg_nodes")):
        if not _is_int(each) or not 0 <= each < len(made):
            raise GraphError(f"arg_nodes[{i}]: expected a node number below {len(made)}, got {each!r}")
    return Graph(tuple(_entry(each, f"heads[{i}]", made, len(made)) for i, each in enumerate(heads)))


def dump(graph: Graph) -> dict[str, Any]:
    """The graph as MXNet 1.9.1 writes it; `json.dumps` of it loads in MXNet."""
    nodes = []
    for node in graph.nodes:
        told: dict[str, Any] = {"op": node.op.name if node.op else "null", "name": node.name}
        if node.attrs:
            told["attrs"] = dict(node.attrs)
        aux = set(node.op.aux_indices(node.params)) if node.op else set()
        told["inputs"] = [[graph.index[e.node], e.index, int(i in aux)] for i, e in enumerate(node.inputs)]
        nodes.append(told)
    return {
        "nodes": nodes,
        "arg_nodes": [i for i, node in enumerate(graph.nodes) if node.op is None],
        "node_row_ptr": list(graph.row_ptr),
        "heads": [[graph.index[head.node], head.index, 0] for head in graph.heads],
        "attrs": {"mxnet_version": ["int", MXNET_VERSION]},
    }


def content_hash(document: str | bytes | Mapping[str, Any]) -> str:
    """sha256, in hexadecimal, of the document's canonical JSON: keys sorted, no spaces, UTF-8."""
    canonical = json.dumps(_parse(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


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


def _version(read: Mapping[str, Any]) -> int:
    told = _mapping(read.get("attrs", {}), "attrs").get("mxnet_version")
    if told is None:
        return 800
    number = told[1] if isinstance(told, list | tuple) and len(told) == 2 else told
    if not _is_int(number):
        raise GraphError(f'attrs.mxnet_version: expected ["int", number], got {told!r}')
    return int(number)


def _entry(told: Any, what: str, made: list[Node], limit: int) -> Entry:
    parts = [told] if _is_int(told) else told
    if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= 3 or not all(map(_is_int, parts)):
        raise GraphError(f"{what}: expected [node, output, version], got {str(told)[:80]!r}")
    number, output = parts[0], parts[1] if len(parts) > 1 else 0
    if not 0 <= number < limit:
        raise GraphError(f"{what}: expected a node number below {limit}, got {number}")
    node = made[number]
    if not 0 <= output < node.num_outputs:
        raise GraphError(f"{what}: expected an output of {node.name!r} below {node.num_outputs}, got {output}")
    return Entry(node, output)


def _node(read: Mapping[str, Any], i: int, made: list[Node], version: int) -> Node:
    name, kind = read.get("name"), read.get("op")
    if not isinstance(name, str) or not isinstance(kind, str):
        raise GraphError(f"nodes[{i}]: expected op and name as strings, got {kind!r} and {name!r}")
    if read.get("subgraphs"):
        raise UnsupportedError(f"{name} ({kind}): control-flow subgraphs are not supported")
    attrs = _attributes(read, name)
    told = _list(read.get("inputs", []), f"{name}.inputs")
    for each in told:
        first = each[0] if isinstance(each, list | tuple) and each else each
        if _is_int(first) and first >= i:
            raise GraphError(
                f"{name}: input {first} is not before node {i} in the list: the graph has a cycle or is out of order"
            )
    inputs = [_entry(each, f"{name}.inputs[{k}]", made, i) for k, each in enumerate(told)]
    source = attrs.get("__source__")
    if kind == "null":
        if inputs:
            raise GraphError(f"{name}: expected a variable to have no inputs, got {len(inputs)}")
        return Node(None, name, _upgrade_variable(attrs), source=source)
    try:
        return _call(kind, name, attrs, inputs, version, source)
    except MXNetError as error:
        raise error.at(name, kind, source) from None


def _attributes(read: Mapping[str, Any], name: str) -> dict[str, str]:
    """`attrs`, or what older versions called `attr` (the user's) and `param` (the operator's)."""
    merged: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        for attr, value in _mapping(read.get(key) or {}, f"{name}.{key}").items():
            if not isinstance(value, str):
                raise GraphError(f"{name}: attribute {attr!r}: expected a string, got {_kind(value)}")
            merged[attr] = value
    return merged


def _upgrade_variable(attrs: dict[str, str]) -> dict[str, str]:
    return {f"__{key}__" if key in _HIDDEN else key: value for key, value in attrs.items()}


def _call(kind: str, name: str, attrs: dict[str, str], inputs: list[Entry], version: int, source: str | None) -> Node:
    op = registry.get(kind)
    hidden = {key: value for key, value in attrs.items() if key.endswith(_HIDDEN) and not is_hidden(key)}
    own = {key: value for key, value in attrs.items() if key not in hidden}
    if version < 905 and op.name in ("argmax", "argmin") and own.get("axis") == "-1":
        del own["axis"]
    params = op.parse(own)
    names = op.input_names(params)
    aux = op.aux_indices(params)
    if len(inputs) < len(names) and version < 900:
        inputs = [*inputs, *(Entry(_implied(name, names[k])) for k in range(len(inputs), len(names)))]
    if len(inputs) < len(names):
        raise GraphError(f"expected {len(names)} inputs, got {len(inputs)}: {', '.join(names[len(inputs) :])} missing")
    if len(inputs) > len(names):
        raise GraphError(f"expected {len(names)} inputs ({', '.join(names) or 'none'}), got {len(inputs)}")
    if version < 904:
        for k in aux:
            if names[k] in _INIT and inputs[k].node.op is None:
                _annotate(inputs[k].node, "__init__", _INIT[names[k]])
    for key, value in hidden.items():
        if key in _HIDDEN:
            own.setdefault(f"__{key}__", value)
        elif not _hand_down(key, value, names, inputs):
            own[key] = value
    return Node(op, name, own, params, tuple(inputs), source=source)


def _implied(owner: str, argument: str) -> Node:
    return Node(None, f"{owner}_{argument}" if owner else argument, {})


def _hand_down(key: str, value: str, names: list[str], inputs: list[Entry]) -> bool:
    """Give `weight_lr_mult` on an operator to its variable `weight`, as `__lr_mult__`."""
    for hidden in _HIDDEN:
        argument = key.removesuffix(f"_{hidden}")
        if argument != key and argument in names:
            node = inputs[names.index(argument)].node
            if node.op is None:
                _annotate(node, f"__{hidden}__", value)
                return True
    return False


def _annotate(variable: Node, key: str, value: str) -> None:
    """Add an attribute to a variable that this load has made; no graph holds it yet."""
    assert isinstance(variable.attrs, dict)
    variable.attrs.setdefault(key, value)
