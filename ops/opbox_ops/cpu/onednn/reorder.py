"""Copying an array into another layout by oneDNN, in threads and by blocks: the steps at the edges of a region."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from ...compute import Arrays, CallSpec, Compute, Kernel, OpContext, Outputs
from ...layout import physical
from ..runtime.memory_format import MemoryFormat, memory_of
from .cache import MAX_CACHED_KERNELS
from .library import ArgumentNumber, library
from .primitive import Operand, PrimitiveKernel, Runs, takes

__all__ = ["REORDER", "plain_weight", "reorder"]


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def reorder(source: MemoryFormat, target: MemoryFormat) -> PrimitiveKernel | None:
    """Return a call that copies an array to one of another layout."""
    operands = [Operand(ArgumentNumber.SOURCE, source), Operand(ArgumentNumber.DESTINATION, target, written=True)]

    def arguments(from_memory: int, to_memory: int) -> tuple[Any, ...]:
        dnnl = library()
        assert dnnl is not None
        return (from_memory, dnnl.engine, to_memory, dnnl.engine)

    return PrimitiveKernel.of("reorder", operands, arguments)


def plain_weight(filters: int, channels: int, kernel: tuple[int, int]) -> PrimitiveKernel | None:
    """Return a call that copies a weight, or its gradient, with its channels last to one with its channels second.

    None where there is no oneDNN.
    """
    inside = MemoryFormat.plain((filters, *kernel, channels), "float32", (0, 3, 1, 2))
    return reorder(inside, MemoryFormat.plain((filters, channels, *kernel), "float32"))


def _bind(chosen: PrimitiveKernel, p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Runs:
    source, target = ctx.call.inputs[0], ctx.call.outputs[0]
    return chosen.bind(ctx.temp, (physical(inputs[0], source.layout), physical(outputs[0], target.layout)))


def _choose(p: Any, call: CallSpec) -> Kernel | None:
    source, target = call.inputs[0], call.outputs[0]
    if call.device != "cpu" or source.dtype != target.dtype or not takes(source):
        return None
    chosen = reorder(memory_of(source), memory_of(target))
    return None if chosen is None else Kernel(partial(_bind, chosen), chosen.temps)


REORDER = Compute(_choose, "library")
"""out = data, whatever the layout of either."""
