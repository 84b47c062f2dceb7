"""Images from files and bytes, at other sizes, and with borders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..base import is_number, value_text
from ..file_errors import file_errors
from ..imaging import Image, library
from ..ndarray import NDArray
from .pixels import like, pixels_of, put_out, values_of

__all__ = ["copyMakeBorder", "imdecode", "imread", "imresize", "resized"]

_BORDERS = {1: "edge", 2: "symmetric", 3: "wrap", 4: "reflect"}
_CONSTANT = (0, 16)
"""OpenCV's codes of borders with one colour."""


def imread(filename: Any, flag: int = 1, to_rgb: bool = True, out: Any = None) -> NDArray:
    """Read an image from a file.

    Args:
        filename: the file's path.
        flag: 1 for colours, 0 for greys.
        to_rgb: False for blue first, as OpenCV has images.
        out: an array to put the image into.

    Returns:
        uint8 (height, width, 3), or (height, width, 1) of greys.

    Raises:
        MXNetError: the file is missing, or no image.
        ImportError: neither OpenCV nor Pillow is installed.

    Example:
        >>> mx.image.imread("flower.jpg").shape
        (480, 640, 3)
    """
    path = Path(filename) if hasattr(filename, "__fspath__") else Path(str(filename))
    with file_errors(path, "read"):
        data = path.read_bytes()
    return put_out(_decoded(data, flag, to_rgb, str(path)), out)  # type: ignore[no-any-return]


def imdecode(buf: Any, flag: int = 1, to_rgb: bool = True, out: Any = None) -> NDArray:
    """Decode an image.

    Args:
        buf: the bytes of a JPEG, a PNG or another image file; bytes, or an array of uint8.
        flag: 1 for colours, 0 for greys.
        to_rgb: False for blue first, as OpenCV has images.
        out: an array to put the image into.

    Returns:
        uint8 (height, width, 3), or (height, width, 1) of greys.

    Raises:
        ValueError: no bytes.
        MXNetError: the bytes are no image.
        ImportError: neither OpenCV nor Pillow is installed.

    Example:
        >>> mx.image.imdecode(open("flower.jpg", "rb").read()).shape
        (480, 640, 3)
    """
    if isinstance(buf, NDArray | np.ndarray):
        values = values_of(buf)
        if values.dtype != np.uint8:
            raise MXNetError(f"imdecode: buf: expected an array of uint8, got {values.dtype}")
        data = values.tobytes()
    elif isinstance(buf, bytes | bytearray | memoryview):
        data = bytes(buf)
    else:
        raise ValueError(f"imdecode: buf: expected bytes, a bytearray or an array of uint8, got {value_text(buf)}")
    return put_out(_decoded(data, flag, to_rgb, "imdecode: buf"), out)  # type: ignore[no-any-return]


def _decoded(data: bytes, flag: int, to_rgb: bool, subject: str) -> Image:
    """The image in an encoded file."""
    if flag not in (0, 1):
        raise MXNetError(f"flag: expected 1 for colours or 0 for greys, got {flag!r}")
    image = library().decode(data, 3 if flag else 1) if data else None
    if image is None:
        raise MXNetError(
            f"{subject}: expected a JPEG, a PNG or another image file, got {len(data)} bytes that are none"
        )
    return image if to_rgb or not flag else np.ascontiguousarray(image[:, :, ::-1])


def imresize(src: Any, w: int, h: int, interp: int = 1, out: Any = None) -> Any:
    """Resize an image.

    Args:
        src: the image.
        w, h: the new width and height, in pixels.
        interp: 0 for the nearest pixel, 1 bilinear, 2 cubic, 3 by areas, 4 Lanczos.
        out: an array to put the image into.

    Raises:
        MXNetError: a width or height below 1, another interpolation, or an element type that is not resized.
        ImportError: neither OpenCV nor Pillow is installed.
    """
    result = resized(pixels_of(src, "imresize: src"), w, h, interp)
    return like(src, result) if out is None else put_out(result, out)


def resized(image: Image, w: Any, h: Any, interp: Any) -> Image:
    """An image of another width and height.

    Raises: as `imresize`.
    """
    for name, size in (("w", w), ("h", h)):
        if not is_number(size) or int(size) != size or size < 1:
            raise MXNetError(f"imresize: {name}: expected an integer of at least 1, got {value_text(size)}")
    if interp not in range(5):
        raise MXNetError(f"imresize: interp: expected 0 to 4, got {value_text(interp)}")
    try:
        return library().resize(image, int(w), int(h), int(interp))
    except TypeError as error:
        raise MXNetError(f"imresize: src: {error}: image.astype('float32') is resized") from None


def copyMakeBorder(
    src: Any,
    top: int,
    bot: int,
    left: int,
    right: int,
    type: int = 0,
    value: float = 0,
    values: Sequence[float] | float = (),
    out: Any = None,
) -> Any:
    """An image with a border around it.

    Args:
        src: the image.
        top, bot, left, right: its widths, in pixels.
        type: OpenCV's number: 0 for one colour, 1 for the outermost pixels again, 2 for the mirrored image, 3 for the
            image from its other side, 4 for the image mirrored without its outermost pixels.
        value: the border's value.
        values: its values by channel, which go before `value`.
        out: an array to put the image into.

    Raises:
        MXNetError: a negative width, or another type.
    """
    image = pixels_of(src, "copyMakeBorder: src")
    if min(top, bot, left, right) < 0:
        raise MXNetError(f"copyMakeBorder: expected widths of at least 0, got {(top, bot, left, right)}")
    around = ((int(top), int(bot)), (int(left), int(right)), (0, 0))
    if type in _CONSTANT:
        result = np.empty(tuple(size + sum(ends) for size, ends in zip(image.shape, around, strict=True)), image.dtype)
        fill = np.atleast_1d(np.asarray(values if np.size(values) else value, np.float64))
        colours = np.zeros(max(image.shape[2], len(fill)))
        colours[: len(fill)] = fill
        if not np.size(values):
            colours[:] = value
        info = np.iinfo(image.dtype) if image.dtype.kind in "iu" else None
        result[...] = (
            np.clip(np.rint(colours), info.min, info.max)[: image.shape[2]] if info else colours[: image.shape[2]]
        )
        result[top : top + image.shape[0], left : left + image.shape[1]] = image
    elif type in _BORDERS:
        result = np.pad(image, around, mode=_BORDERS[type])  # type: ignore[call-overload]
    else:
        raise MXNetError(f"copyMakeBorder: type: expected 0 to 4, got {value_text(type)}")
    return like(src, result) if out is None else put_out(result, out)
