"""What the image record iterators do with an image: MXNet's default augmentation, and its normalization.

Images are arrays of uint8 (height, width, channels), RGB. Random numbers come from a generator that each image has of
its own, so that they depend on no thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from random import Random

import numpy as np

from opbox_protocol.errors import MXNetError

from ..imaging import Image, crop_within, interpolation, library, shorter_edge

__all__ = ["Augmentation", "Normalization", "fitted"]

_EIGENVECTORS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], np.float32
) * np.array([55.46, 4.794, 1.148], np.float32)
"""Principal components of photographs' colours (Krizhevsky and others, 2012)."""
_GREY = np.array([0.114, 0.587, 0.299], np.float32)
"""MXNet's weights of red, green and blue; MXNet has them in reverse order."""
_ATTEMPTS = 10


@dataclass(frozen=True)
class Augmentation:
    """MXNet's arguments of `aug_default`, with its defaults."""

    resize: int = -1
    rand_crop: bool = False
    random_resized_crop: bool = False
    max_rotate_angle: int = 0
    max_aspect_ratio: float = 0.0
    min_aspect_ratio: float | None = None
    max_shear_ratio: float = 0.0
    max_crop_size: int = -1
    min_crop_size: int = -1
    max_random_scale: float = 1.0
    min_random_scale: float = 1.0
    max_random_area: float = 1.0
    min_random_area: float = 1.0
    max_img_size: float = 1e10
    min_img_size: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    pca_noise: float = 0.0
    random_h: int = 0
    random_s: int = 0
    random_l: int = 0
    rotate: int = -1
    fill_value: int = 255
    inter_method: int = 1
    pad: int = 0

    @property
    def aspect_ratios(self) -> tuple[float, float]:
        """The least and the greatest ratio of width to height that images are changed by."""
        if self.min_aspect_ratio is not None:
            return self.min_aspect_ratio, self.max_aspect_ratio
        return 1 - self.max_aspect_ratio, 1 + self.max_aspect_ratio

    @property
    def warps(self) -> bool:
        """Whether images are rotated, sheared or scaled."""
        unchanged = {"max_rotate_angle", "max_shear_ratio", "max_random_scale", "min_random_scale"}
        unchanged |= {"max_img_size", "min_img_size"}
        differs = any(getattr(self, field.name) != field.default for field in fields(self) if field.name in unchanged)
        ratio = not self.random_resized_crop and self.aspect_ratios != (1.0, 1.0)
        return differs or ratio or self.rotate > 0

    def check(self, subject: str, channels: int) -> None:
        """Raise an error for arguments that fit no image.

        Raises:
            MXNetError: they contradict another.
        """
        if self.random_resized_crop:
            with_it = ("min_random_scale", "max_random_scale", "min_crop_size", "max_crop_size", "rand_crop")
            for field in fields(self):
                if field.name in with_it and getattr(self, field.name) != field.default:
                    raise MXNetError(f"{subject}: {field.name}: expected none beside random_resized_crop, got one")
            least, greatest = self.aspect_ratios
            if not 0 < least <= greatest or self.min_random_area > self.max_random_area:
                raise MXNetError(
                    f"{subject}: random_resized_crop: expected ratios above 0 and areas from small to large, got "
                    f"ratios {least} to {greatest}, areas {self.min_random_area} to {self.max_random_area}"
                )
        elif self.max_crop_size < self.min_crop_size:
            raise MXNetError(
                f"{subject}: max_crop_size: expected at least min_crop_size {self.min_crop_size}, "
                f"got {self.max_crop_size}"
            )
        colours = ("contrast", "saturation", "pca_noise", "random_h", "random_s", "random_l")
        used = [name for name in colours if getattr(self, name)]
        if used and channels != 3:
            raise MXNetError(f"{subject}: {used[0]}: expected images of 3 channels, got {channels}")
        interpolation(self.inter_method, (1, 1), (1, 1), lambda least, _: least)

    def apply(self, image: Image, shape: tuple[int, int, int], draws: Random) -> Image:
        """An image of the shape (channels, height, width) that a batch has.

        Raises:
            MXNetError: the image is too small for the crop.
        """
        if self.resize != -1:
            image = self._resized(image, shorter_edge(image.shape, self.resize), draws)
        if self.warps:
            image = self._warped(image, draws)
        if self.pad > 0:
            around = ((self.pad, self.pad), (self.pad, self.pad), (0, 0))
            image = np.pad(image, around, constant_values=self.fill_value)
        image = self._cropped(image, shape[1:], draws)
        if self.brightness or self.contrast or self.saturation:
            image = self._jittered(image, draws)
        if self.random_h or self.random_s or self.random_l:
            h, s, low = (self._hls(limit, draws) for limit in (self.random_h, self.random_s, self.random_l))
            image = library().hls_moved(np.ascontiguousarray(image), (h, low, s))
        if self.pca_noise > 0:
            noise = _EIGENVECTORS @ np.array([draws.gauss(0, self.pca_noise) for _ in range(3)], np.float32)
            image = np.clip(image + noise, 0, 255).astype(np.uint8)
        return image

    def _resized(self, image: Image, size: tuple[int, int], draws: Random) -> Image:
        interp = interpolation(self.inter_method, image.shape, size, draws.randint)
        return library().resize(image, size[1], size[0], interp)

    def _warped(self, image: Image, draws: Random) -> Image:
        """The image rotated, sheared and scaled around its middle."""
        shear = draws.uniform(-self.max_shear_ratio, self.max_shear_ratio)
        angle = self.rotate if self.rotate > 0 else draws.randint(-self.max_rotate_angle, self.max_rotate_angle)
        a, b = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        scale = ratio = 1.0
        if not self.random_resized_crop:
            scale = draws.uniform(self.min_random_scale, self.max_random_scale)
            ratio = draws.uniform(*self.aspect_ratios)
        high = 2 * scale / (1 + ratio)
        wide = ratio * high
        rows, columns = image.shape[:2]
        size = [max(self.min_img_size, min(self.max_img_size, scale * side)) for side in (rows, columns)]
        matrix = np.array(
            [[high * a - shear * b * wide, high * b + shear * a * wide, 0], [-b * wide, a * wide, 0]], np.float32
        )
        matrix[:, 2] = (np.array(size[::-1]) - matrix[:, :2] @ np.array([columns, rows])) / 2
        height, width = int(size[0]), int(size[1])
        interp = interpolation(self.inter_method, image.shape, (height, width), draws.randint)
        return library().warp(image, matrix, width, height, interp, self.fill_value)

    def _cropped(self, image: Image, size: tuple[int, ...], draws: Random) -> Image:
        height, width = size
        anywhere = draws if self.rand_crop else None
        if self.random_resized_crop:
            piece = self._random_piece(image, draws)
            if piece is not None:
                return self._resized(piece, (height, width), draws)
        elif self.max_crop_size != -1 or self.min_crop_size != -1:
            if min(image.shape[:2]) < self.max_crop_size:
                raise MXNetError(
                    f"max_crop_size: expected images of at least {self.max_crop_size} pixels each way, "
                    f"got {image.shape[0]} x {image.shape[1]}"
                )
            side = draws.randint(max(self.min_crop_size, 1), self.max_crop_size)
            y, x = crop_within(image.shape, (side, side), anywhere)
            return self._resized(image[y : y + side, x : x + side], (height, width), draws)
        image = fitted(image, height, width, interpolation(self.inter_method, image.shape, size, draws.randint))
        y, x = crop_within(image.shape, (height, width), anywhere)
        return image[y : y + height, x : x + width]

    def _random_piece(self, image: Image, draws: Random) -> Image | None:
        """A piece of a random area and aspect ratio; None where ten attempts find none that fits."""
        areas = (self.min_random_area, self.max_random_area)
        if areas == (1.0, 1.0) and self.aspect_ratios == (1.0, 1.0):
            return None
        rows, columns = image.shape[:2]
        for _ in range(_ATTEMPTS):
            area, ratio = draws.uniform(*areas) * rows * columns, draws.uniform(*self.aspect_ratios)
            sides = [round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))]
            height, width = sides if draws.random() <= 0.5 else sides[::-1]
            if 0 < height <= rows and 0 < width <= columns:
                y, x = crop_within(image.shape, (height, width), draws)
                return image[y : y + height, x : x + width]
        return None

    def _jittered(self, image: Image, draws: Random) -> Image:
        """The image with its brightness, contrast and saturation changed, in a random order."""
        bright, contrast, saturation = (
            1 + draws.uniform(-limit, limit) for limit in (self.brightness, self.contrast, self.saturation)
        )
        values = image.astype(np.float32)
        for kind in draws.sample(range(3), 3):
            if kind == 0:
                values = values * bright
            elif kind == 1 and self.contrast:
                values = values * contrast + (1 - contrast) * float((values @ _GREY).mean())
            elif kind == 2 and self.saturation:
                values = values * saturation + np.rint(values @ _GREY)[:, :, None] * (1 - saturation)
            values = np.clip(np.rint(values), 0, 255)
        return values.astype(np.uint8)

    @staticmethod
    def _hls(limit: int, draws: Random) -> int:
        """A number up to `limit` either way, small ones more often."""
        return int((draws.random() + 4 * draws.random()) / 5 * limit * 2 - limit)


