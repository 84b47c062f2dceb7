"""Sizes, colours and fonts of a drawing, and what a caller may say about its boxes (`node_attrs`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .text import BOLD, text_width

__all__ = ["DARK", "FAMILY_COLORS", "LIGHT", "BoxLook", "row_width"]

# Fill, line and text of a family's boxes, on a light ground and on a dark one.
FAMILY_COLORS: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "input": (("#eef1f4", "#8b98a5"), ("#2c333a", "#8b98a5")),
    "layer": (("#d7e5fb", "#4a7fd0"), ("#1d3a63", "#6ea2ee")),
    "norm": (("#e7dffb", "#8566cf"), ("#3a2d63", "#a78bf0")),
    "activation": (("#fdeac4", "#c48a13"), ("#574113", "#e0ae44")),
    "pool": (("#d3f0e4", "#2f9a74"), ("#174a39", "#52c39b")),
    "shape": (("#e6e6e6", "#8a8a8a"), ("#3b3b3b", "#9c9c9c")),
    "math": (("#dcf0f5", "#3a93aa"), ("#17444f", "#5fb6cc")),
    "loss": (("#fbdcd9", "#cd5c52"), ("#5c2622", "#ee8a81")),
    "own": (("#fbdcef", "#c4549b"), ("#5a2146", "#e884c2")),
}


@dataclass(frozen=True)
class Ground:
    """Colours of what is no box: the ground, texts, lesser texts, edges, frames and what is inside them."""

    ground: str
    text: str
    lesser: str
    edge: str
    frame: str
    inside: str


LIGHT = Ground("#ffffff", "#1c2127", "#5c6670", "#7a858f", "#9aa5b0", "#f6f8fa")
DARK = Ground("#15191e", "#eceff2", "#a9b3bd", "#8d98a3", "#67727d", "#1c2229")


@dataclass(frozen=True)
class BoxLook:
    """Style of boxes, by graphviz's attribute names.

    Attributes:
        shape: "box", "oval" (with "ellipse" and "circle") or "plaintext".
        fill, line, text: colours of all boxes, in the place of their families'.
        font: a font family, before the usual ones.
        size: of the letters, in pixels.
        line_width: of the boxes' border, in pixels.
        dashed, filled: whether the border is dashed, and the box filled.
        width, height: of a box at least (exactly, with `fixed`), in pixels.
    """

    shape: str = "box"
    fill: str | None = None
    line: str | None = None
    text: str | None = None
    font: str | None = None
    size: float = 12.0
    line_width: float = 1.0
    dashed: bool = False
    filled: bool = True
    width: float = 0.0
    height: float = 0.0
    fixed: bool = False

    @staticmethod
    def of(attrs: Mapping[str, str] | None) -> BoxLook:
        """The look that graphviz's attributes ask for; those of them that are not in this class change nothing.

        Raises:
            ValueError: a size that is no number.
        """
        attrs = {key: str(value) for key, value in (attrs or {}).items()}
        style = attrs.get("style", "filled")
        shape = {"ellipse": "oval", "circle": "oval", "none": "plaintext", "plain": "plaintext"}.get(
            attrs.get("shape", "box"), attrs.get("shape", "box")
        )
        return BoxLook(
            shape=shape,
            fill=attrs.get("fillcolor"),
            line=attrs.get("color"),
            text=attrs.get("fontcolor"),
            font=attrs.get("fontname"),
            size=_number(attrs, "fontsize", 12.0),
            line_width=_number(attrs, "penwidth", 1.0),
            dashed="dashed" in style or "dotted" in style,
            filled="filled" in style,
            width=_number(attrs, "width", 0.0) * 72,
            height=_number(attrs, "height", 0.0) * 72,
            fixed=attrs.get("fixedsize", "false").lower() in ("true", "shape"),
        )


def _number(attrs: Mapping[str, str], key: str, default: float) -> float:
    try:
        value = float(attrs.get(key, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1000:
        raise ValueError(f"node_attrs: {key}: expected a number from 0 to 1000, got {attrs[key]!r}")
    return value


def row_width(title: str, details: str, name: str, size: float) -> float:
    """Pixels that the words of a row take, side by side."""
    width = text_width(title, size) * BOLD
    if details:
        width += text_width(details, size) + 7
    if name:
        width += text_width(name, size - 2) + 16
    return width
