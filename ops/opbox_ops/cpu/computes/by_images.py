"""Convolutions of many images by oneDNN, some at a time: between these their call may end, or let others go first.

oneDNN's call takes a whole batch and stops for nobody. From MAX_PIECE_MULTIPLICATIONS on, a batch is cut: the weight is
laid out anew for each piece, which is nothing beside that many. A gradient that is a sum over the batch is added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...compute import Array, Temp
from ...pausing import in_one_piece, pause
from ..onednn.primitive import PrimitiveKernel
from ..runtime.memory_format import MemoryFormat
from .half_pointwise import HalfPointwise
from .half_product import HalfProduct
from .pointwise_convolution import PointwiseConvolution
from .short_rows import ShortRowsGradient
from .split_convolution import SplitConvolution
from .window_products import WindowProduct
from .winograd_convolution import WinogradConvolution, WinogradDataGradient, WinogradWeightGradient

__all__ = [
    "MAX_PIECE_MULTIPLICATIONS",
    "ByImages",
    "ConvolutionPiece",
    "ConvolutionKernel",
    "DataPiece",
    "DataGradientKernel",
    "WeightPiece",
    "WeightGradientKernel",
    "by_images",
    "images_of",
]

MAX_PIECE_MULTIPLICATIONS = 1 << 33
"""Maximum number of multiplications of a piece: 0.2 s of one thread at 80 GFLOP/s, as of a matrix product's
(`large_products`)."""


ConvolutionPiece: TypeAlias = (
    PrimitiveKernel | PointwiseConvolution | HalfPointwise | WinogradConvolution | SplitConvolution | WindowProduct
)
DataPiece: TypeAlias = ConvolutionPiece | HalfProduct | WinogradDataGradient
"""How some images, or their gradients, are computed together."""
WeightPiece: TypeAlias = PrimitiveKernel | WinogradWeightGradient | HalfProduct | WindowProduct | ShortRowsGradient
"""How the gradient of a weight is computed from some images."""


def images_of(memory: MemoryFormat, count: int) -> MemoryFormat:
    """Describe `count` images of a batch, which lie as the whole does."""
    return replace(memory, shape=(count, *memory.shape[1:]))


@dataclass(frozen=True, slots=True)
class ByImages:
    """A batch's kernels.

    Attributes:
        main, rest: for a piece, and for the last one where that is smaller.
        step: images of a piece.
        multiplications: of an image.
        of_images: for each array whether it has images; one that is written and has none is a sum over them.
    """

    main: DataPiece | WeightPiece
    rest: DataPiece | WeightPiece | None
    step: int
    multiplications: int
    of_images: tuple[bool, ...]

    @property
    def implementation(self) -> str:
        return self.main.implementation

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """No packed weights: the pieces may have them laid out differently."""
        return ()

    @property
    def _sums(self) -> list[int]:
        """The arrays that are added up."""
        operands = zip(self.main.operands, self.of_images, strict=True)
        return [k for k, (operand, has_images) in enumerate(operands) if operand.written and not has_images]

    @property
    def temps(self) -> tuple[Temp, ...]:
        """List the temporaries of both kernels, and an addend for each sum."""
        memories = [self.main.operands[k].memory for k in self._sums]
        return (
            *self.main.temps,
            *(self.rest.temps if self.rest is not None else ()),
            *[Temp((math.prod(memory.shape),), memory.dtype) for memory in memories],
        )

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> Callable[[], None]:
        """Return a call that runs both kernels; arguments are those of `PrimitiveKernel.bind`."""
        own = len(self.main.temps)
        after = own + (len(self.rest.temps) if self.rest is not None else 0)
        addends = {k: temps[after + i].reshape(arrays[k].shape) for i, k in enumerate(self._sums)}
        batch = next(len(array) for array, has_images in zip(arrays, self.of_images, strict=True) if has_images)
        runs: list[tuple[Callable[[], None], int]] = []
        for first in range(0, batch, self.step):
            at = slice(first, min(first + self.step, batch))
            part = [
                array[at] if has_images else addends.get(k, array) if first else array
                for k, (array, has_images) in enumerate(zip(arrays, self.of_images, strict=True))
            ]
            count = at.stop - first
            if count == self.step or self.rest is None:
                runs.append((self.main.bind(temps[:own], part), count))
            else:
                runs.append((self.rest.bind(temps[own:after], part), count))

        def call() -> None:
            for number, (run, count) in enumerate(runs):
                if self.multiplications > MAX_PIECE_MULTIPLICATIONS:
                    with in_one_piece(self.multiplications * count):
                        run()
                else:
                    pause()
                    run()
                for k, addend in addends.items() if number else ():
                    np.add(arrays[k], addend, out=arrays[k])

        return call


ConvolutionKernel: TypeAlias = ConvolutionPiece | ByImages
"""How a batch is computed."""
DataGradientKernel: TypeAlias = DataPiece | ByImages
"""How the gradient of data is computed."""
WeightGradientKernel: TypeAlias = WeightPiece | ByImages
"""How the gradient of a weight is computed."""


def by_images(
    make: Callable[[int], DataPiece | WeightPiece | None],
    batch: int,
    multiplications: int,
    of_images: Sequence[bool],
) -> DataGradientKernel | WeightGradientKernel | None:
    """The kernel of a batch, or of its pieces where that is long; None where oneDNN has none.

    Args:
        make: the kernel of so many images.
        batch: how many there are.
        multiplications: of an image.
        of_images: for each array whether it has images.
    """
    if batch * multiplications <= MAX_PIECE_MULTIPLICATIONS:
        return make(batch)
    step = max(1, min(batch, MAX_PIECE_MULTIPLICATIONS // multiplications))
    main, rest = make(step), make(batch % step) if batch % step else None
    if main is None or (batch % step and rest is None):
        return None
    return ByImages(main, rest, step, multiplications, tuple(of_images))
