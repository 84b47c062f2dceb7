"""Drawing of a symbol for a notebook, with the shapes that its variables were made with and what they determine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opbox_protocol.errors import MXNetError

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["mimebundle"]

LARGEST = 400
"""Maximum number of boxes of a drawing that a notebook shows by itself."""


def mimebundle(symbol: Symbol) -> dict[str, str]:
    """The symbol's forms for a notebook by media type: the text alone where the network is too large to be drawn."""
    from ..drawing import draw

    forms = {"text/plain": repr(symbol)}
    try:
        forms["image/svg+xml"] = draw(
            symbol._nodes(), symbol._heads, _shapes(symbol), title=symbol.name or "group", largest=LARGEST
        ).svg
    except MXNetError as error:
        forms["text/plain"] += f" ({error})"
    return forms


def _shapes(symbol: Symbol) -> dict[str, str]:
    """The known shapes as text, by outputs' names; none if no variable was made with one, or no engine answers."""
    from .. import inference
    from ..drawing.labels import dims_text

    if not any(node.op is None and "__shape__" in node.attrs for node in symbol._nodes()):
        return {}
    internals = symbol.get_internals()
    try:
        _, shapes, _ = inference.infer_shape(internals, True, (), {})
    except (MXNetError, OSError):
        return {}
    known = zip(internals.list_outputs(), shapes or (), strict=False)
    return {name: dims_text([d or "?" for d in dims]) for name, dims in known if dims}
