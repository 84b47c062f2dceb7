"""Places a symbol's arrays on the contexts of its groups (`AttrScope(ctx_group=…)`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import MXNetError

from .base import value_text
from .context import Context
from .ndarray import NDArray

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["GROUP", "Placement"]

GROUP = "__ctx_group__"
"""The hidden attribute that names a node's group."""


class Placement:
    """The contexts of a symbol's variables and outputs.

    A variable is on the context of its group, or on the executor's; an operator on that of its group, or on that of its
    first input. An executor computes on one device, so only contexts of that device are told apart.

    Args:
        symbol: the graph.
        ctx: the executor's context.
        group2ctx: contexts by group; None places everything on `ctx`.

    Raises:
        AttributeError: `group2ctx` is no dict of contexts.
        MXNetError: a node's group has no context.

    Example:
        >>> Placement(net, mx.cpu(0), {"dev1": mx.cpu(1)}).variables["fc1_weight"]
        cpu(1)
    """

    def __init__(self, symbol: Symbol, ctx: Context, group2ctx: Any) -> None:
        self.ctx = ctx
        self.variables: dict[str, Context] = {}
        self.outputs: list[Context] = []
        if not group2ctx:
            return
        contexts = _checked(group2ctx)
        places: dict[int, Context] = {}
        for node in symbol._nodes():
            group = node.attrs.get(GROUP)
            if group is not None:
                if group not in contexts:
                    raise MXNetError(
                        f"group2ctx: expected a context for the group {group!r} of node {node.name!r}, got those of "
                        f"{', '.join(contexts)}"
                    )
                place = contexts[group]
            else:
                place = places[id(node.inputs[0][0])] if node.inputs else ctx
            places[id(node)] = place
            if node.op is None:
                self.variables[node.name] = place
        self.outputs = [places[id(node)] for node, _ in symbol._heads]

    def put(self, names: Sequence[str], arrays: Sequence[NDArray | None]) -> None:
        """Put new arrays of variables, or their gradients, which are on the executor's context, on the variables'."""
        if self.variables:
            for name, array in zip(names, arrays, strict=True):
                if array is not None:
                    self._move(array, self.variables.get(name, self.ctx))

    def put_outputs(self, arrays: Sequence[NDArray]) -> None:
        """Put an executor's outputs on their contexts."""
        for array, place in zip(arrays, self.outputs, strict=False):
            self._move(array, place)

    def _move(self, array: NDArray, place: Context) -> None:
        if place != self.ctx and place.device == self.ctx.device:
            array._session = place.session


def _checked(group2ctx: Any) -> Mapping[str, Context]:
    if not isinstance(group2ctx, Mapping):
        raise AttributeError(f"group2ctx: expected a dict of contexts by group, got {value_text(group2ctx)}")
    for group, context in group2ctx.items():
        if not isinstance(context, Context):
            raise AttributeError(f"group2ctx: {group}: expected a Context such as mx.cpu(1), got {value_text(context)}")
    return group2ctx
