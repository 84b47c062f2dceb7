"""Images by Pillow, where OpenCV is not installed: the same sizes and types, and nearly the same pixels."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np

from .geometry import Image

__all__ = ["Pillow"]

_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
_NEAREST, _LANCZOS, _BILINEAR, _CUBIC, _BOX = range(5)
"""Pillow's codes of its filters."""


class Pillow:
    """Images by the package `PIL`."""

    def __init__(self) -> None:
        self._image: Any = importlib.import_module("PIL.Image")
        self._operations: Any = importlib.import_module("PIL.ImageOps")

    def decode(self, data: bytes, channels: int | None) -> Image | None:
        try:
            image = self._image.open(io.BytesIO(data))
            if channels == 1:
                image.draft("L", image.size)
            image = self._operations.exif_transpose(image)
            if channels is not None:
                image = image.convert("L" if channels == 1 else "RGB")
            elif image.mode not in ("L", "RGB", "RGBA"):
                image = image.convert("RGBA" if "transparency" in image.info else "RGB")
        except (OSError, SyntaxError, ValueError):  # what Pillow raises of damaged files
            return None
        pixels = np.array(image)
        return pixels[:, :, None] if pixels.ndim == 2 else pixels

    def encode(self, image: Image, extension: str, quality: int) -> bytes | None:
        kind = _FORMATS.get(extension.lower())
        if kind is None:
            return None
        if image.ndim == 3 and image.shape[2] == 1:
            image = image[:, :, 0]
        file = io.BytesIO()
        options = {"quality": quality} if kind == "JPEG" else {"compress_level": min(quality, 9)}
        self._image.fromarray(np.ascontiguousarray(image)).save(file, kind, **options)
        return file.getvalue()

    def resize(self, image: Image, width: int, height: int, interp: int) -> Image:
        if image.dtype not in (np.uint8, np.float32):
            raise TypeError(f"expected uint8 or float32, which Pillow resizes, got {image.dtype}")
        rows, columns = image.shape[:2]
        if interp == 0:  # OpenCV's nearest pixel is that whose corner is, Pillow's whose middle is
            nearest = [np.arange(new) * old // new for new, old in ((height, rows), (width, columns))]
            result: Image = image[nearest[0][:, None], nearest[1]]
            return result
        if interp == 3 and (width < columns or height < rows):
            return self._by_channel(image, lambda one: one.resize((width, height), _BOX))
        if interp in (2, 4):
            shrinks = width < columns or height < rows
            if interp == 4 and not shrinks:
                return self._by_channel(image, lambda one: one.resize((width, height), _LANCZOS))
            interp = 2
        matrix = np.array([[width / columns, 0.0, 0.0], [0.0, height / rows, 0.0]])
        return self._mapped(image, matrix, width, height, interp, 0)

    def _mapped(self, image: Image, matrix: Image, width: int, height: int, interp: int, fill: int) -> Image:
        """An image under an affine map of places in it, in pixels from the upper left corner."""
        filters = {0: _NEAREST, 1: _BILINEAR, 2: _CUBIC}
        back = np.linalg.inv(np.vstack([matrix, [0.0, 0.0, 1.0]]))[:2].ravel().tolist()
        return self._by_channel(
            image,
            lambda one: one.transform(
                (width, height), self._image.Transform.AFFINE, back, filters.get(interp, _BILINEAR), fillcolor=fill
            ),
        )

    def _by_channel(self, image: Image, operation: Any) -> Image:
        channels = [
            np.asarray(operation(self._image.fromarray(np.ascontiguousarray(image[:, :, channel]))))
            for channel in range(image.shape[2])
        ]
        return np.stack(channels, axis=2)

    def warp(self, image: Image, matrix: Image, width: int, height: int, interp: int, fill: int) -> Image:
        # OpenCV's places are the middles of pixels, Pillow's their corners.
        half = np.array([0.5, 0.5])
        moved = np.array(matrix, np.float64)
        moved[:, 2] += half - moved[:, :2] @ half
        return self._mapped(image, moved, width, height, interp, fill)

    def hls_moved(self, image: Image, moves: tuple[int, int, int]) -> Image:
        raise ImportError(
            "random_h, random_s, random_l: expected OpenCV, which they are computed by, got Pillow alone: "
            "pip install 'opbox[image]' installs OpenCV"
        )
