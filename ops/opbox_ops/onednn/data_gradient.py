"""The gradient of a 1 x 1 convolution's data as one matrix product, over arrays whose channels lie last.

    gdata = gout @ weight        (positions, filters) @ (filters, channels)

oneDNN's own kernel wants the weight in a layout of its own. Where the weight is larger than both arrays, as in the last
layers of a residual network, laying it out takes as long as the kernel; a product reads it once, as it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..compute import Array, Temp
from .library import library
from .primitive import MemoryFormat
from .weight_gradient import CallList, is_last

__all__ = ["DataGradient", "data_gradient"]


@dataclass(frozen=True, slots=True)
class DataGradient:
    """How the gradient is computed: made of shapes, to be bound to arrays.

    Attributes:
        channels, filters: data's and out's.
    """

    channels: int
    filters: int

    @property
    def temps(self) -> tuple[Temp, ...]:
        """None."""
        return ()

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """What writes the gradient; `arrays` are gout and weight, and data's gradient."""
        gout, weight, gdata = arrays
        dnnl = library()
        assert dnnl is not None
        runs = CallList()
        gout, weight = runs.contiguous(gout), runs.contiguous(weight)
        rows, matrix = gout.reshape(-1, self.filters), weight.reshape(self.filters, self.channels)
        runs.calls.append(dnnl.product(rows, matrix, gdata.reshape(-1, self.channels), add=False, turned=False))
        return runs


def data_gradient(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: tuple[tuple[int, ...], ...]
) -> DataGradient | None:
    """How a product computes this gradient; None where it does not, or where oneDNN's own kernel is the better one.

    The arrays are as oneDNN takes them, the channels second; `window` is stride, dilation and padding.
    """
    stride, _, pad = window
    filters, channels, *kernel = weight.shape
    if kernel != [1, 1] or any(s != 1 for s in stride) or any(pad) or data.dtype != "float32":
        return None
    positions = data.shape[0] * data.shape[2] * data.shape[3]
    if not (is_last(data) and is_last(gout)) or filters * channels < positions * (filters + channels):
        return None
    return DataGradient(channels, filters)
