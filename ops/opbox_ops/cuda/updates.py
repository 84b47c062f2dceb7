"""Steps of many weights by one optimizer in one launch: a table of places goes with the launch, as an argument.

A block has CHUNK elements of one weight, and finds which in the table. Each array is read once and written once, the
least possible. The table is no larger than what every CUDA takes as arguments, so that some eighty weights go together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array, Arrays
from .kernel import KERNELS, MAX_ELEMENTS, TYPES, KernelTemplate, Moved, compiled

__all__ = ["ManySteps"]

CHUNK = 4096
"""Elements of a block."""
_THREADS = 256
_ARGUMENTS = 3900
"""Bytes of the table: CUDA before 12.1 takes 4 KiB of arguments."""
_PER_WEIGHT = ("lr", "wd")
"""Numbers that differ from weight to weight; others must be the same for all."""
_WEIGHTS = 25_600_000


@dataclass(frozen=True)
class ManySteps:
    """An update operator's step over many weights.

    Attributes:
        name: the operator's.
        states: names of its states; the last is weight32 with `mixed`.
        numbers: names of its parameters.
        code: what the step does, as `update.family` writes it down for one element in the type A.
        mixed: whether states are in the type A, and not in the weight's.
    """

    name: str
    states: tuple[str, ...]
    numbers: tuple[str, ...]
    code: str
    mixed: bool

    @cached_property
    def _own(self) -> tuple[str, ...]:
        return tuple(name for name in self.numbers if name in _PER_WEIGHT)

    @cached_property
    def _shared(self) -> tuple[str, ...]:
        return tuple(name for name in self.numbers if name not in _PER_WEIGHT)

    @cached_property
    def most(self) -> int:
        """Weights of a table, an even number: its parts are then aligned."""
        return _ARGUMENTS // (8 * (2 + len(self.states)) + 2 * 4 + 8 * len(self._own)) // 2 * 2

    @cached_property
    def kernel(self) -> KernelTemplate:
        """The kernel; its table has places, sizes, first blocks and numbers of weights."""
        state = "A" if self.mixed else "T"
        table = (
            f"struct Table {{ void *places[{2 + len(self.states)}][{self.most}]; int sizes[{self.most}], "
            f"first[{self.most}]; A numbers[{len(self._own)}][{self.most}]; }};\n"
        )
        reads = [f"const A {name} = table.numbers[{k}][t];" for k, name in enumerate(self._own)]
        reads += [
            "T *weights = (T *)table.places[0][t];",
            "const T *grads = (const T *)table.places[1][t];",
            *(f"{state} *{name}s = ({state} *)table.places[{k}][t];" for k, name in enumerate(self.states, 2)),
        ]
        loop = ["const T weight_in = weights[i], grad_in = grads[i];", "T &out_ = weights[i];"]
        loop += [f"{state} &{name}_ = {name}s[i];" for name in self.states]
        body = (
            "  int t = 0, after = count;\n"
            "  while (after - t > 1) {\n"
            "    const int middle = (t + after) / 2;\n"
            "    (table.first[middle] <= blockIdx.x ? t : after) = middle;\n"
            "  }\n"
            + "".join(f"  {line}\n" for line in reads)
            + f"  const int begin = (blockIdx.x - table.first[t]) * {CHUNK};\n"
            + f"  const int end = min(begin + {CHUNK}, table.sizes[t]);\n"
            "  for (int i = begin + threadIdx.x; i < end; i += blockDim.x) {\n"
            + "".join(f"    {line}\n" for line in (*loop, self.code))
            + "  }\n"
        )
        arrays = 3 + 2 * len(self.states)
        parameters = ", ".join(("const Table table", "int count", *(f"A {name}" for name in self._shared)))
        example = ("25,600,000 weights", lambda: Moved(4 * arrays * _WEIGHTS, 4 * arrays * _WEIGHTS))
        return KernelTemplate(f"opbox_many_{self.name}", parameters, body, example, table)

    def enlist(self) -> None:
        """Put the kernel among those that are tested and reported."""
        KERNELS.append(self.kernel)

    def prepare(self, xp: Any, calls: Sequence[tuple[Arrays, Mapping[str, float]]]) -> Callable[[], None] | None:
        """A call that takes the steps of some weights, each with its arrays and numbers; None where it cannot.

        It takes contiguous arrays of one shape for each weight and of one type for all, that share no memory.
        """
        dtype = calls[0][0][0].dtype
        shared = [calls[0][1][name] for name in self._shared]
        if dtype.name not in TYPES:
            return None
        types = [dtype, dtype, *[accumulation_type(dtype) if self.mixed else dtype] * len(self.states)]
        for arrays, numbers in calls:
            if (
                [array.dtype for array in arrays] != types
                or any(array.shape != arrays[0].shape or not array.flags.c_contiguous for array in arrays)
                or not 0 < arrays[0].size <= MAX_ELEMENTS
                or [numbers[name] for name in self._shared] != shared
            ):
                return None
        if _overlap([array for arrays, _ in calls for array in arrays]):
            return None
        launches = [self._launch(xp, calls[k : k + self.most], shared) for k in range(0, len(calls), self.most)]

        def run() -> None:
            for launch in launches:
                launch()

        return run

    def _launch(
        self, xp: Any, calls: Sequence[tuple[Arrays, Mapping[str, float]]], shared: Sequence[float]
    ) -> Callable[[], Any]:
        dtype = calls[0][0][0].dtype
        wide, parts = accumulation_type(dtype), 2 + len(self.states)
        fields = [
            ("places", np.uintp, (parts, self.most)),
            ("sizes", np.int32, (self.most,)),
            ("first", np.int32, (self.most,)),
            ("numbers", wide, (len(self._own), self.most)),
        ]
        table, blocks = np.zeros((), fields), 0
        for k, (arrays, numbers) in enumerate(calls):
            table["places"][:, k] = [array.data.ptr for array in arrays]
            table["sizes"][k], table["first"][k] = arrays[0].size, blocks
            table["numbers"][:, k] = [numbers[name] for name in self._own]
            blocks += -(-arrays[0].size // CHUNK)
        arguments = (table, np.int32(len(calls)), *map(wide.type, shared))
        function = compiled(xp, self.kernel, dtype.name)
        return lambda: function((blocks,), (_THREADS,), arguments)


def _overlap(arrays: Sequence[Array]) -> bool:
    """Return whether two of the contiguous arrays have memory in common."""
    spans = sorted((array.data.ptr, array.data.ptr + array.nbytes) for array in arrays)
    return any(end > start for (_, end), (start, _) in pairwise(spans))
