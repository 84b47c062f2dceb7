"""BatchNorm and BatchNormWithReLU."""

from typing import Any

from .case import Arg, Case


def _row(shape: tuple[int, ...], *, op: str = "BatchNorm", is_train: bool = True, **attrs: Any) -> list[Case]:
    channels = (shape[attrs.get("axis", 1)],)
    rows = []
    for dtypes, channel_dtype in ((("float32", "float16"), "float32"), (("float64",), "float64")):
        gamma = Arg(channels, values=[1.0] * channels[0], dtype=channel_dtype)
        if not attrs.get("fix_gamma", True):
            gamma = Arg(channels, low=0.5, high=1.5, dtype=channel_dtype)
        inputs: dict[str, Any] = {
            "data": Arg(shape, low=-2.0, high=2.0),
            "gamma": gamma,
            "beta": Arg(channels, dtype=channel_dtype),
            "moving_mean": Arg(channels, dtype=channel_dtype),
            "moving_var": Arg(channels, low=0.5, high=1.5, dtype=channel_dtype),
        }
        # The gradients of mean and var are not read.
        numeric = attrs.get("fix_gamma", True) is False and not attrs.get("output_mean_var")
        rows.append(
            Case(
                op,
                inputs,
                attrs,
                dtypes,
                rtol=1e-4,
                atol=1e-5,
                is_train=is_train,
                grad=is_train,
                numeric=numeric,
                zero_size=False,
                oracle=op == "BatchNorm" or ("float32" in dtypes and len(shape) == 4 and attrs.get("axis", 1) == 1),
                why="means of the batch; the statistics of no elements are undefined; MXNet 1.9.1 has "
                "BatchNormWithReLU in float32 for images alone, their channels on axis 1",
            )
        )
    return rows


RELU = "_contrib_BatchNormWithReLU"

CASES = [
    *_row((3, 4, 5)),
    *_row((3, 4, 5), fix_gamma=False),
    *_row((3, 4), fix_gamma=False),
    *_row((2, 3, 4, 5), fix_gamma=False, eps=1e-5),
    *_row((2, 3, 4, 5), fix_gamma=False, axis=-1),
    *_row((3, 4, 5), fix_gamma=False, use_global_stats=True),
    *_row((3, 4, 5), fix_gamma=False, output_mean_var=True, momentum=0.5),
    *_row((3, 4, 5), is_train=False, fix_gamma=False),
    *_row((3, 4, 5), is_train=False, output_mean_var=True),
    *_row((2, 3, 4, 5), op=RELU),
    *_row((2, 3, 4, 5), op=RELU, fix_gamma=False, eps=1e-5),
    *_row((2, 3, 4, 5), op=RELU, fix_gamma=False, use_global_stats=True, momentum=0.5),
    *_row((2, 3, 4, 5), op=RELU, fix_gamma=False, output_mean_var=True),
    *_row((2, 3, 4, 5), op=RELU, is_train=False, fix_gamma=False),
    *_row((2, 3, 4), op=RELU, fix_gamma=False, axis=-1),
]
