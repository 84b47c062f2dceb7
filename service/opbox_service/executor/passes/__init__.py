"""Plan passes: functions from a plan to a plan, run in order after a graph is lowered and before memory is planned.

A pass may change the plan that it is given and return it, or return another. It keeps these promises: a value is
written by one step, before the steps that read it; the steps before `forward_steps` are forward's; what the user's
arrays and the outputs hold after a run is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..plan import Plan
from .channels_last import channels_last
from .direct_gradients import direct_gradients
from .fusion import fusion
from .normalized_convolutions import normalized_convolutions
from .normalized_relus import normalized_relus
from .packed_products import packed_products
from .parts import parts
from .relu_epilogues import relu_epilogues
from .residual_sums import residual_sums
from .shared_products import shared_products
from .views import views

__all__ = ["PASSES", "PlanPass"]

PlanPass: TypeAlias = Callable[[Plan], Plan]

PASSES: tuple[PlanPass, ...] = (
    views,
    shared_products,
    direct_gradients,
    channels_last,
    residual_sums,
    normalized_relus,
    normalized_convolutions,
    packed_products,
    relu_epilogues,
    parts,
    fusion,
)
"""The passes of every plan, in their order."""
