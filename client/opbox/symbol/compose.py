"""Making symbols: calling an operator, and putting symbols in the place of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opbox_protocol.collector import collection_paused
from opbox_protocol.errors import MXNetError, ParamError
from opbox_protocol.mxnet import attribute_text

from .. import _schema, attribute
from .. import name as naming
from ..base import source_line
from .node import Entry, Node, copied, ordered

__all__ = ["create", "recompose"]


def create(
    op: _schema.Operator,
    hint: str,
    symbols: Sequence[Any],
    named: Mapping[str, Any],
    params: Mapping[str, Any],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> list[Entry]:
    """A call of an operator, as its visible outputs.

    Args:
        op: the operator.
        hint: what an automatic name starts with.
        symbols, named: its inputs by position or by name; those not given become variables.
        params: parameters and hidden attributes, of any type.
        name: the user's name.
        attr: hidden attributes beside those of the scope.

    Raises:
        ParamError: an unknown, missing or unfit parameter.
        MXNetError: too many inputs, or an input with several outputs.
    """
    scoped = attribute.current().get(attr)
    if op.count is not None and op.count not in params:
        params = {**params, op.count: op.counted(len(symbols) + len(named))}
    attrs: dict[str, str] = {}
    for key, value in (*scoped.items(), *params.items()):
        attrs[op.scoped(key) if key not in op.params else key] = attribute_text(value)
    name = naming.current().get(name, hint)
    op.check(attrs, name)
    names = op.input_names(attrs)
    for key in named:
        if key not in names:
            expected = ", ".join(names) or "none"
            raise ParamError(f"{name} ({op.name}): unknown input {key!r}: expected one of {expected}", node=name)
    if len(symbols) > len(names):
        raise MXNetError(
            f"{name} ({op.name}): expected at most {len(names)} inputs ({', '.join(names)}), got {len(symbols)}"
        )
    node = Node(op, name, attrs, [], source_line())
    for i, argument in enumerate(names):
        if i < len(symbols):
            entry = single(symbols[i], argument, node)
        elif argument in named:
            entry = single(named[argument], argument, node)
        else:
            entry = (Node(None, f"{name}_{argument}" if name else argument, dict(attrs), [], node.source), 0)
        initial = op.initial.get(argument)
        if initial is not None and entry[0].op is None:
            entry[0].attrs.setdefault("__init__", initial)
        node.inputs.append(entry)
    return [(node, i) for i in range(op.visible_outputs(attrs))]


def single(symbol: Any, argument: str, node: Node) -> Entry:
    """The only output of a symbol that is to be an input."""
    heads: list[Entry] = symbol._heads
    if len(heads) != 1:
        kind = node.op.name if node.op is not None else "symbol"
        raise MXNetError(
            f"{node.name} ({kind}): {argument}: expected a symbol with one output, got a tuple of {len(heads)}; "
            "take one by its index"
        )
    return heads[0]


@collection_paused()
def recompose(heads: Sequence[Entry], name: str | None, named: Mapping[str, Any]) -> list[Entry]:
    """A copy of a graph with symbols in the place of the variables that `named` names.

    Raises:
        MXNetError: the graph has no such variable.
    """
    root = heads[0][0]
    replaced = {key: single(value, key, root) for key, value in named.items()}
    known = [node.name for node in ordered(heads) if node.op is None]
    for key in named:
        if key not in known:
            raise MXNetError(f"compose: argument {key!r} not found: expected one of {', '.join(known)}")
    copies = copied(heads, replaced)
    if name:
        copies[0][0].name = name
    return copies
