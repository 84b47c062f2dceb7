"""A picture as a PDF file of one page, in the light colours and Helvetica, which every reader has."""

from __future__ import annotations

import zlib

from .picture import Line, Picture, Rect, Text, paints
from .text import BOLD, text_width

__all__ = ["pdf"]

NAMED = {
    "white": "#ffffff",
    "black": "#000000",
    "red": "#ff0000",
    "green": "#008000",
    "blue": "#0000ff",
    "yellow": "#ffff00",
    "orange": "#ffa500",
    "gray": "#808080",
    "grey": "#808080",
    "lightblue": "#add8e6",
    "lightgrey": "#d3d3d3",
    "lightgray": "#d3d3d3",
    "pink": "#ffc0cb",
    "purple": "#800080",
}
ROUND = 0.5523
"""Length of the Bezier handles of a quarter circle, relative to its radius."""
POINTS = 0.75
"""Points per pixel."""


def pdf(picture: Picture) -> bytes:
    """The picture as a PDF file."""
    table = paints(picture.look, dark=False)
    commands = [f"{POINTS} 0 0 {-POINTS} 0 {picture.height * POINTS:.2f} cm"]
    for group in picture.groups:
        for shape in group.shapes:
            paint = table[shape.paint] if not isinstance(shape, Text) else table["text"]
            if isinstance(shape, Text):
                commands += _text(shape, {name: one.fill for name, one in table.items()})
                continue
            commands.append("q")
            fill, line = _color(paint.fill), _color(paint.line)
            if fill is not None:
                commands.append(f"{fill} rg")
            if line is not None:
                commands.append(f"{line} RG {paint.width:g} w {'[4 3] 0 d' if paint.dashed else '[] 0 d'}")
            commands += _rect(shape) if isinstance(shape, Rect) else _line(shape)
            closing = {(True, True): "B", (True, False): "f", (False, True): "S", (False, False): "n"}
            commands += [closing[fill is not None, line is not None], "Q"]
    return _file("\n".join(commands), picture.width * POINTS, picture.height * POINTS, picture.title)


def _color(color: str | None) -> str | None:
    """Red, green and blue from 0 to 1; what is no colour here is grey."""
    if color is None or color in ("none", "transparent"):
        return None
    digits = NAMED.get(color.lower(), color).lstrip("#")
    try:
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    except ValueError:
        parts = [0.9, 0.9, 0.9]
    return " ".join(f"{part:.3f}" for part in parts)


def _rect(shape: Rect) -> list[str]:
    x, y, w, h = shape.x, shape.y, shape.width, shape.height
    rx, ry = (w / 2, h / 2) if shape.oval else (min(shape.radius, w / 2, h / 2),) * 2
    a, b = rx * (1 - ROUND), ry * (1 - ROUND)
    corners = [
        (x + w - rx, y), (x + w - a, y, x + w, y + b, x + w, y + ry),
        (x + w, y + h - ry), (x + w, y + h - b, x + w - a, y + h, x + w - rx, y + h),
        (x + rx, y + h), (x + a, y + h, x, y + h - b, x, y + h - ry),
        (x, y + ry), (x, y + b, x + a, y, x + rx, y),
    ]  # fmt: skip
    parts = [f"{x + rx:.2f} {y:.2f} m"]
    parts += [" ".join(f"{v:.2f}" for v in corner) + (" l" if len(corner) == 2 else " c") for corner in corners]
    return [*parts, "h"]


def _line(shape: Line) -> list[str]:
    letters = {"M": "m", "L": "l", "C": "c"}
    parts = [f"{' '.join(f'{x:.2f} {y:.2f}' for x, y in points)} {letters[kind]}" for kind, points in shape.parts]
    return [*parts, "h"] if shape.closed else parts


def _text(shape: Text, fills: dict[str, str | None]) -> list[str]:
    # The widths here leave room for other fonts; Helvetica's own are a tenth less.
    widths = [text_width(text, size) / 1.1 * (BOLD if bold else 1) for text, _, size, bold in shape.spans]
    x = shape.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * sum(widths)
    commands = []
    for (text, paint, size, bold), width in zip(shape.spans, widths, strict=True):
        letters = text.translate(LETTERS).encode("cp1252", "replace")
        commands.append(
            f"BT {_color(fills[paint]) or '0 0 0'} rg /{'B' if bold else 'R'} {size:g} Tf "
            f"1 0 0 -1 {x:.2f} {shape.y:.2f} Tm <{letters.hex()}> Tj ET"
        )
        x += width
    return commands


LETTERS = str.maketrans({"→": "-", "−": "-", "÷": "÷"})


def _file(content: str, width: float, height: float, title: str) -> bytes:
    stream = zlib.compress(content.encode("ascii"))
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /%s /Encoding /WinAnsiEncoding >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width:.2f} {height:.2f}] /Contents 4 0 R "
            "/Resources << /Font << /R 5 0 R /B 6 0 R >> >> >>"
        ).encode(),
        f"<< /Length {len(stream)} /Filter /FlateDecode >>\nstream\n".encode() + stream + b"\nendstream",
        (font % "Helvetica").encode(),
        (font % "Helvetica-Bold").encode(),
        f"<< /Title <{title.encode('utf-16').hex()}> >>".encode(),
    ]
    body = b"%PDF-1.4\n"
    offsets = []
    for number, text in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n".encode() + text + b"\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>"
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n{trailer}\nstartxref\n{len(body)}\n%%EOF\n"
    return body + end.encode()
