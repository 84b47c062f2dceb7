"""A network in graphviz's language."""

from __future__ import annotations

from collections.abc import Mapping

from .look import FAMILY_COLORS
from .network import DrawnNetwork

__all__ = ["dot"]


def dot(network: DrawnNetwork, title: str, node_attrs: Mapping[str, str]) -> str:
    """The whole network as a digraph, with `node_attrs` at every node."""
    common = {"shape": "box", "style": "filled", "fontname": "Helvetica", **node_attrs}
    lines = [f"digraph {_quoted(title)} {{", f"\tnode [{_attributes(common)}]"]
    for number, vertex in enumerate(network.vertices):
        label = " ".join(part for part in (vertex.title, vertex.details) if part)
        attrs = {"label": label if vertex.op is None else f"{label}\n{vertex.name}"}
        if "fillcolor" not in common:
            attrs["fillcolor"] = FAMILY_COLORS[vertex.family][0][0]
        lines.append(f"\tn{number} [{_attributes(attrs)}]")
    for number, vertex in enumerate(network.vertices):
        for link in vertex.inputs:
            label = network.vertices[link.source].values.get(link.output, "")
            lines.append(f"\tn{link.source} -> n{number}" + (f" [{_attributes({'label': label})}]" if label else ""))
    return "\n".join([*lines, "}", ""])


def _attributes(attrs: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={_quoted(str(value))}" for key, value in attrs.items())


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
