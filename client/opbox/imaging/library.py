"""The library that decodes and resizes images: OpenCV, or Pillow where OpenCV is not installed."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Protocol

from .geometry import Image

__all__ = ["ImageLibrary", "library"]


class ImageLibrary(Protocol):
    """Decodes and resizes images. All images are arrays (height, width, channels), RGB."""

    def decode(self, data: bytes, channels: int | None) -> Image | None:
        """The image in an encoded file; None if it is none.

        Args:
            data: the file's bytes.
            channels: 1 for grey, 3 for RGB, None for as many as the file has.
        """

    def encode(self, image: Image, extension: str, quality: int) -> bytes | None:
        """An image as a file, ".jpg" or ".png"; None where the library has no such format.

        Args:
            image: uint8; two dimensions for grey.
            extension: with its dot.
            quality: of a JPEG 1 to 100; of a PNG the compression, 0 to 9.
        """

    def resize(self, image: Image, width: int, height: int, interp: int) -> Image:
        """An image of another size.

        Args:
            interp: OpenCV's number: 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos.

        Raises:
            TypeError: an element type that it does not resize.
        """

    def warp(self, image: Image, matrix: Image, width: int, height: int, interp: int, fill: int) -> Image:
        """An image under an affine map (2, 3) of its points to those of the result; `fill` where none comes to lie."""

    def hls_moved(self, image: Image, moves: tuple[int, int, int]) -> Image:
        """An RGB image of uint8 with numbers added to its hue (0 to 180), lightness and saturation (0 to 255)."""


@cache
def library() -> ImageLibrary:
    """OpenCV, or Pillow where OpenCV is not installed.

    Raises:
        ImportError: neither is installed.
    """
    if importlib.util.find_spec("cv2") is not None:
        from .opencv import OpenCV

        return OpenCV()
    if importlib.util.find_spec("PIL") is not None:
        from .pillow import Pillow

        return Pillow()
    raise ImportError(
        "images: expected OpenCV or Pillow to decode them, got neither: pip install 'opbox[image]' installs OpenCV"
    )
