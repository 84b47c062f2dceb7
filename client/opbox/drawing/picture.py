"""A drawing as shapes with named paints: what `svg` and `pdf` write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .labels import FAMILIES
from .layout import LABEL, Path, Placed, PlacedCard, PlacedFrame
from .look import DARK, FAMILY_COLORS, LIGHT, BoxLook
from .network import DrawnNetwork

__all__ = ["Group", "Line", "Paint", "Picture", "Rect", "Text", "paint", "paints"]

Point = tuple[float, float]
EDGE = 20.0
"""Margin of a picture in pixels."""


@dataclass(frozen=True)
class Paint:
    """Colours; None paints nothing."""

    fill: str | None = None
    line: str | None = None
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Rect:
    """A rectangle with round corners, or what fits into it as an ellipse."""

    x: float
    y: float
    width: float
    height: float
    radius: float
    paint: str
    oval: bool = False


@dataclass(frozen=True)
class Line:
    """A path: ("M" | "L", points of 1) or ("C", points of 3); `closed` for a filled one."""

    parts: tuple[tuple[str, tuple[Point, ...]], ...]
    paint: str
    closed: bool = False


@dataclass(frozen=True)
class Text:
    """Words side by side: (text, paint, size, bold), from `x` on, or up to `x` where `end` is set, or around it."""

    x: float
    y: float
    spans: tuple[tuple[str, str, float, bool], ...]
    anchor: str = "start"


@dataclass(frozen=True)
class Group:
    """Shapes that are one thing, with a tip for a pointer that rests on them.

    `nodes` are the numbers of the graph's nodes that they stand for, where these are known; the first one is drawn.
    """

    shapes: tuple[Rect | Line | Text, ...]
    tip: str = ""
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Picture:
    """All groups, from the back to the front."""

    width: float
    height: float
    title: str
    description: str
    groups: tuple[Group, ...]
    look: BoxLook


def paints(look: BoxLook, *, dark: bool) -> Mapping[str, Paint]:
    """The colours of every paint by name."""
    ground = DARK if dark else LIGHT
    table = {
        "ground": Paint(ground.ground),
        "edge": Paint(None, ground.edge, 1.2),
        "back": Paint(None, ground.edge, 1.2, True),
        "arrow": Paint(ground.edge),
        "frame": Paint(ground.inside, ground.frame, 1.0, True),
        "badge": Paint(ground.frame),
        "badge-text": Paint(ground.ground),
        "text": Paint(look.text or ground.text),
        "lesser": Paint(look.text or ground.lesser),
        "shape": Paint(ground.lesser),
        "frame-text": Paint(ground.text),
    }
    for family in (*FAMILIES, "input", "math"):
        fill, line = FAMILY_COLORS[family][dark]
        filled = look.filled and look.shape != "plaintext"
        line_color = None if look.shape == "plaintext" else look.line or line
        table[f"box-{family}"] = Paint(
            (look.fill or fill) if filled else None, line_color, look.line_width, look.dashed
        )
    return table


def paint(
    network: DrawnNetwork, placed: Placed, look: BoxLook, title: str, alike: Mapping[int, Sequence[int]]
) -> Picture:
    """The shapes of a drawing.

    Args:
        network: for the words.
        placed: the places.
        look: what the caller says of boxes.
        title: what the drawing is called.
        alike: the vertices that one stands for, as `boxes_of` returns them.
    """
    groups = [_frame(frame) for frame in placed.frames]
    groups += [Group(_line(path)) for path in placed.paths]
    groups += [Group((_frame_label(frame),)) for frame in placed.frames if frame.frame.label]
    groups.append(Group(tuple(Text(x, y, ((text, "shape", LABEL, False),)) for x, y, text in placed.labels)))
    for card in placed.cards:
        groups += _card(network, card, look, alike)
    operators = sum(vertex.op is not None for vertex in network.vertices)
    description = f"{title}: a network of {operators} operator{'' if operators == 1 else 's'}"
    size = (placed.width + 2 * EDGE, placed.height + 2 * EDGE)
    return Picture(*size, title, description, tuple(_moved(group) for group in groups), look)


def _card(network: DrawnNetwork, card: PlacedCard, look: BoxLook, alike: Mapping[int, Sequence[int]]) -> list[Group]:
    groups = []
    height = card.row_height
    for row, number in enumerate(card.card.rows):
        vertex = network.vertices[number]
        y = card.y + row * height
        single = len(card.card.rows) == 1
        round_shape = vertex.op is None or look.shape == "oval"
        radius = min(height, card.height) / 2 if round_shape and single else 4.0
        box = Rect(card.x, y, card.width, height, radius, f"box-{vertex.family}", look.shape == "oval" and single)
        middle = y + height / 2 + look.size * 0.35
        spans = [(vertex.title, "text", look.size, vertex.op is not None)]
        if vertex.details:
            spans.append((f" {vertex.details}", "text", look.size, False))
        name = card.names[number]
        shapes: list[Rect | Line | Text] = [box]
        if name and look.shape != "oval":
            shapes.append(Text(card.x + 9, middle, tuple(spans)))
            shapes.append(Text(card.x + card.width - 9, middle, ((name, "lesser", look.size - 2, False),), "end"))
        else:
            shapes.append(Text(card.x + card.width / 2, middle, tuple(spans), "middle"))
        nodes = (network.vertices[other].node for other in alike[number])
        groups.append(Group(tuple(shapes), vertex.tip, tuple(node for node in nodes if node is not None)))
    return groups


def _frame(frame: PlacedFrame) -> Group:
    count = f"× {frame.frame.count}"
    shapes: list[Rect | Line | Text] = [Rect(frame.x, frame.y, frame.width, frame.height, 8, "frame")]
    width = 10 + 7 * len(count)
    shapes.append(Rect(frame.x + frame.width - width - 6, frame.y + 5, width, 16, 8, "badge"))
    middle = frame.x + frame.width - width / 2 - 6
    shapes.append(Text(middle, frame.y + 17, ((count, "badge-text", 11, True),), "middle"))
    return Group(tuple(shapes), f"{frame.frame.count} blocks alike, of which the first is drawn")


def _frame_label(frame: PlacedFrame) -> Text:
    return Text(frame.x + 9, frame.y + 17, ((frame.frame.label, "frame-text", 11, False),))


def _line(path: Path) -> tuple[Rect | Line | Text, ...]:
    points = path.points
    if path.back:
        parts = _cornered(points)
    else:
        drawn: list[tuple[str, tuple[Point, ...]]] = [("M", (points[0],))]
        for (x0, y0), (x1, y1) in pairwise(points):
            if abs(x0 - x1) < 0.5:
                drawn.append(("L", ((x1, y1),)))
            elif y1 > y0:
                middle = (y0 + y1) / 2
                drawn.append(("C", ((x0, middle), (x1, middle), (x1, y1))))
            else:
                drawn.append(("L", ((x1, y1),)))
        parts = tuple(drawn)
    line = Line(parts, "back" if path.back else "edge")
    if not path.arrow:
        return (line,)
    x, y = points[-1]
    tip = (("M", ((x, y),)), ("L", ((x - 4, y - 7),)), ("L", ((x + 4, y - 7),)))
    return (line, Line(tip, "arrow", closed=True))


def _cornered(points: list[Point]) -> tuple[tuple[str, tuple[Point, ...]], ...]:
    """Horizontal and vertical lines with round corners."""
    parts: list[tuple[str, tuple[Point, ...]]] = [("M", (points[0],))]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        entry, leave = _towards(corner, before), _towards(corner, after)
        parts += [("L", (entry,)), ("C", (corner, corner, leave))]
    parts.append(("L", (points[-1],)))
    return tuple(parts)


def _towards(corner: Point, other: Point, radius: float = 6.0) -> Point:
    """The point of a line where its round corner begins."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = max(abs(dx), abs(dy), 1e-9)
    part = min(radius, length / 2) / length
    return (corner[0] + dx * part, corner[1] + dy * part)


def _moved(group: Group) -> Group:
    """A group further in by the edge around everything."""
    shapes: list[Rect | Line | Text] = []
    for shape in group.shapes:
        if isinstance(shape, Rect):
            r = shape
            shapes.append(Rect(r.x + EDGE, r.y + EDGE, r.width, r.height, r.radius, r.paint, r.oval))
        elif isinstance(shape, Line):
            moved = tuple((kind, tuple((x + EDGE, y + EDGE) for x, y in points)) for kind, points in shape.parts)
            shapes.append(Line(moved, shape.paint, shape.closed))
        else:
            shapes.append(Text(shape.x + EDGE, shape.y + EDGE, shape.spans, shape.anchor))
    return Group(tuple(shapes), group.tip, group.nodes)
