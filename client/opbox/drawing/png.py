"""A picture as PNG, by resvg, which takes its letters from the fonts of this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

from opbox_protocol.errors import MXNetError

from ..base import user_level
from .picture import Picture
from .svg import FONTS, FURTHER_FONTS, svg

__all__ = ["png"]

ZOOM = 2
FAMILIES = FONTS.replace("sans-serif", FURTHER_FONTS)
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="16"><text y="12" font-family="%s">Aa</text></svg>'


def png(picture: Picture) -> bytes:
    """The picture as a PNG file of twice its size.

    Raises:
        MXNetError: the package that makes it is not installed.

    Warns:
        UserWarning: this machine has none of the fonts, so that the picture has no text.
    """
    try:
        from resvg_py import svg_to_bytes  # type: ignore[import-not-found,unused-ignore]  # optional
    except ImportError:
        raise MXNetError("png: needs resvg_py: pip install 'opbox[viz]', or write svg or pdf") from None
    if not _has_letters(svg_to_bytes, FAMILIES):
        warnings.warn(
            f"png: expected one of the fonts {FAMILIES}, got none, so the picture has no text: install one (on Debian: "
            "apt-get install fonts-dejavu-core), or write svg or pdf",
            stacklevel=user_level(),
        )
    return bytes(svg_to_bytes(svg_string=svg(picture, FAMILIES), zoom=ZOOM))


@cache
def _has_letters(render: Callable[..., bytes], families: str) -> bool:
    """Return whether one of the families is there: whether a text of them leaves anything on the picture."""
    return bytes(render(svg_string=PROBE % families)) != bytes(render(svg_string=PROBE % ""))
