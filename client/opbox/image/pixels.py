"""The values of an image that a user passes, and a result of the same kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..base import value_text
from ..foreign import host_values
from ..imaging import Image
from ..io.host_array import HostArray
from ..ndarray import NDArray

__all__ = ["float_image", "like", "pixels_of", "put_out", "values_of"]


def values_of(value: Any) -> Image:
    """The values of an array of any library, not copied where they are this machine's."""
    return value.host() if isinstance(value, HostArray) else np.asarray(host_values(value))


def pixels_of(src: Any, subject: str) -> Image:
    """The values of an image.

    Args:
        src: an NDArray or a NumPy array (height, width, channels).
        subject: what takes it, for errors.

    Raises:
        MXNetError: an array that is no image.
    """
    if not isinstance(src, NDArray | np.ndarray):
        raise MXNetError(f"{subject}: expected an image as an NDArray (height, width, channels), got {value_text(src)}")
    if src.ndim != 3 or not src.size:
        raise MXNetError(f"{subject}: expected an image (height, width, channels), got shape {tuple(src.shape)}")
    return values_of(src)


def float_image(image: Image, subject: str) -> Image:
    """The image, if its values are fractions.

    Raises:
        MXNetError: they are integers.
    """
    if image.dtype.kind != "f":
        raise MXNetError(
            f"{subject}: expected a float32 image, got {image.dtype}: mx.image.CastAug()(image) makes it one"
        )
    return image


def like(src: Any, result: Image) -> Any:
    """A result as an NDArray, where `src` is one."""
    return HostArray(result) if isinstance(src, NDArray) else result


def put_out(result: Image, out: Any) -> Any:
    """A result as an NDArray: `out`, if one was passed, which then has its values."""
    if out is None:
        return HostArray(result)
    if tuple(out.shape) != result.shape:
        raise MXNetError(f"out: expected an array of shape {result.shape}, got {tuple(out.shape)}")
    out[:] = result
    return out
