"""Memory layouts of an array: in the order of its axes, or with the channels last.

An array (batch, channel, *spatial) of the layout "channels_last" has that shape for everybody who computes with it; its
memory is (batch, *spatial, channel), row-major. `physical` is the array as it lies, `logical` the way back.
"""

from __future__ import annotations

from collections.abc import Sequence

from .compute import PLAIN, Array, Arrays, ArraySpec, CallSpec, Outputs

__all__ = ["CHANNELS_LAST", "logical", "physical", "physical_arrays", "physical_shape", "share_layout"]

CHANNELS_LAST = "channels_last"


def physical_shape(spec: ArraySpec) -> tuple[int, ...]:
    """The shape of the memory: of a "plain" array, its own.

    Example:
        >>> physical_shape(ArraySpec((8, 64, 56, 28), np.dtype("float32"), CHANNELS_LAST))
        (8, 56, 28, 64)
    """
    shape = spec.shape
    return shape if spec.layout == PLAIN else (shape[0], *shape[2:], shape[1])


def physical(array: Array, layout: str) -> Array:
    """The array as it lies, contiguous: a view."""
    return array if layout == PLAIN else array.transpose(0, *range(2, array.ndim), 1)


def logical(array: Array, layout: str) -> Array:
    """An array as it lies, seen as (batch, channel, *spatial)."""
    return array if layout == PLAIN else array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1))


def share_layout(call: CallSpec, ins: Sequence[int], outs: Sequence[int]) -> bool:
    """Return whether the inputs `ins` and outputs `outs` have one layout, and all other arrays are "plain"."""
    data = {call.inputs[i].layout for i in ins} | {call.outputs[k].layout for k in outs}
    others = [spec for i, spec in enumerate(call.inputs) if i not in ins]
    others += [spec for k, spec in enumerate(call.outputs) if k not in outs]
    return len(data) == 1 and data <= {PLAIN, CHANNELS_LAST} and all(spec.layout == PLAIN for spec in others)


def physical_arrays(call: CallSpec, inputs: Arrays, outputs: Outputs) -> tuple[list[Array], list[Array]]:
    """The arrays of a call as they lie in memory; None for an output that nobody wants."""
    ins = [physical(array, spec.layout) for array, spec in zip(inputs, call.inputs, strict=True)]
    pairs = zip(outputs, call.outputs, strict=True)
    return ins, [None if array is None else physical(array, spec.layout) for array, spec in pairs]
