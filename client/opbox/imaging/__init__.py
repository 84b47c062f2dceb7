"""Images as NumPy arrays (height, width, channels), RGB: decode, encode, resize, warp. Nothing here knows of NDArrays
or servers. OpenCV computes, or Pillow where OpenCV is not installed.
"""

from .geometry import Image, crop_within, interpolation, shorter_edge
from .library import library

__all__ = ["Image", "crop_within", "interpolation", "library", "shorter_edge"]
