"""Convolution."""

from typing import Any

from .case import FLOATS, Arg, Case


def _row(data: tuple[int, ...], filters: int, kernel: tuple[int, ...], **attrs: Any) -> Case:
    inputs: dict[str, Arg | tuple[int, ...]] = {
        "data": data,
        "weight": (filters, data[1] // attrs.get("num_group", 1), *kernel),
    }
    if not attrs.get("no_bias"):
        inputs["bias"] = (filters,)
    params = {"kernel": kernel, "num_filter": filters, **attrs}
    return Case(
        "Convolution", inputs, params, FLOATS, rtol=1e-4, atol=1e-5, why="sums over channels, taps and positions"
    )


CASES = [
    _row((2, 3, 7), 4, (3,)),
    _row((2, 3, 9), 4, (3,), stride=(2,), pad=(1,), dilate=(2,)),
    _row((2, 4, 7, 6), 6, (3, 3), pad=(1, 1)),
    _row((2, 4, 8, 9), 6, (3, 2), stride=(2, 3), pad=(1, 2), num_group=2),
    _row((2, 4, 5, 6), 3, (1, 1)),
    _row((1, 4, 5, 6), 3, (1, 1), no_bias=True),
    _row((2, 4, 5, 6), 3, (1, 1), stride=(2, 2)),
    _row((2, 4, 5, 6), 3, (1, 1), pad=(1, 0)),
    _row((2, 3, 5, 6), 2, (1, 3), pad=(0, 1)),
    _row((2, 3, 5, 6), 2, (3, 1), pad=(1, 0)),
    _row((2, 4, 7, 8), 4, (3, 3), dilate=(2, 2), num_group=4, no_bias=True),
    _row((2, 2, 4, 5), 3, (3, 3), pad=(4, 4)),
    _row((2, 2, 5, 6), 3, (2, 2), pad=(2, 2), stride=(3, 3)),
    _row((2, 2, 5, 6, 7), 3, (2, 3, 3), stride=(2, 1, 2), pad=(1, 0, 1)),
    _row((2, 2, 4, 4, 4), 2, (2, 2, 2), dilate=(1, 2, 1), num_group=2),
    _row((2, 3, 5, 5), 2, (3, 3), layout="NCHW", workspace=512, cudnn_tune="off"),
]
