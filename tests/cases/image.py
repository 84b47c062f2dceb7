"""Images: tensors, parts, flips, sizes, colours."""

from typing import Any

from .case import Arg, Case

WIDE = ("float32", "float64", "float16", "uint8", "int32")
SIZED = ("float32", "float64", "uint8")
PASSED_ON = "The gradient is handed on whatever was done to the image, as in MXNet."
OTHER = "MXNet hands the gradient on in the order of its memory (docs/differences.md)."
PIXELS = Arg((4, 6, 3), 0, 255)
COLOUR = Arg((2, 3, 3), 0, 255, kind="distinct")
GRAY = Arg((2, 3, 1), 0, 255, kind="distinct")
DRAWN = "drawn at random"


def changed(op: str, data: Arg, **attrs: Any) -> Case:
    name = f"_image_{op}"
    return Case(name, {"data": data}, attrs, zero_size=False, numeric=False, rtol=1e-4, atol=1e-3, why=PASSED_ON)


def drawn(op: str, data: Arg, **attrs: Any) -> Case:
    return Case(f"_image_{op}", {"data": data}, attrs, random=True, zero_size=False, numeric=False, why=DRAWN)


def resized(shape: tuple[int, ...], dtypes: tuple[str, ...] = SIZED, **attrs: Any) -> Case:
    # Pixels are drawn from 0 to 255, in floats too: single precision has 1e-5 of them.
    data = {"data": Arg(shape, 0, 255)}
    return Case("_image_resize", data, attrs, dtypes, grad=False, zero_size=False, rtol=1e-5, atol=1e-3, why="pixels")


CASES = [
    Case("_image_to_tensor", {"data": PIXELS}, dtypes=WIDE, grad=False),
    Case("_image_to_tensor", {"data": Arg((2, 3, 4, 1), 0, 255)}, grad=False),
    Case("_image_to_tensor", {"data": (2, 3, 4, 1)}, dtypes=("float32",), oracle=False, why=OTHER),
    Case("_image_normalize", {"data": (3, 2, 4)}, {"mean": (0.25, 0.5, 0.75), "std": (0.5, 2, 0.25)}, zero_size=False),
    Case("_image_normalize", {"data": (2, 3, 2, 4)}, {"mean": 0.5, "std": (0.5, 1, 2)}),
    Case(
        "_image_normalize",
        {"data": Arg((1, 2, 3), 0, 9)},
        {"mean": 0.5, "std": 0.25},
        ("uint8", "int32"),
        grad=False,
        zero_size=False,
    ),
    Case("_image_crop", {"data": Arg((4, 6, 3))}, {"x": 1, "y": 2, "width": 4, "height": 2}, WIDE, zero_size=False),
    Case("_image_crop", {"data": (2, 4, 6, 1)}, {"x": 0, "y": 0, "width": 6, "height": 1}),
    Case("_image_flip_left_right", {"data": PIXELS}, dtypes=WIDE, grad=False),
    Case("_image_flip_top_bottom", {"data": PIXELS}, dtypes=WIDE, grad=False),
    Case("_image_flip_left_right", {"data": (3, 5, 1)}, oracle=False, why=OTHER),
    Case("_image_flip_top_bottom", {"data": (3, 5, 3)}, oracle=False, why=OTHER),
    drawn("random_flip_left_right", COLOUR),
    drawn("random_flip_top_bottom", COLOUR),
    *(resized((7, 5, 3), size=(9, 4), interp=interp) for interp in range(5)),
    *(resized((2, 6, 8, 1), size=5, interp=interp) for interp in range(5)),
    *(resized((6, 8, 3), size=(4, 3), interp=interp) for interp in range(5)),
    resized((6, 9, 3), size=(3, 3), interp=3),
    resized((5, 8, 1), size=4, keep_ratio=True),
    resized((8, 5, 4), size=10, keep_ratio=True, interp=0),
    resized((3, 2, 3), ("int32",), size=(4, 2), interp=0),
    *(
        changed(f"random_{name}", data, min_factor=factor, max_factor=factor)
        for name in ("brightness", "contrast", "saturation", "hue")
        for factor, data in ((0.25, COLOUR), (1.5, COLOUR), (1.5, GRAY))
        if name != "hue" or data is COLOUR
    ),
    Case(
        "_image_random_brightness",
        {"data": Arg((2, 3, 3), 0, 255)},
        {"min_factor": 1.5, "max_factor": 1.5},
        ("uint8", "int32"),
        grad=False,
        zero_size=False,
    ),
    changed("adjust_lighting", COLOUR, alpha=(0.25, -0.5, 1)),
    drawn("random_brightness", COLOUR, min_factor=0.5, max_factor=1.5),
    drawn("random_hue", COLOUR, min_factor=0, max_factor=0.5),
    drawn("random_color_jitter", COLOUR, brightness=0.5, contrast=0.25, saturation=0.5, hue=0.25),
    drawn("random_lighting", COLOUR, alpha_std=0.5),
    drawn("random_lighting", GRAY),
]
