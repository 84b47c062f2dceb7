"""GridGenerator, BilinearSampler, SpatialTransformer, ROIPooling, Correlation, deformable convolutions."""

from typing import Any

from .case import FLOATS, Arg, Case

WEIGHTS = "weights of neighbours, and sums over them"


def _grid(shape: tuple[int, ...], **attrs: Any) -> Case:
    return Case("GridGenerator", {"data": shape}, attrs, FLOATS, rtol=1e-4, atol=1e-5, why="products in float32")


def _sampler(data: tuple[int, ...], grid: tuple[int, ...], reach: float = 1.25, **attrs: Any) -> Case:
    inputs = {"data": data, "grid": Arg(grid, low=-reach, high=reach)}
    # Rounding a position carries it to other neighbours, where the slope is another one.
    return Case("BilinearSampler", inputs, attrs, FLOATS, rtol=1e-4, atol=1e-5, why=WEIGHTS)


def _transformer(data: tuple[int, ...], target: tuple[int, int], **attrs: Any) -> Case:
    loc = Arg(
        (data[0], 6), values=[0.9, 0.15, 0.0625, -0.2, 0.8, 0.11, 1.1, -0.3, 0.21, 0.4, 0.7, -0.13][: 6 * data[0]]
    )
    attrs = {"target_shape": target, "transform_type": "affine", "sampler_type": "bilinear", **attrs}
    return Case("SpatialTransformer", {"data": data, "loc": loc}, attrs, FLOATS, rtol=1e-4, atol=1e-5, why=WEIGHTS)


ROIS = [[0, 0, 0, 4, 4], [1, 2, 3, 7, 6], [0, 3.4, 1.6, 3.4, 1.6], [1, -3, -2, 30, 20], [0, 6, 5, 9, 9]]


def _roi(data: tuple[int, ...], **attrs: Any) -> Case:
    inputs = {
        "data": Arg(data, kind="distinct", low=-4.0, high=4.0),
        "rois": Arg((5, 5), values=ROIS, grad=False),
    }
    return Case("ROIPooling", inputs, attrs, FLOATS, zero_size=False, why="regions name images")


def _correlation(shape: tuple[int, ...], **attrs: Any) -> Case:
    # No element of one is an element of the other: odd multiples of another power of two.
    inputs = {"data1": shape, "data2": Arg(shape, low=-2.0, high=2.0)}
    return Case("Correlation", inputs, attrs, FLOATS, rtol=1e-4, atol=1e-5, why=WEIGHTS)


def _deformable(data: tuple[int, ...], filters: int, kernel: tuple[int, int], **attrs: Any) -> Case:
    modulated = attrs.pop("modulated", False)
    size = []
    for n, k, axis in zip(data[2:], kernel, range(2), strict=True):
        s, d, q = (attrs.get(key, (default,) * 2)[axis] for key, default in (("stride", 1), ("dilate", 1), ("pad", 0)))
        size.append((n + 2 * q - d * (k - 1) - 1) // s + 1)
    groups = attrs.get("num_deformable_group", 1) * kernel[0] * kernel[1]
    inputs: dict[str, Any] = {"data": data, "offset": Arg((data[0], 2 * groups, *size), low=-0.9, high=0.9)}
    if modulated:
        inputs["mask"] = Arg((data[0], groups, *size), low=0.0, high=1.0)
    inputs["weight"] = (filters, data[1] // attrs.get("num_group", 1), *kernel)
    if not attrs.get("no_bias"):
        inputs["bias"] = (filters,)
    name = f"_contrib_{'Modulated' if modulated else ''}DeformableConvolution"
    attrs = {"kernel": kernel, "num_filter": filters, **attrs}
    why = "MXNet implements it on a GPU only" if modulated else WEIGHTS
    return Case(name, inputs, attrs, FLOATS, rtol=1e-4, atol=1e-4, oracle=not modulated, why=why)


CASES = [
    _grid((2, 6), transform_type="affine", target_shape=(3, 4)),
    _grid((3, 6), transform_type="affine", target_shape=(2, 5)),
    _grid((2, 2, 3, 5), transform_type="warp"),
    _sampler((2, 3, 5, 6), (2, 2, 4, 3)),
    _sampler((1, 2, 3, 3), (1, 2, 6, 5), 0.9, cudnn_off=True),
    _transformer((2, 3, 5, 6), (3, 4)),
    _transformer((1, 2, 4, 4), (6, 3), cudnn_off=True),
    _roi((2, 3, 8, 9), pooled_size=(2, 3), spatial_scale=1.0),
    _roi((2, 2, 6, 5), pooled_size=(3, 3), spatial_scale=0.5),
    _roi((2, 1, 6, 7), pooled_size=(1, 1), spatial_scale=0.7),
    _correlation((2, 3, 5, 6)),
    _correlation((2, 3, 5, 6), max_displacement=2, pad_size=2),
    _correlation((1, 2, 8, 7), kernel_size=3, max_displacement=2, stride1=2, stride2=2, pad_size=3),
    _correlation((1, 2, 6, 7), kernel_size=3, max_displacement=1, pad_size=2, is_multiply=False),
    *(
        row
        for modulated in (False, True)
        for row in (
            _deformable((2, 4, 5, 6), 3, (3, 3), modulated=modulated),
            _deformable((2, 4, 5, 6), 4, (3, 2), modulated=modulated, pad=(1, 1), stride=(2, 1), num_group=2),
            _deformable(
                (1, 4, 7, 6), 2, (2, 3), modulated=modulated, dilate=(2, 1), num_deformable_group=2, no_bias=True
            ),
        )
    ),
    _deformable((2, 2, 4, 4), 2, (3, 3), pad=(2, 2), layout="NCHW", workspace=512),
    _deformable((3, 2, 4, 4), 2, (3, 3), pad=(2, 2), layout="NCHW", modulated=True, im2col_step=1),
]