def fitted(image: Image, height: int, width: int, interp: int) -> Image:
    """An image that is at least so large, enlarged in proportion where it is not."""
    if image.shape[0] < height:
        image = library().resize(
            image, int(np.float32(height) / np.float32(image.shape[0]) * image.shape[1]), height, interp
        )
    if image.shape[1] < width:
        image = library().resize(
            image, width, int(np.float32(width) / np.float32(image.shape[1]) * image.shape[0]), interp
        )
    if image.shape[0] < height or image.shape[1] < width:
        raise MXNetError(
            f"data_shape: expected images of at least {height} x {width} pixels, "
            f"got {image.shape[0]} x {image.shape[1]}"
        )
    return image


@dataclass(frozen=True)
class Normalization:
    """MXNet's arguments of the normalization, with its defaults."""

    mirror: bool = False
    rand_mirror: bool = False
    mean_img: str = ""
    mean_r: float = 0.0
    mean_g: float = 0.0
    mean_b: float = 0.0
    mean_a: float = 0.0
    std_r: float = 1.0
    std_g: float = 1.0
    std_b: float = 1.0
    std_a: float = 1.0
    scale: float = 1.0
    max_random_contrast: float = 0.0
    max_random_illumination: float = 0.0

    def write(self, image: Image, out: Image, mean_image: Image | None, draws: Random) -> None:
        """Write an image into its place of a batch.

        Args:
            image: (height, width, channels), RGB.
            out: (channels, height, width); float32 gets normalized values, int8 the difference from the mean, and
                uint8 the pixels.
            mean_image: what is subtracted, of the shape of `out`; the means of the channels where it is None.
        """
        if self.mirror or (self.rand_mirror and draws.random() < 0.5):
            image = image[:, ::-1]
        if out.dtype == np.uint8:
            out[...] = image.transpose(2, 0, 1)
            return
        contrast = (draws.uniform(-1, 1) * self.max_random_contrast + 1 if self.max_random_contrast else 1) * self.scale
        light = draws.uniform(-1, 1) * self.max_random_illumination * self.scale if self.max_random_illumination else 0
        means = (self.mean_r, self.mean_g, self.mean_b, self.mean_a)
        deviations = (self.std_r, self.std_g, self.std_b, self.std_a)
        for channel, plane in enumerate(out):
            mean = means[channel] if mean_image is None else mean_image[channel]
            if out.dtype == np.int8:
                plane[...] = np.clip(image[:, :, channel] - np.rint(np.float32(mean)), -128, 127)
                continue
            plane[...] = image[:, :, channel]
            if mean_image is not None or mean:
                plane -= np.float32(mean)
            factor = np.float32(contrast) / np.float32(deviations[channel])
            if factor != 1:
                plane *= factor
            if light:
                plane += np.float32(light) / np.float32(deviations[channel])
