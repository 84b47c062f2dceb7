"""A symbol's file format: MXNet's, in and out, byte for byte as MXNet 1.9.1 writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opbox_protocol.errors import MXNetError

from .. import _schema
from ..operator.saved import operator_of
from .node import Entry, Node, ordered

__all__ = ["document", "parse", "text"]

VERSION = 10901
_OLD_KEYS = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")
_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def document(heads: Sequence[Entry], *, sources: bool = False) -> dict[str, Any]:
    """The graph as a JSON object.

    Args:
        heads: the outputs.
        sources: add the user's lines as `__source__`, for the engine's messages; files do not have them.
    """
    nodes = ordered(heads)
    number = {id(node): i for i, node in enumerate(nodes)}
    versions: dict[int, int] = {}
    told: list[dict[str, Any]] = []
    pointers = [0]
    for node in nodes:
        each: dict[str, Any] = {"op": node.op.name if node.op is not None else "null", "name": node.name}
        attrs = dict(sorted(node.attrs.items()))
        if sources and node.source:
            attrs["__source__"] = node.source
        if attrs:
            each["attrs"] = attrs
        written = node.aux()
        inputs = []
        for i, (child, index) in enumerate(node.inputs):
            if i in written:
                versions[id(child)] = versions.get(id(child), 0) + 1
            inputs.append([number[id(child)], index, versions.get(id(child), 0)])
        each["inputs"] = inputs
        told.append(each)
        pointers.append(pointers[-1] + node.num_outputs())
    return {
        "nodes": told,
        "arg_nodes": [i for i, node in enumerate(nodes) if node.op is None],
        "node_row_ptr": pointers,
        "heads": [[number[id(node)], index, 0] for node, index in heads],
        "attrs": {"mxnet_version": ["int", VERSION]},
    }


def text(heads: Sequence[Entry]) -> str:
    """The graph as MXNet's own writer lays it out."""
    told = document(heads)
    lines = ["{", '  "nodes": [']
    for i, node in enumerate(told["nodes"]):
        lines += ["    {", f'      "op": {_string(node["op"])}, ', f'      "name": {_string(node["name"])}, ']
        if "attrs" in node:
            lines += _object("attrs", node["attrs"])
        lines.append('      "inputs": ' + _array(node["inputs"], 6))
        lines.append("    }" + (", " if i + 1 < len(told["nodes"]) else ""))
    lines.append("  ], ")
    lines += [f'  "{key}": {_array(told[key], 2)}, ' for key in ("arg_nodes", "node_row_ptr", "heads")]
    lines.append(f'  "attrs": {{"mxnet_version": ["int", {VERSION}]}}')
    return "\n".join([*lines, "}"])


def _string(value: str) -> str:
    return f'"{value.translate(_ESCAPES)}"'


def _object(key: str, attrs: Mapping[str, str]) -> list[str]:
    pairs = [f"{_string(name)}: {_string(value)}" for name, value in attrs.items()]
    if len(pairs) == 1:
        return [f'      "{key}": {{{pairs[0]}}}, ']
    return [f'      "{key}": {{', *_separated([" " * 8 + pair for pair in pairs]), "      }, "]


def _array(values: Sequence[Any], indent: int) -> str:
    parts = [json.dumps(value) for value in values]
    if len(parts) <= 10:
        return "[" + ", ".join(parts) + "]"
    inner = "\n".join(_separated([" " * (indent + 2) + part for part in parts]))
    return f"[\n{inner}\n{' ' * indent}]"


def _separated(lines: list[str]) -> list[str]:
    return [line + ", " for line in lines[:-1]] + lines[-1:]


def parse(document: str, operators: Mapping[str, Any] | None = None) -> list[Entry]:
    """The heads of the graph in a JSON text, of any version of MXNet.

    Args:
        document: the text.
        operators: those of the user's own that came with it, by the names of their nodes.

    Raises:
        MXNetError: it is not JSON, or not a graph; UnknownOperatorError, ParamError for what its nodes say.
    """
    try:
        read = json.loads(document)
        nodes, heads = read["nodes"], read["heads"]
        version = int(read.get("attrs", {}).get("mxnet_version", ["int", 800])[1])
        made: list[Node] = []
        for each in nodes:
            made.append(_node(each, made, version, operators))
        if not heads:
            raise MXNetError("symbol JSON: expected at least one head, got none")
        return [_entry(each, made) for each in heads]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise MXNetError(
            f"symbol JSON: expected a graph as MXNet saves it, got {type(error).__name__}: {error}"
        ) from None


def _entry(told: Any, made: list[Node]) -> Entry:
    parts = [told] if isinstance(told, int) else told
    if parts[0] < 0:
        raise ValueError(f"node number {parts[0]}")
    return made[parts[0]], parts[1] if len(parts) > 1 else 0


def _node(told: Mapping[str, Any], made: list[Node], version: int, operators: Mapping[str, Any] | None = None) -> Node:
    attrs: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        attrs.update(told.get(key) or {})
    inputs = [_entry(each, made) for each in told.get("inputs", [])]
    name = told["name"]
    source = attrs.pop("__source__", None)
    if told["op"] == "null":
        return Node(None, name, {f"__{k}__" if k in _OLD_KEYS else k: v for k, v in attrs.items()}, [], source)
    op = operator_of(told["op"], attrs, name, operators) or _schema.get(told["op"])
    own: dict[str, str] = {}
    handed: dict[str, str] = {}
    for key, value in attrs.items():
        if key in op.params or key.startswith("__") or not key.endswith(_OLD_KEYS):
            own[key] = value
        elif key in _OLD_KEYS:
            own[f"__{key}__"] = value
        else:
            handed[key] = value
    if version < 905 and op.name in ("argmax", "argmin") and own.get("axis") == "-1":
        del own["axis"]
    names = op.input_names(own)
    if version < 900:
        implied = (f"{name}_{each}" if name else each for each in names[len(inputs) :])
        inputs += [(Node(None, each, {}, []), 0) for each in implied]
    node = Node(op, name, own, inputs, source)
    if version < 904:
        _initialize(node, names)
    _hand_down(node, names, handed)
    op.check(own, name)
    return node


def _initialize(node: Node, names: list[str]) -> None:
    """Initializers of auxiliary states, which old files do not hold."""
    for i in node.aux():
        initial = AUX_INIT.get(names[i])
        if initial is not None and node.inputs[i][0].op is None:
            node.inputs[i][0].attrs.setdefault("__init__", initial)


def _hand_down(node: Node, names: list[str], handed: Mapping[str, str]) -> None:
    """Old files gave `weight_lr_mult` to the operator; it is the variable's `__lr_mult__`."""
    for key, value in handed.items():
        for hidden in _OLD_KEYS:
            argument = key.removesuffix(f"_{hidden}")
            if argument != key and argument in names:
                node.inputs[names.index(argument)][0].attrs.setdefault(f"__{hidden}__", value)
                break
        else:
            node.attrs[key] = value


AUX_INIT = {"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'}
"""The initializers that MXNet gives to automatically made auxiliary states."""
