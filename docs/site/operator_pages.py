"""The pages of operators, each with its formula, shapes, parameters and an example, and the index of all."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from docs.make_operators_page import FAMILIES, agreement, compared, grouped, parameter, slots

from opbox_ops import registry
from opbox_ops.infer import show_shape
from opbox_ops.node import Entry, Node

from . import examples

__all__ = ["index", "page"]

_SPECIAL = re.compile(r"([\\*_<>|`\[\]])")


def page(name: str) -> str:
    """The page of one operator, in Markdown."""
    op = registry.get(name)
    lines = [f"---\ntitle: {name}\n---\n", f"# `{name}`", "", _prose(op.doc), ""]
    if op.aliases:
        lines += ["Also " + ", ".join(f"`{alias}`" for alias in op.aliases) + ".", ""]
    lines += [f"`mx.{examples.face(name)}` on arrays, `mx.{_symbol(name)}` in a network.", ""]
    lines += [f"**Inputs:** {slots(op.inputs, op.params)}. **Outputs:** {slots(op.outputs, op.params)}.", ""]
    lines += _formula(op)
    lines += _shapes(name)
    fields = [parameter(key, field) for key, field in op.params.model_fields.items() if not field.exclude]
    if fields:
        lines += ["## Parameters", "", *fields, ""]
    example = examples.example(name)
    lines += ["## Example", "", "```python", example.code.rstrip(), "```", "", "It prints", ""]
    lines += ["```text", example.output.rstrip(), "```", ""]
    row = agreement().get(name)
    if row is not None:
        lines += ["## Beside MXNet", "", compared(row), ""]
    return "\n".join(lines)


def index() -> str:
    """The catalogue: a table for each family, with a line for each operator that leads to its page."""
    groups = grouped()
    lines = [
        "# Operators",
        "",
        f"{sum(map(len, groups.values()))} operators. The names, arguments and defaults are MXNet 1.9.1's; in Python "
        "an operator is `mx.sym.<name>` and `mx.nd.<name>`, and over HTTP `GET /v1/ops/<name>` tells the same as JSON. "
        "**∇** marks operators with a gradient. Every page has the formula, shapes, parameters and an example.",
        "",
    ]
    for family, ops in groups.items():
        lines += [f"## {FAMILIES.get(family, family)}", "", "| operator | | |", "|---|---|---|"]
        for op in ops:
            gradient = "∇" if op.get_attr("FGradient") is not None else ""
            lines.append(f"| [`{op.name}`](operators/{op.name}.md) | {gradient} | {_prose(op.doc)} |")
        lines.append("")
    return "\n".join(lines)


def _symbol(name: str) -> str:
    face = examples.face(name)
    return f"sym.{face.removeprefix('nd.')}"


def _prose(text: str) -> str:
    """Text in which nothing but `code` means anything to Markdown."""
    parts = re.split(r"(`[^`\n]+`)", text)
    return "".join(part if i % 2 else _SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))


def _formula(op: registry.Op) -> list[str]:
    """What is computed: the formulas as they are run, and what the file of the operator says of all that are in it."""
    lines = []
    formulas = [*_forward(op), *_gradient(op)]
    if formulas:
        lines += ["```text", *formulas, "```", ""]
    module = sys.modules[registry.module(op.name)]
    first, _, rest = (module.__doc__ or "").strip().partition("\n\n")
    # What the file of a table of formulas says is for those who add a row.
    if not (formulas and hasattr(module, "TABLE")) and (rest or not formulas):
        if " ".join(first.split()) != op.doc:
            lines += [_prose(first), ""]
        lines += [_markdown(rest), ""] if rest else []
    return ["## Formula", "", *(lines or [_prose(op.doc), ""])]


def _markdown(text: str) -> str:
    """A docstring in Markdown: paragraphs that are indented or set in columns stay as they are; others are prose."""
    blocks = []
    for block in text.split("\n\n"):
        body, columns = textwrap.dedent(block).strip("\n"), re.search(r"\S {2,}\S", block)
        if block.startswith("    ") or columns:
            blocks.append(f"```text\n{body}\n```")
        else:
            start, _, indented = block.partition("\n    ")
            blocks.append(_prose(start))
            if indented:
                blocks.append(f"```text\n{textwrap.dedent('    ' + indented)}\n```")
    return "\n\n".join(blocks)


def _call(op: registry.Op) -> Node | None:
    """A node that calls the operator as the first row of the table does, on variables."""
    cases = examples.rows(op.name)
    if not cases:
        return None
    params = op.parse(dict(cases[0].attrs))
    inputs = tuple(Entry(Node(None, name)) for name in cases[0].inputs)
    return Node(op, "out", {}, params, inputs)


def _forward(op: registry.Op) -> list[str]:
    node = _call(op)
    if node is None or op.get_attr("FExpression") is None:
        return []
    names = {id(entry.node): entry.node.name for entry in node.inputs}
    outputs = op.output_names(node.params)
    return _lines(node, names, outputs if len(outputs) > 1 else ["out"], "states")


def _gradient(op: registry.Op) -> list[str]:
    """The formulas of the gradients of the inputs, where they are formulas."""
    node, rule = _call(op), op.get_attr("FGradient")
    if node is None or rule is None or op.get_attr("FExpression") is None:
        return []
    heads = [Entry(Node(None, f"g{name}" if node.num_outputs > 1 else "gout")) for name in op.output_names(node.params)]
    try:
        gradients = rule(node, heads)
    except Exception:  # a gradient that this call does not have
        return []
    names = {id(entry.node): entry.node.name for entry in (*node.inputs, *heads)} | {id(node): "out"}
    lines = []
    for entry, gradient in zip(node.inputs, gradients, strict=False):
        if gradient is not None and gradient.node.op is not None and gradient.node.op.get_attr("FExpression"):
            outputs = [""] * gradient.node.num_outputs
            outputs[gradient.index] = f"g{entry.node.name}"
            lines += _lines(gradient.node, names, outputs, "")
    return lines


def _lines(node: Node, names: Mapping[int, str], outputs: list[str], states: str) -> list[str]:
    """The formulas of a node, with the names of what it reads; a name of "" leaves the output out."""
    assert node.op is not None
    real = np.dtype(np.float32)
    try:
        formulas = node.op.get_attr("FExpression")(node.params, [real] * len(node.inputs), [real] * node.num_outputs)
    except Exception:  # types that this operator does not take
        return []
    if formulas is None:
        return []
    meanings = {
        letter: names.get(id(entry.node), letter) for letter, entry in zip(formulas.inputs, node.inputs, strict=False)
    }
    fields = {name: getattr(node.params, name) for name in node.op.params.model_fields}
    for key, value in formulas.numbers.items():
        same = (name for name, field in fields.items() if isinstance(field, int | float) and field == value)
        meanings[key] = key if key in fields else next(same, f"{value:g}")

    def written(text: str) -> str:
        return re.sub(r"\b[A-Za-z_]\w*\b(?!\()", lambda match: meanings.get(match[0], match[0]), text)

    lines = []
    if states:
        lines += [f"{node.inputs[i].node.name} = {written(row.text)}" for i, row in formulas.states.items()]
    return lines + [
        f"{name} = {written(row.text)}" for name, row in zip(outputs, formulas.outputs, strict=False) if name
    ]


def _shapes(name: str) -> list[str]:
    table = examples.shapes(name)
    if not table:
        return []
    lines = ["## Shapes", "", "| parameters | inputs | outputs |", "|---|---|---|"]
    for attrs, ins, outs in table:
        said = ", ".join(f"{key}={value}" for key, value in attrs.items()) or "—"
        cells = [said, _several(ins), _several(outs)]
        lines.append("| " + " | ".join(_prose(cell) for cell in cells) + " |")
    return [*lines, ""]


def _several(shapes: list[tuple[Any, ...]]) -> str:
    shown = [show_shape(shape) for shape in shapes[:6]]
    return ", ".join([*shown, "…"] if len(shapes) > 6 else shown) or "—"
