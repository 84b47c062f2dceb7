"""Gradients that add rows up at positions on a GPU: the operators' own computes, with positions that are sorted.

`rows` has the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..compute import CallSpec, Temp
from ..index import embedding, gather, take
from ..operator import Op

Temps = Callable[..., list[Temp]]


def _attach(op: Op, compute: Callable[..., None], temps: Temps, *, accumulates: bool = False) -> None:
    def accepts(p: Any, call: CallSpec) -> bool:
        """Where kernels do not take the rows, they ask for nothing."""
        return call.plain and len(temps(p, call, sorts=True)) > len(temps(p, call))

    sorting = partial(temps, sorts=True)
    op.compute("gpu", level="generated", accepts=accepts, temps=sorting, accumulates=accumulates)(compute)


_attach(embedding.backward, embedding.add_gradients, embedding.backward_temps, accumulates=True)
_attach(take.backward, take.add_gradients, take.backward_temps, accumulates=True)
_attach(gather.gather_backward, gather.add_gradients, gather.backward_temps)
