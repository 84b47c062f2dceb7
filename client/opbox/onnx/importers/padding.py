"""The padding of convolutions and pooling, which ONNX gives for both sides or leaves to the operator."""

from __future__ import annotations

from collections.abc import Sequence

from ...symbol import Symbol
from ..importing import ImportCall

__all__ = ["padded", "padding"]


def padding(
    call: ImportCall, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial dimension."""
    auto, count = call.attr("auto_pad"), len(kernel)
    if auto in ("NOTSET", ""):
        pads = list(call.attr("pads", [0] * 2 * count))
        return pads[:count], pads[count:]
    if auto == "VALID":
        return [0] * count, [0] * count
    before, after = [], []
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        size = call.shape(0)[axis + 2]
        if size is None:
            raise call.refuse(f"auto_pad {auto}: expected a known size of axis {axis + 2}, got an unknown one")
        whole = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        small, large = whole // 2, whole - whole // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return before, after


def padded(call: ImportCall, data: Symbol, before: Sequence[int], after: Sequence[int], value: float) -> Symbol:
    """The data with the padding that the operator itself cannot have."""
    width = [0, 0, 0, 0, *(part for pair in zip(before, after, strict=True) for part in pair)]
    if min(width) < 0:
        raise call.refuse(f"pads: expected none below 0, got {list(before)} and {list(after)}")
    if len(before) == 1:  # Pad wants four dimensions or five
        wide = call.step("expand_dims", data, axis=2)
        whole = call.step("Pad", wide, mode="constant", pad_width=[*width[:4], 0, 0, *width[4:]], constant_value=value)
        return call.step("squeeze", whole, axis=2)
    return call.step("Pad", data, mode="constant", pad_width=width, constant_value=value)
