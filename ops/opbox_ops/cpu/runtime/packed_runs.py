"""Calls that bind several routines one after the other, and calls whose inputs are packed before they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from ...compute import Array, Mode

__all__ = ["PackedRuns", "bind_in_order"]


def bind_in_order(
    routines: Sequence[Any], temps: Sequence[Array], arrays: Sequence[Sequence[Array] | None]
) -> list[Callable[[], Any]]:
    """Bind routines whose temporaries come one behind the other; none for a routine that is None, or has no arrays."""
    scratch, runs = iter(temps), []
    for routine, operands in zip(routines, arrays, strict=True):
        own = [] if routine is None else list(islice(scratch, len(routine.temps)))
        if routine is not None and operands is not None:
            runs.append(routine.bind(own, operands))
    return runs


class PackedRuns:
    """A call that reads packed inputs, which are packed anew where they may have been written to since.

    Args:
        packing: packs the inputs.
        runs: what is to be run.
        mode: whose `parameters` tell whether the inputs may have been written to.
    """

    __slots__ = ("_mode", "_packed", "_packing", "_runs")

    def __init__(self, packing: Callable[[], None], runs: Callable[[], None], mode: Mode) -> None:
        self._packing, self._runs, self._mode = packing, runs, mode
        self._packed: int | None = None

    def __call__(self) -> None:
        parameters = self._mode.parameters
        if parameters is None or parameters != self._packed:
            self._packed = None  # until it is done
            self._packing()
            self._packed = parameters
        self._runs()
