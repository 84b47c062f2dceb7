"""MXNet's `mx.executor_manager`: how a batch is split among devices, and a check of a symbol's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .absent import module_getattr

__all__ = ["_check_arguments", "_split_input_slice"]


def _split_input_slice(batch_size: int, work_load_list: Sequence[float]) -> list[slice]:
    """Return one slice of a batch per device, in proportion to the devices' work loads.

    Raises:
        ValueError: a device would get nothing.

    Example:
        >>> mx.executor_manager._split_input_slice(10, [1, 1.5])
        [slice(0, 4, None), slice(4, 10, None)]
    """
    total = sum(work_load_list)
    sizes = [round(load * batch_size / total) for load in work_load_list]
    sizes[-1] += max(0, batch_size - sum(sizes))
    slices, end = [], 0
    for size in sizes:
        begin, end = min(end, batch_size), min(end + size, batch_size)
        if begin >= end:
            raise ValueError(
                f"batch: expected samples for each of {len(sizes)} devices, got {batch_size} with the work loads "
                f"{list(work_load_list)}: some slices are empty; use a larger batch, or fewer devices"
            )
        slices.append(slice(begin, end))
    return slices


def _check_arguments(symbol: Any) -> None:
    """Check that no two arguments, and no two auxiliary states, have one name.

    Raises:
        ValueError: two have.
    """
    for kind, names in (("argument", symbol.list_arguments()), ("auxiliary state", symbol.list_auxiliary_states())):
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise ValueError(
                f"symbol: expected one {kind} of each name, got several called {repeated[0]!r}: "
                f"name their operators apart; all of them are {', '.join(names)}"
            )


__getattr__ = module_getattr(__name__, __all__)
