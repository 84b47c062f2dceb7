"""Images, as `mx.image` and `mx.img`: read, decode, resize, crop, augment, and iterate over them in batches.

All of it computes on this machine, by OpenCV or, where that is not installed, Pillow. An image is an array (height,
width, channels), RGB. From NDArrays come NDArrays whose values are here, from NumPy arrays NumPy arrays.
"""

from ..absent import module_getattr
from .augmenters import (
    Augmenter,
    CastAug,
    CenterCropAug,
    ForceResizeAug,
    HorizontalFlipAug,
    RandomCropAug,
    RandomOrderAug,
    RandomSizedCropAug,
    ResizeAug,
    SequentialAug,
)
from .color_augmenters import (
    BrightnessJitterAug,
    ColorJitterAug,
    ColorNormalizeAug,
    ContrastJitterAug,
    HueJitterAug,
    LightingAug,
    RandomGrayAug,
    SaturationJitterAug,
)
from .create import CreateAugmenter
from .crops import (
    center_crop,
    color_normalize,
    fixed_crop,
    random_crop,
    random_size_crop,
    resize_short,
    scale_down,
)
from .det_augmenters import (
    DetAugmenter,
    DetBorrowAug,
    DetHorizontalFlipAug,
    DetRandomCropAug,
    DetRandomPadAug,
    DetRandomSelectAug,
)
from .detection import CreateDetAugmenter, CreateMultiRandCropAugmenter, ImageDetIter
from .files import copyMakeBorder, imdecode, imread, imresize
from .image_iter import ImageIter
from .rotation import imrotate, random_rotate

__all__ = [
    "ImageDetIter",
    "CreateMultiRandCropAugmenter",
    "CreateDetAugmenter",
    "DetRandomSelectAug",
    "DetRandomPadAug",
    "DetRandomCropAug",
    "DetHorizontalFlipAug",
    "DetBorrowAug",
    "DetAugmenter",
    "Augmenter",
    "BrightnessJitterAug",
    "CastAug",
    "CenterCropAug",
    "ColorJitterAug",
    "ColorNormalizeAug",
    "ContrastJitterAug",
    "CreateAugmenter",
    "ForceResizeAug",
    "HorizontalFlipAug",
    "HueJitterAug",
    "ImageIter",
    "LightingAug",
    "RandomCropAug",
    "RandomGrayAug",
    "RandomOrderAug",
    "RandomSizedCropAug",
    "ResizeAug",
    "SaturationJitterAug",
    "SequentialAug",
    "center_crop",
    "color_normalize",
    "copyMakeBorder",
    "fixed_crop",
    "imdecode",
    "imread",
    "imresize",
    "imrotate",
    "random_crop",
    "random_rotate",
    "random_size_crop",
    "resize_short",
    "scale_down",
]

__getattr__ = module_getattr(__name__, __all__)
