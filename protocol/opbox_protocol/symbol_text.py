"""The layout of MXNet's symbol files: byte for byte as MXNet 1.9.1's own writer has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["text"]

_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def text(document: Mapping[str, Any]) -> str:
    """Return the text, for a file, of a document that `symbol_json.write` made."""
    lines = _graph(document)
    lines[-2] += ", "
    attrs = [f'"{key}": {json.dumps(value)}' for key, value in document["attrs"].items()]
    if len(attrs) == 1:
        lines.insert(-1, f'  "attrs": {{{attrs[0]}}}')
    else:
        lines[-1:] = ['  "attrs": {', *_separated([" " * 4 + attr for attr in attrs]), "  }", "}"]
    return "\n".join(lines)


def _graph(document: Mapping[str, Any]) -> list[str]:
    """The lines of a graph, without its version."""
    nodes = document["nodes"]
    lines = ["{", '  "nodes": [']
    for i, node in enumerate(nodes):
        lines += ["    {", f'      "op": {_string(node["op"])}, ', f'      "name": {_string(node["name"])}, ']
        if "attrs" in node:
            lines += _object("attrs", node["attrs"])
        lines += ('      "inputs": ' + _array(node["inputs"], 6)).split("\n")
        if "subgraphs" in node:
            lines[-1] += ", "
            lines.append('      "subgraphs": [')
            for k, subgraph in enumerate(node["subgraphs"]):
                lines += [" " * 8 + line for line in _graph(subgraph)]
                lines[-1] += ", " if k + 1 < len(node["subgraphs"]) else ""
            lines.append("      ]")
        lines.append("    }" + (", " if i + 1 < len(nodes) else ""))
    lines.append("  ], ")
    arrays = [f'  "{key}": {_array(document[key], 2)}' for key in ("arg_nodes", "node_row_ptr", "heads")]
    return [*lines, *", \n".join(arrays).split("\n"), "}"]


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
