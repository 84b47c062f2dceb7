"""A picture as SVG, whose colours follow the reader's: light or dark."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from .look import BoxLook
from .picture import Line, Picture, Rect, Text, paints

__all__ = ["FONTS", "FURTHER_FONTS", "svg"]

FONTS = "Helvetica, Arial, 'Liberation Sans', sans-serif"
FURTHER_FONTS = "'DejaVu Sans Condensed', 'DejaVu Sans', 'Noto Sans', Roboto, Ubuntu, 'Open Sans', FreeSans, 'Segoe UI'"
"""Fonts to try, narrow ones first, for programs that do not replace a missing font."""


def svg(picture: Picture, fonts: str = FONTS) -> str:
    """The picture as an SVG document, without scripts or references to anything else.

    A group that stands for nodes of a graph has their numbers in its attribute `data-nodes`, that which is drawn first.

    Args:
        picture: what is drawn.
        fonts: the families of its letters, as a style sheet lists them; the first that is there is taken.
    """
    width, height = round(picture.width), round(picture.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="opbox" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" style="max-width:100%;height:auto" role="img" aria-label={quoteattr(picture.description)}>',
        f"<title>{escape(picture.title)}</title>",
        f"<style>{_style(picture.look, fonts)}</style>",
        f'<rect class="o-ground" width="{width}" height="{height}" rx="8"/>',
    ]
    for group in picture.groups:
        shapes = "".join(_shape(shape) for shape in group.shapes)
        nodes = f' data-nodes="{" ".join(map(str, group.nodes))}"' if group.nodes else ""
        if group.tip:
            lines.append(f"<g{nodes}><title>{escape(group.tip)}</title>{shapes}</g>")
        elif shapes:
            lines.append(f"<g{nodes}>{shapes}</g>")
    return "\n".join([*lines, "</svg>", ""])


def _style(look: BoxLook, fonts: str) -> str:
    if look.font:
        fonts = f"'{look.font.translate({ord(c): None for c in CSS_SIGNS})}', {fonts}"
    dark = f"@media (prefers-color-scheme:dark){{{_rules(look, dark=True)}}}"
    return f".opbox text{{font-family:{escape(fonts)}}}{_rules(look, dark=False)}{dark}"


HALOS = {"shape": "ground", "frame-text": "frame"}
"""Paints of texts that edges pass behind, with the colour around their letters."""
CSS_SIGNS = "\"'\\;:{}<>()@/*\n"
"""Characters with a meaning in CSS that no colour or font name needs."""


def _rules(look: BoxLook, *, dark: bool) -> str:
    rules = []
    table = paints(look, dark=dark)
    for name, paint in table.items():
        rule = f"fill:{_color(paint.fill)}"
        if paint.line is not None:
            rule += f";stroke:{_color(paint.line)};stroke-width:{paint.width:g}"
            rule += ";stroke-dasharray:4 3" if paint.dashed else ""
        if name in HALOS:
            rule += f";stroke:{table[HALOS[name]].fill};stroke-width:3;paint-order:stroke"
        rules.append(f".opbox .o-{name}{{{rule}}}")
    return "".join(rules)


def _color(color: str | None) -> str:
    """A colour as a style sheet may have it: a name or a number, and nothing that ends the rule."""
    return "none" if color is None else color.translate({ord(c): None for c in CSS_SIGNS})


def _shape(shape: Rect | Line | Text) -> str:
    if isinstance(shape, Rect):
        if shape.oval:
            rx, ry = shape.width / 2, shape.height / 2
            return (
                f'<ellipse class="o-{shape.paint}" cx="{shape.x + rx:.1f}" cy="{shape.y + ry:.1f}" rx="{rx:.1f}" '
                f'ry="{ry:.1f}"/>'
            )
        return (
            f'<rect class="o-{shape.paint}" x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" '
            f'height="{shape.height:.1f}" rx="{shape.radius:g}"/>'
        )
    if isinstance(shape, Line):
        path = "".join(kind + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) for kind, points in shape.parts)
        return f'<path class="o-{shape.paint}" d="{path}{"Z" if shape.closed else ""}"/>'
    anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
    spans = "".join(
        f'<tspan class="o-{paint}" font-size="{size:g}"{" font-weight=" + chr(34) + "600" + chr(34) if bold else ""}>'
        f"{escape(text)}</tspan>"
        for text, paint, size, bold in shape.spans
    )
    return f'<text x="{shape.x:.1f}" y="{shape.y:.1f}"{anchor} xml:space="preserve">{spans}</text>'
