"""Images by OpenCV: the pixels that MXNet has, whose images are OpenCV's too."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .geometry import Image

__all__ = ["OpenCV"]

_RESIZED = ("uint8", "uint16", "int16", "float32", "float64")


class OpenCV:
    """Images by the package `cv2`."""

    def __init__(self) -> None:
        self._cv2: Any = importlib.import_module("cv2")
        self._rgb: int | None = getattr(self._cv2, "IMREAD_COLOR_RGB", None)  # since OpenCV 4.10
        self._unchanged = {
            3: self._cv2.COLOR_BGR2RGB,
            4: self._cv2.COLOR_BGRA2RGBA,
        }

    def decode(self, data: bytes, channels: int | None) -> Image | None:
        cv2 = self._cv2
        raw = np.frombuffer(data, np.uint8)
        try:
            if channels == 1:
                image = cv2.imdecode(raw, cv2.IMREAD_GRAYSCALE)
            elif channels == 3 and self._rgb is not None:
                return cv2.imdecode(raw, self._rgb)  # type: ignore[no-any-return]
            else:
                image = cv2.imdecode(raw, cv2.IMREAD_UNCHANGED if channels is None else cv2.IMREAD_COLOR)
        except cv2.error:
            return None
        if image is None:
            return None
        if image.ndim == 2:
            return image[:, :, None]  # type: ignore[no-any-return]
        return cv2.cvtColor(image, self._unchanged[image.shape[2]])  # type: ignore[no-any-return]

    def encode(self, image: Image, extension: str, quality: int) -> bytes | None:
        cv2 = self._cv2
        kind = {
            ".jpg": cv2.IMWRITE_JPEG_QUALITY,
            ".jpeg": cv2.IMWRITE_JPEG_QUALITY,
            ".png": cv2.IMWRITE_PNG_COMPRESSION,
        }
        parameters = [kind[extension.lower()], quality] if extension.lower() in kind else []
        if image.ndim == 3 and image.shape[2] in (3, 4):
            image = image[:, :, [2, 1, 0, *range(3, image.shape[2])]]
        try:
            done, encoded = cv2.imencode(extension, np.ascontiguousarray(image), parameters)
        except cv2.error:
            return None
        return encoded.tobytes() if done else None

    def resize(self, image: Image, width: int, height: int, interp: int) -> Image:
        if image.dtype.name not in _RESIZED:
            raise TypeError(f"expected one of {', '.join(_RESIZED)}, got {image.dtype}")
        resized = self._cv2.resize(image, (width, height), interpolation=interp)
        return resized.reshape(height, width, image.shape[2])  # type: ignore[no-any-return]

    def warp(self, image: Image, matrix: Image, width: int, height: int, interp: int, fill: int) -> Image:
        border = self._cv2.BORDER_CONSTANT
        warped = self._cv2.warpAffine(
            image, matrix, (width, height), flags=interp, borderMode=border, borderValue=(fill,) * 3
        )
        return warped.reshape(height, width, image.shape[2])  # type: ignore[no-any-return]

    def hls_moved(self, image: Image, moves: tuple[int, int, int]) -> Image:
        hls = self._cv2.cvtColor(image, self._cv2.COLOR_RGB2HLS).astype(np.int16)
        hls += np.array(moves, np.int16)
        moved = np.clip(hls, 0, np.array((180, 255, 255), np.int16)).astype(np.uint8)
        return self._cv2.cvtColor(moved, self._cv2.COLOR_HLS2RGB)  # type: ignore[no-any-return]
