"""Shapes of images: (height, width, channel), or with a batch in front."""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError

from ..infer import Shape, ShapeList, show_shape
from ..node import Entry, Node

__all__ = ["colour_image", "hand_on", "image_or_batch"]


def image_or_batch(ins: ShapeList) -> Shape:
    """The input's shape, of rank 3 or 4 when it is known."""
    return ins.rank(0, 3, 4)


def colour_image(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    """One image of 1 or 3 channels, and an output of its shape."""
    ins.rank(0, 3)
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None and shape[-1] not in (-1, 1, 3):
        message = f"expected an image (height, width, 1 or 3 channels), got {show_shape(shape)}"
        raise ShapeError(message, side="input", index=0)


def hand_on(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    """The gradient of what augments images: gdata = gout, whatever was drawn, as in MXNet."""
    return [ograds[0]]
